# SPDX-License-Identifier: Apache-2.0
"""Writing files so that what is there is whole: temporary file, flush to disk, rename."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def atomic_write(path: Path, body: bytes | str) -> None:
    """Write a file completely or not at all.

    Raises:
        OSError: the disk is full or the folder is not writable; the old file is untouched.
    """
    data = body.encode() if isinstance(body, str) else body
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_dir(kind: str) -> Path:
    """The user's cache folder for one kind of thing (``BITWRIGHT_CACHE`` overrides the root)."""
    root = os.environ.get("BITWRIGHT_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = (base if root else base / "bitwright") / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder
