"""`python -m onceward`."""

from onceward.ui.cli import main

main()
