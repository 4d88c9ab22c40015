# SPDX-License-Identifier: Apache-2.0
"""Writing files so that what is there is whole: temporary file, flush to disk, rename; locks."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from bitwright.base.errors import DataError, RunError
from bitwright.base.folders import entries_below, make_folder
from bitwright.base.regular import held_bytes, open_regular

T = TypeVar("T")
_CHUNK = 1 << 20
_MOST_LEVELS = 100  # lists and tables inside each other: a nested model of Keras takes some twenty
_TOO_DEEP = f"it is nested deeper than {_MOST_LEVELS} levels"
_NAME_BYTES = 100  # of a file's name that its temporary file bears
_MOST_PARTS = 32  # of a key of TOML: ``a.b.c`` has three
#: What may have signs in it that mean nothing: texts of four kinds, and comments. One without an
#: end goes as far as it can: if it were none, its end would be looked for again from each sign.
_TOML_TEXTS = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\\?\Z)|"(?:[^"\\\n]|\\.)*"?'
    r"|'''.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
_TOML_SIGNS = re.compile(r"[=,\[\]{}\n]")  # between two of them lies one key or one value
MOST_TEXT = 64 << 20
"""Bytes of a description that are read: of a design, of a run, of what came of a step."""
MOST_DATA = 1 << 30
"""Bytes of any other file that is read at once, where its reader knows no better: a file may say
that it has terabytes, and take no place on the disk."""
MOST_VALUES = 1_000_000
"""Values of a description, lists and tables among them: each takes some ten times what it takes in
the file, and a thousand bytes where it is wrong and told so."""
_NAMED = 6  # names of a folder that a message lists


def atomic_write(path: Path, body: bytes | str) -> None:
    """Write a file completely or not at all.

    Raises:
        OSError: the disk is full or the folder is not writable; it names the file. The old one is
            untouched, unless the disk fails after the new one has taken its name.
    """
    _write(path, lambda file: file.write(body.encode() if isinstance(body, str) else body))


def atomic_copy(source: Path, path: Path) -> None:
    """The same with what is in another file: one that a library wrote, by its name and by others
    beside it, in a folder where nobody else puts anything under these names.

    Raises:
        OSError: as `atomic_write`; the source cannot be read.
    """
    with open_regular(source) as stream:
        _write(path, lambda file: shutil.copyfileobj(stream, file, _CHUNK))


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    make_folder(path.parent)
    start = os.fsencode(path.name)[:_NAME_BYTES].decode(errors="ignore")  # no half characters
    temporary = path.with_name(f".{start}.{secrets.token_hex(6)}")
    try:
        # Not mkstemp, whose files are the owner's alone: the kernel takes off what umask says, and
        # to ask for that, it must be changed for a moment, for all threads.
        with open(temporary, "xb", opener=_opener) as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_entries(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # the kernel names no file that is open, or the one beside
            error.filename, error.filename2 = str(path), None
            if error.errno == errno.ENOENT:  # though its folder is there: /proc, say
                error.errno, error.strerror = errno.EROFS, "no file can be made here"
        raise


def check_free(
    path: Path, *, force: bool = False, what: str = "", but: Container[str] = ()
) -> None:
    """Refuse to write where something is, unless it may be replaced; an empty folder is nothing.

    Args:
        force: replace it, as the option of that name says.
        what: it is, if the caller knows.
        but: names in a folder that are nothing, the caller's lock, say.

    Raises:
        RunError: names what is there.
    """
    if force or not (path.exists() or path.is_symlink()):
        return
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.name not in but)
        if not names:
            return
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        found = f"{what or 'holds'} {', '.join(names[:_NAMED])}{more}"
    else:
        found = what or f"a file of {path.stat().st_size} bytes" if path.exists() else "a link"
    raise RunError(
        f"exists already: {found}",
        where=str(path),
        hint="name another place, or replace what is there with --force (force=True in Python)",
    )


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def flush_entries(folder: Path) -> None:
    """Flush the names in a folder to disk: what was renamed into it stays there."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # files may be put into it, but nobody may list it: the system will
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(handle)


def held_size(path: Path) -> int:
    """Bytes of a file, without its holes (`held_bytes`); see `open_regular`, after which a library
    may open it by its name.
    """
    with open_regular(path) as file:
        return held_bytes(file.fileno())


def file_inside(folder: Path, name: str) -> Path:
    """The file in a folder, or below it, that a file of a stranger names; links are followed.

    Raises:
        ValueError: it would lie elsewhere, or cannot be a name. Nobody learns whether it exists.
        OSError: there is no such file.
    """
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError):  # links that lead to each other
        raise ValueError(f"{name!r:.80} leads nowhere") from None
    if not path.is_relative_to(root):
        raise ValueError(f"{name!r:.80} lies outside {folder}")
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path


def read_bytes(path: Path, *, hint: str | None = None, most: int = MOST_DATA) -> bytes:
    """The content of a file.

    Args:
        most: bytes that it may have.

    Raises:
        DataError: it is missing, no regular file, cannot be read, or is longer.
    """
    try:
        return regular_bytes(path, most)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DataError(f"has more than {most} bytes", where=str(path), hint=hint) from error
        reason = error.strerror or error
        raise DataError(f"cannot be read: {reason}", where=str(path), hint=hint) from error


