"""The registry: operations that mean one thing for ever, by version."""
