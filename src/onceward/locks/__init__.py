"""Who holds what: target locks, and the identity of processes. `TargetLock` is usable on its own."""

from onceward.locks.claims import Claim, TargetLocked
from onceward.locks.target import TargetLock

__all__ = ["Claim", "TargetLock", "TargetLocked"]
