"""The short verbs every kernel takes from other processes: each one transaction, each with the role it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from onceward.core.canon import digest
from onceward.core.grants import Grant, Scope
from onceward.core.limits import MAX_NOTE_CHARS
from onceward.core.records import check_name
from onceward.engine import build_verbs as builds
from onceward.engine import change_verbs as changes
from onceward.engine import child_dispatch, grants, seals, tokens
from onceward.engine import saga_verbs as sagas
from onceward.errors import InvalidConfig, Recovery
from onceward.lifecycles.duties import ROLE_OF
from onceward.locks.claims import check_target
from onceward.people import principals
from onceward.store.tables.children import resolve
from onceward.store.tables.outbox import backlogs, make_due
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.engine.kernel import Kernel

T = TypeVar("T")


class Verb(msgspec.Struct, frozen=True):
    """What may be asked: who may ask it and what it does."""

    role: str
    """Empty where anybody who is known may ask."""
    kind: type
    """What is asked with."""
    ready: Callable[[Kernel, Any, str], Callable[[Transaction, str], Any]]
    """Looks at what lies outside the store, and answers what is done inside the answer's own transaction."""
    outside: bool = False
    """Whether there is anything outside to look at."""


class AddPrincipal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    roles: list[str]
    key: str = ""
    """What `keys show` printed for its owner."""


def _add_principal(tx: Transaction, actor: str, asked: AddPrincipal) -> Any:
    principals.add(tx, asked.name, asked.roles, actor, asked.key)
    return _principal(tx, asked.name)


class TakeRoles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    roles: list[str]


def _take_roles(tx: Transaction, actor: str, asked: TakeRoles) -> Any:
    principals.take_roles(tx, asked.name, asked.roles, actor)
    return _principal(tx, asked.name)


def _principal(tx: Transaction, name: str) -> Any:
    found = tx.principals.find(name)
    return {"name": name, "roles": sorted(found.roles if found else ())}


class AddKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str


def _add_key(tx: Transaction, actor: str, asked: AddKey) -> Any:
    public, proof = principals.read_offer(asked.key)
    return {"principal": actor, "key": principals.add_key(tx, actor, public, proof, actor)}


class RevokeKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    reason: str = ""


def _revoke_key(tx: Transaction, actor: str, asked: RevokeKey) -> Any:
    return principals.revoke(tx, asked.key, asked.reason[:MAX_NOTE_CHARS], actor)


