"""Rows, events and the outbox on disk. Knows the kernel, not the engine."""
