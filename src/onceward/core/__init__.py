"""What everything shares: bytes, time, state machines, records, bounds. Pure but for sources and
faults."""
