"""Target locks and the identity of processes. `TargetLock` is usable on its own."""

from onceward.locks.claims import Claim, TargetLocked
from onceward.locks.target import TargetLock
from onceward.locks.watch import Popened, watch_and_release

__all__ = ["Claim", "Popened", "TargetLock", "TargetLocked", "watch_and_release"]
