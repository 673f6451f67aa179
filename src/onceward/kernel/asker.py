"""A line to the kernel that lives, for a process that is not it (K-13)."""

from __future__ import annotations

import time
from collections.abc import Callable

from onceward.core.acts import act_named, children_may, is_work
from onceward.core.limits import REQUEST_POLL_SECONDS
from onceward.core.records import Answer, Request
from onceward.errors import LockConflict
from onceward.kernel import tenure
from onceward.kernel.answers import Pending, told
from onceward.kernel.kernel import Kernel
from onceward.people import statements
from onceward.people.credentials import Credential, not_for_children, own_credential
from onceward.people.enrolment import to_sign
from onceward.people.keyring import Keyring, inside_child
from onceward.people.principals import authorize
from onceward.processes.prints import step_here
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.principals import Principals
from onceward.store.tables.requests import Requests


class Asker:
    """Files a request for the live kernel and waits for its answer; if that kernel goes, becomes the next."""

    def __init__(self, store: Store, become: Callable[[], Kernel], keyring: Keyring) -> None:
        self.store = store
        self._become = become
        self._keyring = keyring

    def ask(self, request: Request, wait: float) -> Answer | Pending:
        request.check()
        with self.store.read() as rows:
            credential = credential_here(rows, self._keyring)
            if credential is not None and not children_may(request.verb):
                able = [
                    p.name for p in Principals(rows).all() if p.may(act_named(request.verb).role)
                ]
                raise not_for_children(request.verb, credential.child_id, able)
            if credential is not None:
                request = credential.request(statements.named(rows, request))
            authorize(rows, request.principal, act_named(request.verb).role)
            request = to_sign(rows, self._keyring, request)
            found = Requests(rows).find(request)
            if found is not None and found.answered_at is not None:
                return told(Answer(found.value(), replayed=True))
        if credential is None:
            request = sign_for(self.store, self._keyring, request)
        self.store.file(request)
        deadline = time.monotonic() + wait
        while True:
            with self.store.read() as rows:
                found = Requests(rows).find(request)
            if found is not None and found.answered_at is not None:
                return told(Answer(found.value()))
            # Work is for a kernel that hosts: whoever takes over for a moment would only refuse it.
            if not is_work(request.verb) and tenure.vacant(self.store) and self._take_over():
                continue
            if time.monotonic() >= deadline:
                return Pending(request.request_id)
            time.sleep(REQUEST_POLL_SECONDS)

    def _take_over(self) -> bool:
        """The kernel we asked is gone: be the kernel for as long as it takes to answer what waits."""
        try:
            kernel = self._become()
        except LockConflict:
            return False
        try:
            kernel.carry_out(works=False)
        finally:
            kernel.close()
        return True

    def close(self) -> None:
        self.store.close()


def credential_here(rows: Reads, keyring: Keyring) -> Credential | None:
    """The credential of the child that asks; None outside of children. A child that lost its own signs for nobody."""
    inside = keyring.child_around(rows)
    if not inside:
        return None
    task = step_here()
    found = task.running.credential() if task is not None else own_credential()
    if found is None:
        raise inside_child("whoever asks", inside)
    return found


def sign_for(store: Store, keyring: Keyring, request: Request) -> Request:
    """A request as its principal signs it with the key that is here."""
    with store.read() as rows:
        signer = keyring.signer(rows, request.principal)
        return statements.sign(rows, signer, to_sign(rows, keyring, request))
