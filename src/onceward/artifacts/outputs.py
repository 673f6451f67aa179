"""Outputs of steps and how later steps get them: values and files, always by content."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts, Blob
from onceward.artifacts.redaction import Redactor
from onceward.artifacts.values import to_json
from onceward.core.steps import Output, check_target_name
from onceward.core.text import text_of
from onceward.errors import (
    IntegrityFault,
    InvalidConfig,
    MalformedOutput,
    OncewardError,
    StorageError,
)

Kept = tuple[Output, Blob]
IN_DOUBT = "in_doubt"
"""The kind of what a step left and what cannot be taken as its outputs."""
VALUES = {"json": "value.json", "text": "value.txt", "bytes": "value.bin"}
"""The name of a value that a step returned."""
_MOST = 10_000
_LONGEST_REPR = 1_000_000
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class Encoded(msgspec.Struct, frozen=True):
    """A value that was encoded where it was made, in another process."""

    kind: str
    data: bytes


class Unrecordable(msgspec.Struct, frozen=True):
    """What a step returned in another process, where it cannot be recorded: how it shows itself, and what of it can be
    kept."""

    why: str
    shown: bytes
    parts: Mapping[str, Encoded | Path] = {}


class Keeper:
    """Makes what a step leaves durable, without the secrets it knew."""

    def __init__(self, artifacts: Artifacts, redactor: Redactor | None = None) -> None:
        self._artifacts, self._redactor = artifacts, redactor

    def everything(self, value: Any, out: Path | None) -> list[Kept]:
        """What a function returned and what it left in its folder, by name."""
        kept = self.value(value)
        if out is not None:
            values = value.values() if isinstance(value, Mapping) else [value]
            returned = {item.absolute() for item in values if isinstance(item, Path)}
            kept += self.folder(out, returned)
        return _by_name(kept)

    def value(self, value: Any) -> list[Kept]:
        """What a function returned: a JSON value, text, bytes, a file, or several of these by
        name."""
        if value is None:
            return []
        if isinstance(value, Path):
            return [self._file(_name(value.name), "path", value)]
        if isinstance(value, Unrecordable):
            raise MalformedOutput(value.why)
        if isinstance(value, Mapping) and any(
            isinstance(item, bytes | Path | Encoded) for item in value.values()
        ):
            return [self._named(name, item) for name, item in value.items()]
        kind, data = encoded(value)
        return [self._bytes(VALUES[kind], kind, data)]

    def folder(self, folder: Path, but: Set[Path] = frozenset()) -> list[Kept]:
        """Every file left in a folder, by its path in it."""
        if folder.is_symlink() or not folder.is_dir():
            raise MalformedOutput(
                "the step removed or replaced the folder for its outputs (ONCEWARD_OUT)"
            )
        found = []
        for path in _files(folder):
            if path not in but:
                found.append(
                    self._file(_name(path.relative_to(folder).as_posix()), _kind(path), path)
                )
            if len(found) > _MOST:
                raise MalformedOutput(f"a step may leave {_MOST} files, and this one left more")
        return _by_name(found)

    def aside(self, value: Any, out: Path | None) -> list[Kept]:
        """What a step left although it cannot be taken as its outputs, whatever its size, type
        and names: for a person to look at. Nothing of it is lost but what is neither value, file
        nor link."""
        kept: list[Kept] = []
        if isinstance(value, Unrecordable):
            kept.append(self._aside_bytes("value.repr", value.shown))
            for name, part in value.parts.items():
                kept += self._aside_part(name, part)
        elif value is not None:
            kept.append(self._aside_bytes("value.repr", shown_as(value)))
            # By its type: what its own methods say of it cannot be relied on.
            whole = [("value", value)]
            parts = dict.items(value) if issubclass(type(value), dict) else whole
            for name, part in parts:
                kept += self._aside_part(text_of(name), part)
        if out is not None and out.is_dir() and not out.is_symlink():
            for path in sorted(out.rglob("*")):
                kept += self._aside_path(path.relative_to(out).as_posix(), path)
        return [
            (msgspec.structs.replace(output, name=f"{IN_DOUBT}/{number:04d}-{output.name}"), blob)
            for number, (output, blob) in enumerate(kept, 1)
        ]

    def _aside_part(self, name: str, part: Any) -> list[Kept]:
        if issubclass(type(part), Path):
            return self._aside_path(name, part)
        try:
            kind, data = encoded(part)
        except BaseException:
            return []
        return [self._aside_bytes(f"{name}{Path(VALUES[kind]).suffix}", data)]

    def _aside_path(self, name: str, path: Path) -> list[Kept]:
        try:
            if path.is_symlink():
                link = os.fsencode(path.readlink())
                return [self._aside_bytes(f"{name}.link", link)]
            if not path.is_file():
                return []
            blob = self._artifacts.keep_file(path, self._redactor, limited=False)
        except (OSError, OncewardError):
            # What cannot be read is named by its repr, or not at all.
            return []
        return [(Output(self._plain_name(name), IN_DOUBT, blob.sha256, blob.size), blob)]

    def _aside_bytes(self, name: str, data: bytes) -> Kept:
        clean = self._redactor.clean(data) if self._redactor else data
        blob = self._artifacts.keep(clean, limited=False)
        return Output(self._plain_name(name), IN_DOUBT, blob.sha256, blob.size), blob

    def _plain_name(self, name: str) -> str:
        """A name that is safe anywhere, whatever the step called it."""
        return _UNSAFE.sub("_", self._shown(name))[-80:]

    def _named(self, name: object, item: Any) -> Kept:
        if isinstance(item, Path):
            return self._file(_name(name), _kind(item), item)
        kind, data = encoded(item)
        return self._bytes(_name(name), kind, data)

    def _bytes(self, name: str, kind: str, data: bytes) -> Kept:
        blob = _fitting(
            name,
            lambda: self._artifacts.keep(self._redactor.clean(data) if self._redactor else data),
        )
        return Output(self._shown(name), kind, blob.sha256, blob.size), blob

    def _shown(self, name: str) -> str:
        """A name, without the secrets in it."""
        return self._redactor.text(name) if self._redactor else name

    def _file(self, name: str, kind: str, path: Path) -> Kept:
        if path.is_symlink() or not path.is_file():
            raise MalformedOutput(f"the output {name} is no file: {path}", context={"output": name})
        try:
            path.open("rb").close()
        except OSError as error:
            raise MalformedOutput(f"the output {name} cannot be read: {error.strerror}") from None
        blob = _fitting(name, lambda: self._artifacts.keep_file(path, self._redactor))
        return Output(self._shown(name), kind, blob.sha256, blob.size), blob


def _kind(path: Path) -> str:
    """`program` for an executable file, so that it stays executable; else `file`."""
    return "program" if path.is_file() and path.stat().st_mode & 0o100 else "file"


def encoded(value: Any) -> tuple[str, bytes]:
    """A value's kind and bytes: the same value, the same bytes."""
    if isinstance(value, Encoded):
        return value.kind, value.data
    if isinstance(value, bytes | bytearray):
        return "bytes", bytes(value)
    try:
        if isinstance(value, str):
            return "text", value.encode()
        text = json.dumps(
            to_json(value),
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
        )
        return "json", text.encode()
    except Exception as error:
        # Whatever a value of somebody's own class raises while it is looked at says the same.
        raise MalformedOutput(
            f"what the step returned cannot be recorded: {_told(error)}. A step returns a JSON value,"
            " str, bytes, a Path, an object with fields (dataclass, pydantic), or a dict that names"
            " several of these"
        ) from None


