"""The shell: read, decide, commit, act. Owns threads, processes, files and the network."""
