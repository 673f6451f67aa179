"""The acts on evidence: record a seal."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.acts import Payload, SignedEvent, act
from onceward.evidence import sealing
from onceward.store.transaction import Transaction


def _is_seal(claim: SignedEvent, payload: Payload) -> bool:
    return bool(claim.detail["act"] == "seal")


class AddSeal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    envelope: dict[str, Any]


@act("seals.add", role="operator", may_make={"ACT_SIGNED": _is_seal})
def add_seal(tx: Transaction, actor: str, asked: AddSeal) -> dict[str, Any]:
    return sealing.add(tx, actor, asked.envelope)
