"""Builds: plans that are carried out step by step, checkpointed and resumed."""
