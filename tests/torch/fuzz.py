# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile files for every reader, made from real ones; run by itself, in a process.

    python -m tests.torch.fuzz FOLDER COUNT SEED [READER ...]
    python -m tests.torch.fuzz FOLDER hostile

What no reader may do is written to FOLDER/findings.jsonl, with the file: raise anything but a
`BitwrightError`, let numbers overflow, take longer than `SECONDS` of the processor, or hold more
than `BYTES` more than before. What it prints is a line of JSON a reader, see `Watch.said`.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tarfile
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.torch import hostile_files
from tests.torch.fuzz_readers import READERS, Reader

from bitwright.base.errors import BitwrightError

SECONDS, BYTES = 10.0, 2 << 30
_WAITING = 20  # times as long on the clock, where other programs want the processor
_NUMBERS = (b"-1", b"0", b"1e999", b"NaN", b"4294967296", b"99999999999999999999999", b"1e-400")
_WORDS = (
    b"\x00", b"\xff", b"\n", b"\r", b"'", b'"', b"\\", b"../", b"{", b"[", b"]", b"}", b"null",
    b"<", b"&", b"*", b"- ", b": ", b"/dev/zero", b"\xe2\x80\xae", b"\x1b[2J", b"os:system",
)  # fmt: skip
_VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1 << 31, 1 << 63, 10**30, 0.5, -1e308, float("nan"), float("inf"),
    "", "0", "x", "../x", "/dev/zero", "os:system", "\x00", "\u202e", "a" * 100_000,
    [], {}, [None], [[]], [0] * 5000, {"": None},
    {"name": "os:system", "options": {"command": "x"}},
)  # fmt: skip
_INTEGERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40)


def mutated(body: bytes, rng: random.Random) -> bytes:
    """A few changes, each of a random kind."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        body = rng.choice(_CHANGES)(body, rng)
    return body


def _flip(body: bytes, rng: random.Random) -> bytes:
    found = bytearray(body)
    if found:
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _span(body: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(body) + 1)
    return start, min(len(body), start + rng.choice((1, 2, 4, 16, 64, 512)))


def _drop(body: bytes, rng: random.Random) -> bytes:
    start, end = _span(body, rng)
    return body[:start] + body[end:]


def _repeat(body: bytes, rng: random.Random) -> bytes:
    start, end = _span(body, rng)
    return body[:end] + body[start:end] * rng.choice((1, 2, 50, 1000)) + body[end:]


def _copy(body: bytes, rng: random.Random) -> bytes:
    (start, end), to = _span(body, rng), rng.randrange(len(body) + 1)
    return body[:to] + body[start:end] + body[to:]


def _integer(body: bytes, rng: random.Random) -> bytes:
    size, place = rng.choice((1, 2, 4, 8)), rng.randrange(len(body) + 1)
    value = (rng.choice(_INTEGERS) + rng.randrange(-2, 3)) % (1 << 8 * size)
    return body[:place] + value.to_bytes(size, rng.choice(("big", "little"))) + body[place + size :]


def _number(body: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", body))
    if not found:
        return _integer(body, rng)
    match = rng.choice(found)
    return body[: match.start()] + rng.choice(_NUMBERS) + body[match.end() :]


def _word(body: bytes, rng: random.Random) -> bytes:
    start, end = _span(body, rng)
    return body[:start] + rng.choice(_WORDS) * rng.choice((1, 1, 3, 5000)) + body[end:]


def _swap(body: bytes, rng: random.Random) -> bytes:
    """Two words of a text in each other's place."""
    found = list(re.finditer(rb"[\w.:-]+", body))
    if len(found) < 2:
        return _copy(body, rng)
    one, other = sorted(rng.sample(found, 2), key=lambda match: match.start())
    middle = body[one.end() : other.start()]
    return body[: one.start()] + other[0] + middle + one[0] + body[other.end() :]


