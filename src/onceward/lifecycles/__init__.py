"""The rules. One file is one transition table and its pure decisions; they never import each other."""
