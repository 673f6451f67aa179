"""What the tests of the gate share."""

from sites import hook, kernel, workspace

__all__ = ["hook", "kernel", "workspace"]
