"""The one exception tree: every refusal has a frozen code and says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

Risk = Literal["none", "low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """One thing a person can do about an error, and how dangerous it is."""

    action: str
    command: str | None = None
    risk: Risk = "none"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is fixed about a code: how the CLI exits, what HTTP answers, whether trying again can help."""

    exit_status: int
    http_status: int
    retryable: bool
    meaning: str


def _parse(table: str) -> Mapping[str, Facts]:
    facts: dict[str, Facts] = {}
    for line in filter(str.strip, table.splitlines()):
        code, exit_status, http_status, retry, meaning = line.split(None, 4)
        facts[code] = Facts(int(exit_status), int(http_status), retry == "retry", meaning)
    return MappingProxyType(facts)


# code, CLI exit status, HTTP status, whether a retry can help, meaning
CODES = _parse("""
    LOCK_CONFLICT            4 409 final  another running kernel holds this workspace
    INVALID_CONFIG           2 400 final  a value, file or setting is not acceptable
    INVALID_DEPENDENCY       2 400 final  a stage or entry depends on itself or on something that does not exist
    CORRUPT_STATE            5 500 final  the contents of the store are not valid
    MALFORMED_OUTPUT         1 422 final  a step left output that cannot be used
    INVALID_RESUME_STATE     2 409 final  this build cannot be resumed this way
    STORAGE_ERROR_RETRY      1 503 retry  a write to the store failed; retry when the cause is gone
    TRANSFORM_RATE_LIMIT     1 429 retry  a service limited the rate of a step
    NETWORK_ERROR            1 502 retry  a step could not reach a service
    EXECUTION_FAILED         1 500 final  a step ended with an error
    NEED_MORE_CONTEXT        3 422 retry  a step needs more input to continue
    ILLEGAL_TRANSITION       2 409 final  the lifecycle has no such transition
    STALE_VERSION            4 409 final  the subject changed after it was read
    LOCK_LOST                4 409 final  this process is no longer the kernel of the workspace
    NOT_FOUND                2 404 final  it does not exist in this workspace
    PERMISSION_DENIED        2 403 final  the principal has no role that allows this
    PERMIT_INVALID           2 403 final  the permit is missing, used, expired or for something else
    SCHEMA_TOO_NEW           2 409 final  the store was written by a newer Onceward
    INTEGRITY_FAULT          5 500 final  stored evidence contradicts itself
    CODE_NOT_AVAILABLE       4 409 final  this process does not have the code that the work needs

    URM_IDEMPOTENCY_KEY_CONFLICT                  2 409 final  the request id was used for another payload
    URM_SCHEDULER_REPLAY_ORDER_INVALID            5 500 final  two dispatches have the same place in the order
    URM_DISPATCH_LEASE_CONFLICT                   4 409 final  two children have the same lease or queue place
    URM_SCHEDULER_LEASE_ORPHANED                  1 409 final  a kernel died between lease and start
    URM_SCHEDULER_PHASE_EVENT_ATOMICITY_VIOLATION 5 500 final  a token and its stream disagree
    URM_DISPATCH_ACCOUNTING_MODE_INVALID          2 400 final  only running_total_v1 is known
    URM_CHILD_TERMINATED_ON_RESTART               1 409 final  a kernel died while the child ran
    URM_CHILD_BUDGET_EXCEEDED                     1 402 final  a budget lane has no room for the debit
    URM_CHILD_EXECUTION_FAILED                    1 500 final  the child ended with an error
    URM_CHILD_TIMEOUT                             1 504 final  the child exceeded its time limit
    URM_CHILD_START_FAILED                        1 500 final  the child could not be started

    CANONICAL_OPERATION_VALUE_ABSENT         2 409 final  the operation is not in the registry
    CANONICAL_OPERATION_RETIRED_FOR_NEW_USE  2 409 final  the operation is retired
    WRONG_CANONICAL_OPERATION_FOR_EFFECT     2 409 final  the operation is not of the step's kind of act

    G-CUT-APPROVED    2 409 final  the entry is not approved for this manifest
    G-CUT-DEPS        2 409 final  an entry it depends on is not verified yet
    G-CUT-ONCE        4 409 final  the change was already cut under this approval
    G-VERIFY-CUT      2 409 final  there is no cut to verify
    G-VERIFY-SOD      2 403 final  the verifier must not be the executor
    BASE_DRIFT        1 409 final  the files no longer match the base of the change
    APPROVAL_EXPIRED  2 409 final  the approval is too old
""")


