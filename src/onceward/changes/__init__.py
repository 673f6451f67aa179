"""Changes: proposed, reviewed, applied exactly as approved, and verified by somebody else."""
