"""Sessions and their children: commands and functions that are run under a cap, budgets and locks."""
