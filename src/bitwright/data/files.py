# SPDX-License-Identifier: Apache-2.0
"""Files under the data sets: reading, the cache, checked downloads."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, cache_dir, regular_bytes
from bitwright.base.ownership import others_may_write
from bitwright.base.progress import Progress, no_progress

_CHUNK = 1 << 16
_TIMEOUT_S = 30
_MOST_KEPT = 1 << 30


def cache_path(kind: str, name: str) -> Path:
    """A file in the user's cache folder.

    Raises:
        DataError: the folder cannot be made.
    """
    try:
        return cache_dir(kind) / name
    except OSError as error:
        raise DataError(
            f"the cache folder cannot be made: {error.strerror or error}",
            where=str(error.filename),
            hint="name a writable folder with BITWRIGHT_CACHE",
        ) from error


def download(
    urls: Sequence[str],
    target: Path,
    sha256: str,
    *,
    unpack: Callable[[bytes, str], bytes] | None = None,
    progress: Progress = no_progress,
) -> Path:
    """Fetch a file once, check it and keep it whole.

    Args:
        urls: mirrors, tried in this order.
        target: where to keep it; returned at once when it is already there and only this user
            could put it there. What others could is checked again.
        sha256: of the content, after ``unpack`` if given.
        unpack: turns the file's bytes (and its name, for errors) into the bytes to check.

    Raises:
        DataError: no mirror gave a file with this checksum, or it cannot be written; or the one
            that is there, where others may write, has another.
    """
    if target.is_file():
        if reason := others_may_write(target):
            _check_kept(target, sha256, unpack, reason)
        return target
    failures: list[str] = []
    for url in urls:
        try:
            content = _fetch(url, progress)
            digest = hashlib.sha256(unpack(content, url) if unpack else content).hexdigest()
        except (OSError, urllib.error.URLError, DataError) as error:
            failures.append(f"{url}: {error}")
            continue
        if digest != sha256:
            failures.append(f"{url}: SHA-256 is {digest}, expected {sha256}")
            continue
        try:
            atomic_write(target, content)
        except OSError as error:
            raise DataError(
                f"cannot be written: {error.strerror or error}",
                where=str(target),
                hint="free some disk space, or name another cache folder with BITWRIGHT_CACHE",
            ) from error
        return target
    raise DataError(
        "download failed: " + "; ".join(failures),
        where=target.name,
        hint="check the network, or put the files in a folder and name it with --data or "
        "BITWRIGHT_DATA",
    )


def _check_kept(
    target: Path, sha256: str, unpack: Callable[[bytes, str], bytes] | None, reason: str
) -> None:
    content = regular_bytes(target, _MOST_KEPT)
    digest = hashlib.sha256(unpack(content, target.name) if unpack else content).hexdigest()
    if digest != sha256:
        raise DataError(
            f"its SHA-256 is {digest}, expected {sha256}; others may have put it there: {reason}",
            where=str(target),
            hint="remove it, or name a cache folder of your own with BITWRIGHT_CACHE",
        )


def _fetch(url: str, progress: Progress) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "bitwright"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
        total = int(reply.headers.get("Content-Length") or 0)
        content = bytearray()
        while chunk := reply.read(_CHUNK):
            content += chunk
            progress(f"downloading {url.rsplit('/', 1)[-1]}", len(content), total)
    if total and len(content) != total:
        raise OSError(f"got {len(content)} of {total} bytes")
    return bytes(content)