class Flush(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _flush_outbox(tx: Transaction, actor: str, asked: Flush) -> Any:
    make_due(tx, tx.now)
    return {"due": sum(backlog.waiting for backlog in backlogs(tx))}


class ClearLock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: str
    claim: dict[str, Any]


def _clear_lock(tx: Transaction, actor: str, asked: ClearLock) -> Any:
    """Only the record of it: the claim is removed by the process that saw it, after this is durable."""
    check_target(asked.target)
    tx.append("workspace", "LOCK_CLEARED", actor, {"target": asked.target, "claim": asked.claim})
    return {"target": asked.target}


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    subject: str
    """A child, or a session with all its children."""
    cancel_request_id: str = ""


def cancel(tx: Transaction, actor: str, asked: Cancel) -> Any:
    """One receipt per child, in the order of the queue."""
    request = asked.cancel_request_id or digest({"actor": actor, "subject": asked.subject})
    check_name(request, "cancel_request_id")
    if asked.subject.startswith("bld_"):
        build = tx.builds.named(asked.subject)
        if build.state in ("PENDING", "ACTIVE"):
            # A build that may run none of its steps is given up.
            return {
                "cancel_request_id": request,
                **builds.abandon(tx, actor, build.build_id, False, request),
            }
        if build.state in ("CRASHED", "BUDGET_PAUSE"):
            raise InvalidConfig(
                f"build {build.build_id} is {build.state}; nothing of it is running",
                context={"subject": asked.subject},
                recovery=[Recovery("give it up", f"onceward abandon {build.build_id}", "medium")],
            )
    children = resolve(tx, asked.subject)
    receipts = [child_dispatch.cancel(tx, child_id, request, actor) for child_id in children]
    return {"cancel_request_id": request, "receipts": receipts}


class Confirm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str
    token_hash: str


def _confirm(kernel: Kernel, payload: Any, principal: str) -> Callable[[Transaction, str], Any]:
    def confirm(tx: Transaction, actor: str) -> Any:
        asked = _convert(payload, Confirm)
        seconds = kernel.confirmation_seconds
        return builds.confirm(tx, actor, asked.build, asked.token_hash, seconds)

    return confirm


class Abandon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str
    failed: bool = False


def _abandon(tx: Transaction, actor: str, asked: Abandon) -> Any:
    return builds.abandon(
        tx, actor, asked.build, asked.failed, digest({"actor": actor, "abandon": asked.build})
    )


class Approve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str
    step: str
    digest: str
    refuse: bool = False
    note: str = ""


def _approve(tx: Transaction, actor: str, asked: Approve) -> Any:
    return builds.approve(
        tx, actor, asked.build, asked.step, asked.digest, asked.refuse, asked.note[:MAX_NOTE_CHARS]
    )


class AddSeal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    envelope: dict[str, Any]


def _add_seal(tx: Transaction, actor: str, asked: AddSeal) -> Any:
    return seals.add(tx, actor, asked.envelope)


class DraftGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: Scope
    about: Any = None
    """What it is for, for people to read."""


def _draft_grant(tx: Transaction, actor: str, asked: DraftGrant) -> Any:
    return _granted(grants.draft(tx, actor, asked.scope, asked.about))


class IssueGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grant: str
    scope: Scope
    """All of it, so that it is what is signed."""
    seconds: int


def _issue_grant(tx: Transaction, actor: str, asked: IssueGrant) -> Any:
    return _granted(grants.issue(tx, actor, asked.grant, asked.scope, asked.seconds))


class RevokeGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grant: str
    why: str = ""


def _revoke_grant(tx: Transaction, actor: str, asked: RevokeGrant) -> Any:
    return _granted(grants.revoke(tx, actor, asked.grant, asked.why[:MAX_NOTE_CHARS]))


class ExpireGrants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _expire_grants(tx: Transaction, actor: str, asked: ExpireGrants) -> Any:
    return {"expired": grants.expire(tx, actor)}


class AbandonSaga(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    saga: str


def _abandon_saga(tx: Transaction, actor: str, asked: AbandonSaga) -> Any:
    return sagas.abandon(tx, actor, asked.saga, digest({"actor": actor, "abandon": asked.saga}))


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token_hash: str
    seconds: int
    note: str = ""


def _new_token(tx: Transaction, actor: str, asked: NewToken) -> Any:
    return tokens.make(tx, actor, asked.token_hash, asked.seconds, asked.note[:MAX_NOTE_CHARS])


class RevokeToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


def _revoke_token(tx: Transaction, actor: str, asked: RevokeToken) -> Any:
    return tokens.revoke(tx, actor, asked.token)


def _granted(grant: Grant) -> Any:
    return {"grant_id": grant.grant_id, "status": grant.status, "scope": grant.scope.digest()}


_RUN: dict[str, tuple[Callable[[Transaction, str, Any], Any], type]] = {
    "principals.add": (_add_principal, AddPrincipal),
    "principals.take": (_take_roles, TakeRoles),
    "keys.add": (_add_key, AddKey),
    "keys.revoke": (_revoke_key, RevokeKey),
    "locks.clear": (_clear_lock, ClearLock),
    "outbox.flush": (_flush_outbox, Flush),
    "children.cancel": (cancel, Cancel),
    "builds.abandon": (_abandon, Abandon),
    "builds.approve": (_approve, Approve),
    "seals.add": (_add_seal, AddSeal),
    "grants.draft": (_draft_grant, DraftGrant),
    "grants.issue": (_issue_grant, IssueGrant),
    "grants.revoke": (_revoke_grant, RevokeGrant),
    "grants.expire": (_expire_grants, ExpireGrants),
    "sagas.abandon": (_abandon_saga, AbandonSaga),
    "tokens.new": (_new_token, NewToken),
    "tokens.revoke": (_revoke_token, RevokeToken),
}
_READY: dict[str, tuple[Callable[[Kernel, Any, str], Callable[[Transaction, str], Any]], type]] = {
    "changes.mark": (changes.mark, changes.Mark),
    "changes.sweep": (changes.sweep, changes.Sweep),
    "changes.review": (changes.review, changes.Review),
    "changes.abandon": (changes.abandon, changes.Abandon),
}


Ready = Callable[["Kernel", Any, str], Callable[[Transaction, str], Any]]


def _inside(run: Callable[[Transaction, str, Any], Any], kind: type) -> Ready:
    """A verb that only the store matters to."""
    return lambda kernel, payload, principal: (
        lambda tx, actor: run(tx, actor, _convert(payload, kind))
    )


def _outside(ready: Ready, kind: type) -> Ready:
    return lambda kernel, payload, principal: ready(kernel, _convert(payload, kind), principal)


VERBS: dict[str, Verb] = {
    **{name: Verb(ROLE_OF[name], kind, _inside(run, kind)) for name, (run, kind) in _RUN.items()},
    **{
        name: Verb(ROLE_OF[name], kind, _outside(ready, kind), outside=True)
        for name, (ready, kind) in _READY.items()
    },
    "builds.confirm": Verb(ROLE_OF["builds.confirm"], Confirm, _confirm),
}


def _convert(payload: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"the request's payload does not fit: {error}", context={"field": "payload"}
        ) from None
