from backlog import backlog
from sites import hook, kernel, site, workspace

__all__ = ["backlog", "hook", "kernel", "site", "workspace"]
