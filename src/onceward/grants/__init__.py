"""Grants: an authority for exactly one thing, by somebody who may, used once."""
