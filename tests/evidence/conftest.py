from sites import hook, kernel, site, workspace

__all__ = ["hook", "kernel", "site", "workspace"]
