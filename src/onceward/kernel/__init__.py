"""The process that holds a workspace: what may be asked of it that belongs to no lifecycle."""
