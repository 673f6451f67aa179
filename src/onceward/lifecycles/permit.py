"""The life of a grant: an authority that is used once or not at all (S-3)."""

from __future__ import annotations

from onceward.kernel.machine import Machine

GRANT = Machine.parse(
    "grant",
    """
    new    -> draft     -           GRANT_DRAFTED
    draft  -> active    issued      GRANT_ISSUED
    draft  -> revoked   withdrawn   GRANT_REVOKED
    active -> consumed  used        GRANT_CONSUMED
    active -> expired   time_passed GRANT_EXPIRED
    active -> revoked   withdrawn   GRANT_REVOKED

    terminal consumed expired revoked
    """,
)
