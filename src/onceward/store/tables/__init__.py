"""One small module per table family: the SQL of reads and of facts that are no state."""