def _branch(body: bytes, rng: random.Random) -> bytes:
    """JSON in which one value, of any depth, is another, is gone, or has another key."""
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        return _swap(body, rng)
    places: list[tuple[Any, Any]] = [([tree], 0)]
    for holder, key in places:
        value = holder[key]
        if isinstance(value, dict | list):
            keys = value if isinstance(value, dict) else range(len(value))
            places += [(value, each) for each in keys]
    holder, key = rng.choice(places[1:] or places)
    if isinstance(holder, dict) and rng.random() < 0.3:
        value = holder.pop(key)
        if rng.random() < 0.5:
            holder[rng.choice(("", "name", "../x", "os:system", "x" * 5000))] = value
    elif rng.random() < 0.3:
        other, place = rng.choice(places)
        if place in other or isinstance(other, list):
            holder[key] = copy.deepcopy(other[place])
    else:
        holder[key] = rng.choice(_VALUES)
    return json.dumps(tree).encode()


_CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _flip, _cut, _drop, _repeat, _copy, _integer, _integer, _number, _number, _word, _swap,
    _branch, _branch,
)  # fmt: skip


def mutant(body: bytes, name: str, rng: random.Random) -> bytes:
    """A file damaged from outside, or from inside: what it holds changed, and packed as before."""
    inside = _INSIDE.get(name.rpartition(".")[2])
    if inside is not None and rng.random() < 0.7:
        with suppress(zipfile.BadZipFile, tarfile.TarError, OSError, EOFError, struct.error):
            return inside(body, rng)
    return mutated(body, rng)


def _in_zip(body: bytes, rng: random.Random) -> bytes:
    packed, out = zipfile.ZipFile(io.BytesIO(body)), io.BytesIO()
    target = rng.choice(packed.namelist())
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as made:
        for member in packed.namelist():
            content = packed.read(member)
            if member == target:
                if rng.random() < 0.1:
                    continue
                content = mutated(content, rng)
            made.writestr(member, content)
    return out.getvalue()


def _in_gzip(body: bytes, rng: random.Random) -> bytes:
    return gzip.compress(mutated(gzip.decompress(body), rng), 1)


def _in_safetensors(body: bytes, rng: random.Random) -> bytes:
    """The header, with the length that it has now."""
    length = int.from_bytes(body[:8], "little")
    head = mutated(body[8 : 8 + length], rng)
    return len(head).to_bytes(8, "little") + head + body[8 + length :]


def _in_packed(body: bytes, rng: random.Random) -> bytes:
    """The header with its length, or the numbers; with the checksum that they have now."""
    length = int.from_bytes(body[4:8], "little")
    head, rest = body[8 : 8 + length], body[8 + length : -4]
    if rng.random() < 0.8:
        head = mutated(head, rng)
    else:
        rest = mutated(rest, rng)
    made = body[:4] + len(head).to_bytes(4, "little") + head + rest
    return made + zlib.crc32(made).to_bytes(4, "little")


def _in_program(body: bytes, rng: random.Random) -> bytes:
    """The table with its length, or instructions and constants; with the digest they have now."""
    length = int.from_bytes(body[12:16], "little")
    table, rest = body[48 : 48 + length], body[48 + length :]
    if rng.random() < 0.5:
        table = mutated(table, rng)
    else:
        rest = mutated(rest, rng)
    digest = hashlib.sha256(table + rest).digest()
    return body[:12] + len(table).to_bytes(4, "little") + digest + table + rest


_INSIDE = {
    "zip": _in_zip, "bwg": _in_zip, "keras": _in_zip, "pt": _in_zip, "gz": _in_gzip,
    "safetensors": _in_safetensors, "bwq": _in_packed,
    "bwe": _in_program,
}  # fmt: skip


class TooLong(BaseException):
    """A reader's time is up; no error that it could take for its own."""


