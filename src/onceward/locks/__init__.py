"""Who holds what: the identity of processes; target locks come with part 2."""