def shown_as(value: Any) -> bytes:
    """How a value shows itself, whatever its class does then."""
    try:
        text = repr(value)[:_LONGEST_REPR]
    except BaseException:
        text = f"a {type(value).__name__} that cannot be shown"
    return text.encode("utf-8", "backslashreplace")


def _told(error: Exception) -> str:
    try:
        return str(error)[:500]
    except Exception:
        return type(error).__name__


def _fitting(name: str, keep: Any) -> Blob:
    try:
        blob: Blob = keep()
        return blob
    except InvalidConfig as error:
        raise MalformedOutput(
            f"the output {name} cannot be kept: {error.message}", context=error.context
        ) from None


def _name(name: object) -> str:
    try:
        return check_target_name(name)
    except InvalidConfig:
        raise MalformedOutput(
            f"{str(name)[:60]!a} is no name for an output: it must make a safe relative path"
        ) from None


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder by name; anything else there is refused, for nobody could give it
    back."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _files(path)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise MalformedOutput(
                f"the output {entry.name} is neither file nor folder",
                context={"output": entry.name},
            )


def written(outputs: Sequence[Output]) -> str:
    """Outputs as a checkpoint holds them, by name."""
    return msgspec.json.encode([[o.name, o.kind, o.sha256, o.size] for o in outputs]).decode()


def read_back(text: str) -> tuple[Output, ...]:
    return tuple(Output(*row) for row in msgspec.json.decode(text))


def _by_name(kept: Sequence[Kept]) -> list[Kept]:
    """In order; two of one name are a mistake of the step."""
    found = sorted(kept, key=lambda pair: pair[0].name)
    names = [output.name for output, _ in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedOutput(
            f"the step left two outputs called {twice}", context={"output": twice}
        )
    known = set(names)
    for name in names:
        above = name.rpartition("/")[0]
        while above:
            if above in known:
                raise MalformedOutput(
                    f"the output {name} would lie inside the output {above}",
                    context={"output": name},
                )
            above = above.rpartition("/")[0]
    return found


def fetch(artifacts: Artifacts, output: Output, place: Path) -> Path:
    """An output as a file of its own, verified while it is copied."""
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with place.open("xb") as file:
            for piece in artifacts.read(output.sha256):
                file.write(piece)
        place.chmod(0o500 if output.kind == "program" else 0o400)
    except (FileExistsError, NotADirectoryError):
        raise MalformedOutput(
            f"the input {place.name} cannot be laid out beside the others"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot lay out the input {place.name}: {error.strerror}") from error
    return place


def value_of(artifacts: Artifacts, outputs: Sequence[Output], place: Path | None) -> Any:
    """What a step left, as Python sees it: the value it returned, or what it left by name. Files
    are laid out in `place`; without one their bytes stand for them."""
    if not outputs:
        return None
    if len(outputs) == 1 and (
        outputs[0].kind == "path" or outputs[0].name == VALUES.get(outputs[0].kind)
    ):
        return _one(artifacts, outputs[0], place)
    return {output.name: _one(artifacts, output, place) for output in outputs}


def _one(artifacts: Artifacts, output: Output, place: Path | None) -> Any:
    if place is not None and output.kind in ("file", "path", "program"):
        path = place / output.name
        return path if path.exists() else fetch(artifacts, output, path)
    data = b"".join(artifacts.read(output.sha256))
    try:
        if output.kind == "json":
            return json.loads(data)
        return data.decode() if output.kind == "text" else data
    except ValueError as error:
        raise IntegrityFault(
            f"the output {output.name} is no {output.kind} any more: {error}"
        ) from None
