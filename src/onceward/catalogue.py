"""Every act and every part of the engine: whoever answers or judges requests, or is a kernel, imports this first."""

from __future__ import annotations

from onceward.builds import acts as _builds
from onceward.builds import recovery as _build_recovery
from onceward.changes import acts as _changes
from onceward.changes import staging as _staging
from onceward.core.acts import REGISTRY
from onceward.dispatch import acts as _dispatch
from onceward.evidence import acts as _evidence
from onceward.grants import acts as _grants
from onceward.kernel import acts as _kernel
from onceward.kernel.parts import PARTS
from onceward.people import acts as _people
from onceward.registry import acts as _registry
from onceward.sagas import acts as _sagas

ACTS = (_builds, _dispatch, _sagas, _grants, _registry, _changes, _kernel, _people, _evidence)
REGISTRY.close()
PARTS.register(_build_recovery.PART, _staging.PART)
