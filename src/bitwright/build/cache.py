# SPDX-License-Identifier: Apache-2.0
"""Results of slow tools, kept by the hash of everything they depend on.

An entry is a folder that appears by a rename, with the hash of each file inside: an entry that is
not whole, or was changed, is dropped and made again. The cache never makes a build fail: when it
cannot be written the result is simply not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from bitwright.base.files import cache_dir, sha256_file

_MAX_BYTES = 4 << 30
_INDEX = "entry.json"


def content_key(parts: Iterable[str | bytes]) -> str:
    """SHA-256 over a sequence of texts; the parts are separated by their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def fetch(kind: str, key: str, out_dir: Path) -> dict[str, float] | None:
    """Copy an entry's files into a folder.

    Args:
        kind: what sort of result ("yosys"); a folder of the cache.
        key: from :func:`content_key`.
        out_dir: where the files go; made if missing.

    Returns:
        The figures kept with the entry (seconds, memory), or None when there is no whole entry.

    Raises:
        OSError: ``out_dir`` cannot be written.
    """
    try:
        folder = _entry(kind, key)
    except OSError:
        return None  # no cache here
    index = _read_index(folder)
    if index is None:
        return None
    files, figures = index
    for name, digest in files.items():
        if not (folder / name).is_file() or sha256_file(folder / name) != digest:
            shutil.rmtree(folder, ignore_errors=True)
            return None
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in files:
        shutil.copyfile(folder / name, out_dir / name)
    os.utime(folder / _INDEX)  # the least recently used go first
    return figures


def keep(kind: str, key: str, files: Iterable[Path], figures: Mapping[str, float]) -> bool:
    """Keep files under a key; they are stored by their names.

    Returns:
        Whether they are kept now; False when the cache cannot be written.
    """
    try:
        return _keep(_entry(kind, key), list(files), figures)
    except OSError:
        return False


def _keep(folder: Path, files: list[Path], figures: Mapping[str, float]) -> bool:
    if folder.is_dir():
        return True
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        hashes = {}
        for path in files:
            shutil.copyfile(path, temporary / path.name)
            hashes[path.name] = sha256_file(temporary / path.name)
        index = json.dumps({"files": hashes, "figures": dict(figures)})
        (temporary / _INDEX).write_text(index)
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        return folder.is_dir()  # another process kept the same entry first
    _prune(folder.parent, folder)
    return True


def _entry(kind: str, key: str) -> Path:
    return cache_dir("build-" + kind) / key


def _read_index(folder: Path) -> tuple[dict[str, str], dict[str, float]] | None:
    try:
        index = json.loads((folder / _INDEX).read_text())
        return dict(index["files"]), dict(index["figures"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _prune(root: Path, newest: Path, limit: int = _MAX_BYTES) -> None:
    """Drop the entries used longest ago until the rest is below the limit."""
    entries = []
    for folder in root.iterdir():
        index = folder / _INDEX
        if index.is_file() and folder != newest:
            size = sum(file.stat().st_size for file in folder.iterdir())
            entries.append((index.stat().st_mtime, size, folder))
    total = sum(size for _, size, _ in entries) + sum(f.stat().st_size for f in newest.iterdir())
    for _, size, folder in sorted(entries, key=lambda entry: entry[0]):
        if total <= limit:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