@contextmanager
def _limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooLong

    # Of the processor, which others may want, too; and of the clock, for what waits for ever.
    for timer, sign, seconds in (
        (signal.ITIMER_PROF, signal.SIGPROF, SECONDS),
        (signal.ITIMER_REAL, signal.SIGALRM, _WAITING * SECONDS),
    ):
        signal.signal(sign, ring)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _spent() -> float:
    """Seconds of the processor, those of processes that were started here and ended included."""
    whole = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in whole)


def _of_children() -> int:
    """The most bytes that one process had which was started here."""
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


class Watch:
    """Reads files and keeps what no reader may do.

    Args:
        folder: for ``findings.jsonl``, and a copy of each file that is found.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused = self.taken = self.found = self.most_bytes = 0
        self.most_seconds = 0.0
        _forget_peak()
        self._before, self._children = _memory("VmRSS"), _of_children()

    def read(self, reader: Reader, made: Path, path: Path) -> None:
        """Read a file (``path``, by what was ``made``)."""
        start, fault = _spent(), ""
        try:
            with _limited():
                reader.read(made)
            self.taken += 1
        except BitwrightError:
            self.refused += 1
        except (TooLong, Exception):
            fault = traceback.format_exc()
        seconds, memory = _spent() - start, _memory("VmHWM") - self._before
        if _of_children() > self._children:  # which is known of all that have ended, as one figure
            self._children = _of_children()
            memory = max(memory, self._children)
        self.most_seconds, self.most_bytes = (
            max(self.most_seconds, seconds), max(self.most_bytes, memory),
        )  # fmt: skip
        if memory > BYTES:
            fault = fault or f"took {memory} bytes"
            _forget_peak()
        if seconds > SECONDS:
            fault = fault or f"took {seconds:.1f} s"
        if fault:
            self.found += 1
            kept = self.folder / f"{reader.name.replace(' ', '_')}-{self.found}{path.suffix}"
            shutil.copy(path, kept)
            entry = {"reader": reader.name, "file": str(kept), "of": str(path)}
            with (self.folder / "findings.jsonl").open("a") as log:
                log.write(json.dumps({**entry, "seconds": seconds, "fault": fault}) + "\n")

    def said(self, name: str) -> str:
        """One line: how many files were refused, read and found, and the most that one took."""
        counts = {"refused": self.refused, "read": self.taken, "found": self.found}
        most = {"seconds": round(self.most_seconds, 3), "bytes": self.most_bytes}
        return json.dumps({"of": name, **counts, **most})


def run(folder: Path, count: int, seed: int, names: list[str]) -> None:
    """Read so many mutated files."""
    readers = [reader for reader in READERS if not names or reader.name in names]
    whole = sum(reader.share for reader in readers)
    for reader in readers:
        rng = random.Random(f"{seed} {reader.name}")
        home = folder / reader.name.replace(" ", "_")
        home.mkdir(parents=True)
        made = reader.make(home)
        path = made / reader.place if reader.place else made
        body = path.read_bytes()
        reader.read(made)  # the real one can be read
        watch = Watch(folder)
        for _ in range(max(1, round(count * reader.share / whole))):
            path.write_bytes(mutant(body, path.name, rng))
            watch.read(reader, made, path)
        print(watch.said(reader.name), flush=True)


def run_hostile(folder: Path) -> None:
    """Read the files that are made to do harm; none may be taken but those that do none."""
    readers = {reader.name: reader for reader in READERS}
    for name, path in hostile_files.make(folder):
        reader, watch = readers[name], Watch(folder)
        watch.read(reader, path.parent if reader.place else path, path)
        print(watch.said(str(path.relative_to(folder))), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Numbers that became others, which nobody would see: an overflow, a cast of what is no number.
    warnings.simplefilter("error", RuntimeWarning)
    place = Path(sys.argv[1])
    if sys.argv[2:] == ["hostile"]:
        run_hostile(place)
    else:
        run(place, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
