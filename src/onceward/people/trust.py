"""Where trust in a workspace begins: the key of whoever founded it, noted on this machine when
it first came here. Every other key and role follows from it by signed acts; a history that
begins with another key is somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from onceward.core.durable import replace
from onceward.errors import IntegrityFault, InvalidConfig, Recovery

FILE: Final = "trust.json"


class Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workspace that this folder belongs to, and the fingerprint of its first key."""

    workspace: str
    key: str


def require_root(folder: Path, found: Root) -> None:
    """The history begins where it began when this machine first saw it; a folder that has seen
    none notes it."""
    path = folder / FILE
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Root)
    except FileNotFoundError:
        _note(path, found)
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidConfig(
            f"cannot read {path}, which says where trust in this workspace begins: {error}",
            context={"file": str(path)},
            recovery=[Recovery("bring it back from a backup, or remove it if you trust the store")],
        ) from None
    if known != found:
        raise IntegrityFault(
            f"the history of this workspace begins with the key {found.key[:16]}, and began with {known.key[:16]} when this"
            " machine first saw it: it was replaced",
            context={"rule": "key", "file": str(path)},
            recovery=[
                Recovery("see what else was edited", "onceward verify"),
                Recovery(f"if you put another store here yourself, remove {path}"),
            ],
        )


def _note(path: Path, root: Root) -> None:
    replace(path, msgspec.json.encode(root), aside=path.with_suffix(".new"))
