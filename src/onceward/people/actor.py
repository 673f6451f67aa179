"""In whose name something is done."""

from __future__ import annotations

import msgspec

from onceward.people.keyring import Signer


class Actor(msgspec.Struct, frozen=True):
    """A principal, and the key that what it does is signed with, where that key is here."""

    principal: str
    signer: Signer | None = None
