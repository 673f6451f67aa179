"""Proving it: verify, replay, the gate, bundles, seals (from part 6 on)."""
