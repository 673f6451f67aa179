"""`python -m onceward`."""

from onceward.edges.cli.main import main

main()
