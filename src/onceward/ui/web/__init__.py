"""Pages for people: what the command line shows, in a browser (I-4)."""
