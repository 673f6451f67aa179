"""Onceward: costly, consequential work, done once and proven afterwards."""

from onceward.errors import OncewardError

__version__ = "0.1.0"
__all__ = ["OncewardError", "__version__"]