def regular_bytes(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a file of whatever origin, for those who say themselves what is wrong.

    Raises:
        OSError: it is missing, no regular file, cannot be read, or is longer.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(size + 1)
        # Files of /proc have no size but a content, and any file may grow meanwhile.
        content += b"" if size > most else read_most(file, most - len(content))
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def read_most(stream: IO[bytes], most: int) -> bytes:
    """What is left of a stream, or one byte more than ``most``; memory is taken as bytes come."""
    parts, left = [], most + 1
    while left > 0 and (part := stream.read(min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_text(path: Path, *, hint: str | None = None, most: int = MOST_TEXT) -> str:
    """The text of a UTF-8 file; see `read_bytes`.

    Raises:
        DataError: it is missing, cannot be read, or is no text.
    """
    try:
        return read_bytes(path, hint=hint, most=most).decode("utf-8")
    except UnicodeDecodeError as error:
        what = "cannot be read: it is no text in UTF-8"
        raise DataError(what, where=str(path), hint=hint) from error


def check_values(text: str | bytes, most: int = MOST_VALUES) -> None:
    """Refuse a text of more values than any description has, before it is parsed.

    Raises:
        ValueError: it has commas and brackets for more than ``most`` (those within texts, too).
    """
    if len(text) <= most:
        return
    if isinstance(text, str):
        found = sum(text.count(sign) for sign in ",[{=")
    else:
        found = sum(text.count(sign) for sign in (b",", b"[", b"{"))
    if found > most:
        raise ValueError(f"it has more than {most} values")


def parse_json(text: str | bytes, most: int = MOST_VALUES) -> Any:
    """A JSON value.

    Args:
        most: values that it may have, those inside of others included.

    Raises:
        ValueError: the text is none, has more values, or is nested deeper than any description is:
            whoever walks through the value, to write it again say, needs a frame or more for each
            level.
    """
    check_values(text, most)
    try:
        return _flat(json.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def json_text(value: Any, **options: Any) -> str:
    """A value as JSON, which knows neither NaN nor infinity: null stands for floats that are.

    Args:
        options: of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json_start(text: str) -> tuple[Any, int]:
    """The JSON value that a text begins with, and where it ends; takes time with its length.

    Raises:
        ValueError: as `parse_json`.
    """
    try:
        value, end = json.JSONDecoder().raw_decode(text)
        return _flat(value), end
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text.

    Raises:
        ValueError: the text is none, has keys of more than `_MOST_PARTS` parts or integers of more
            than 64 bits (which TOML does not promise), or is nested deeper than `_MOST_LEVELS`.
    """
    check_values(text)
    plain = _TOML_TEXTS.sub(lambda match: "" if match[0].startswith("#") else "_", text)
    # Python's parser takes time and memory with the square of the parts of a key.
    if any(part.count(".") >= _MOST_PARTS for part in _TOML_SIGNS.split(plain)):
        raise ValueError(f"a key has more than {_MOST_PARTS} parts")
    try:
        return dict(_flat(tomllib.loads(text), check=_small))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _small(value: object) -> None:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer has more than 64 bits")


def _flat(value: Any, check: Callable[[object], None] | None = None) -> Any:
    """The value itself, if it is not nested too deep.

    Args:
        check: called with everything inside.
    """
    level = [value]
    for _ in range(_MOST_LEVELS + 1):
        inside = (v.values() if isinstance(v, dict) else v for v in level if _is_nest(v))
        level = []
        for inner in (inner for values in inside for inner in values):
            if _is_nest(inner):
                level.append(inner)
            elif check is not None:
                check(inner)
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def _is_nest(value: object) -> bool:
    return isinstance(value, dict | list)


def write_records(path: Path, records: Iterable[Mapping[str, object]], what: str) -> None:
    """Write one JSON object a line, all of them or none.

    Args:
        what: it is, for the message: ``metrics``.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        atomic_write(path, "".join(json.dumps(dict(record)) + "\n" for record in records))
    except OSError as error:
        raise DataError(
            f"{what} cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free some disk space and run again: finished epochs are kept",
        ) from error


def read_records(path: Path, made: Callable[[dict[str, Any]], T], hint: str) -> tuple[T, ...]:
    """Read what `write_records` wrote.

    Args:
        made: makes something of each record; `ValueError` or `TypeError` if it is none.
        hint: what to do if the file cannot be read.

    Raises:
        DataError: the file is missing or no such file.
    """
    try:
        if (text := read_text(path, hint=hint)).count("\n") > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} lines")
        return tuple(made(_record(line)) for line in text.splitlines())
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {reason}", where=str(path), hint=hint) from error


def _record(line: str) -> dict[str, Any]:
    record = parse_json(line)
    if not isinstance(record, dict):
        raise ValueError("a line is no JSON object")
    return record


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(folder: Path) -> None:
    """Flush all files of a folder to disk, so that an index never outlives what it vouches for."""
    flush_entries(folder)
    for entry in entries_below(folder):
        if entry.is_dir(follow_symlinks=False):
            flush_entries(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                os.fsync(file.fileno())


def cache_root() -> Path:
    """The user's cache folder; ``BITWRIGHT_CACHE`` names another."""
    root = os.environ.get("BITWRIGHT_CACHE")
    if root:
        return Path(root)
    try:
        place = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir(), f"bitwright-{os.getuid()}")
    return Path(place, "bitwright")


def cache_dir(kind: str) -> Path:
    """The part of the user's cache folder for one kind of thing, made if need be."""
    folder = cache_root() / kind
    make_folder(folder)
    return folder