class OncewardError(Exception):
    """Base of every error that Onceward raises on purpose."""

    code: ClassVar[str] = "EXECUTION_FAILED"

    def __init__(
        self,
        message: str,
        *,
        context: Mapping[str, Any] | None = None,
        recovery: Sequence[Recovery] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.context = dict(context or {})
        self.recovery = tuple(recovery)

    @property
    def facts(self) -> Facts:
        return CODES[self.code]

    @property
    def retryable(self) -> bool:
        return self.facts.retryable

    @property
    def exit_status(self) -> int:
        return self.facts.exit_status

    @property
    def http_status(self) -> int:
        return self.facts.http_status

    def document(self) -> dict[str, Any]:
        """The error as data, the same for `--json`, HTTP and stored answers."""
        return {
            "code": self.code,
            "message": self.message,
            "context": self.context,
            "retryable": self.retryable,
            "recovery": [
                {
                    "action": r.action,
                    **({"command": r.command} if r.command else {}),
                    "risk": r.risk,
                }
                for r in self.recovery
            ],
        }


class LockConflict(OncewardError):
    code = "LOCK_CONFLICT"


class InvalidConfig(OncewardError):
    code = "INVALID_CONFIG"


class CorruptState(OncewardError):
    code = "CORRUPT_STATE"


class StorageError(OncewardError):
    """The store refused or lost a write; `context["outcome"]` is `failed` or `unknown`."""

    code = "STORAGE_ERROR_RETRY"


class CommitUnknown(StorageError):
    """COMMIT itself went wrong: the work may or may not be there. Ask again with the same request id."""


class ExecutionFailed(OncewardError):
    code = "EXECUTION_FAILED"


class CodeNotAvailable(OncewardError):
    code = "CODE_NOT_AVAILABLE"


class NetworkError(OncewardError):
    code = "NETWORK_ERROR"


class IllegalTransition(OncewardError):
    code = "ILLEGAL_TRANSITION"


class StaleVersion(OncewardError):
    code = "STALE_VERSION"


class LockLost(OncewardError):
    code = "LOCK_LOST"


class LeaseLost(OncewardError):
    """A saga's run no longer has the lease that it works under."""

    code = "LOCK_LOST"


class NotFound(OncewardError):
    code = "NOT_FOUND"


class PermissionDenied(OncewardError):
    code = "PERMISSION_DENIED"


class PermitInvalid(OncewardError):
    code = "PERMIT_INVALID"


class InvalidDependency(OncewardError):
    code = "INVALID_DEPENDENCY"


class InvalidResumeState(OncewardError):
    code = "INVALID_RESUME_STATE"


class MalformedOutput(OncewardError):
    code = "MALFORMED_OUTPUT"


class RateLimit(OncewardError):
    """A step was told to slow down; another attempt can help."""

    code = "TRANSFORM_RATE_LIMIT"


class NeedMoreContext(OncewardError):
    """A step asks for more input before it can go on; another attempt can help."""

    code = "NEED_MORE_CONTEXT"


class SchemaTooNew(OncewardError):
    code = "SCHEMA_TOO_NEW"


class IntegrityFault(OncewardError):
    code = "INTEGRITY_FAULT"


class ReplayOrderInvalid(OncewardError):
    code = "URM_SCHEDULER_REPLAY_ORDER_INVALID"


class LeaseConflict(OncewardError):
    code = "URM_DISPATCH_LEASE_CONFLICT"


class AtomicityViolation(OncewardError):
    code = "URM_SCHEDULER_PHASE_EVENT_ATOMICITY_VIOLATION"


class AccountingModeInvalid(OncewardError):
    code = "URM_DISPATCH_ACCOUNTING_MODE_INVALID"


class BudgetExceeded(OncewardError):
    """A lane has no room; `context` has lane, limit, observed and asked."""

    code = "URM_CHILD_BUDGET_EXCEEDED"


class ChildCancelled(OncewardError):
    """Raised inside a function child that was asked to end."""

    code = "EXECUTION_FAILED"

    def __init__(self, message: str = "this child was asked to end") -> None:
        super().__init__(message)


class ChildStartFailed(OncewardError):
    code = "URM_CHILD_START_FAILED"


class OperationAbsent(OncewardError):
    code = "CANONICAL_OPERATION_VALUE_ABSENT"


class OperationRetired(OncewardError):
    code = "CANONICAL_OPERATION_RETIRED_FOR_NEW_USE"


class WrongOperation(OncewardError):
    code = "WRONG_CANONICAL_OPERATION_FOR_EFFECT"


class GuardFailed(OncewardError):
    """A guard of a change stands against it; its own code says which."""

    def __init__(
        self, code: str, message: str, entry_id: str, recovery: Sequence[Recovery] = ()
    ) -> None:
        super().__init__(message, context={"entry_id": entry_id}, recovery=recovery)
        self.code = code  # type: ignore[misc]


class CutOnce(OncewardError):
    code = "G-CUT-ONCE"


class BaseDrift(OncewardError):
    code = "BASE_DRIFT"


class RequestConflict(OncewardError):
    code = "URM_IDEMPOTENCY_KEY_CONFLICT"


class StoredError(OncewardError):
    """An error another process recorded as the answer to our request, raised again here."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(
            document["message"],
            context=document.get("context"),
            recovery=[
                Recovery(r["action"], r.get("command"), r["risk"])
                for r in document.get("recovery", ())
            ],
        )
        self.code = document["code"]  # type: ignore[misc]
