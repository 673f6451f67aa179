"""Which kind of filesystem a path is on: SQLite and file locks are not safe on a network."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NETWORK = re.compile(
    r"(nfs\d*|cifs|smb\d*|smbfs|9p|afs|ceph|lustre|gpfs|ocfs2|gfs2?|glusterfs|beegfs|ncpfs|davfs"
    r"|fuse\.(sshfs|s3fs|glusterfs|ceph|rclone|davfs2|cephfs|gcsfuse|goofys))"
)


def is_network(kind: str) -> bool:
    return _NETWORK.fullmatch(kind) is not None


def filesystem_of(path: Path, mounts: str | None = None) -> str:
    """The type of the filesystem that holds `path`, or `unknown` where the system does not tell."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return "unknown"
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        mount = _unescape(fields.split()[4])
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, rest.split()[0]
    return kind


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
