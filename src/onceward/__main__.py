"""`python -m onceward`."""

from onceward.edges.cli import main

main()
