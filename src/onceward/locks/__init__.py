"""Who holds what: the writer lock of a workspace and the identity of processes."""
