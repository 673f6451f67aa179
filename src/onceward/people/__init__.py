"""People and their authority: principals, keys, what they sign, and what a child may do in its
own name."""
