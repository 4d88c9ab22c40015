# SPDX-License-Identifier: Apache-2.0
"""How much memory there is, and what an error says that came because it ran out."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitwright.base.errors import DataError

#: Limits of control groups, version 2 and 1: what a container may have.
_GROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
#: Bytes of what is computed at a time for one image, of a size that only a file says.
MOST_OF_A_FILE = 1 << 30
#: Variable of the environment: ``1`` says that files are the user's own, and may ask
#: for frames as large as the machine has room for; what ``chosen`` says in Python.
LARGE = "BITWRIGHT_LARGE_FRAMES"
#: Of the machine's memory that a command may have.
_SHARE = 0.9
#: Bytes that count as memory though nothing is ever written there: what torch and numpy set aside
#: as they are imported (760 MiB, measured), and stacks of threads (53 MiB a core).
_SET_ASIDE, _SET_ASIDE_A_CORE = 1 << 30, 64 << 20
_WORDS = ("can't allocate memory", "out of memory", "not enough memory", "bad_alloc")


def machine_memory() -> int:
    """Bytes that this process may have: what is installed, or less where its container or a limit
    of its own (``ulimit -v``) says so; where nothing says, as much as there may be.
    """
    found = [1 << 62]
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _GROUPS:
        with suppress(ValueError, OSError):  # version 2 says "max" where there is no limit
            found.append(int(path.read_text()))
    with suppress(ImportError, ValueError, OSError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            found.append(limit)
    return min(size for size in found if size > 0)


def held_memory() -> int:
    """Bytes of memory that this process has at this moment, without files that it looks into; 0
    where the system does not say.
    """
    with suppress(OSError, ValueError, IndexError):
        found = [int(number) for number in Path("/proc/self/statm").read_text().split()]
        return (found[1] - found[2]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def limit_memory(share: float = _SHARE) -> None:
    """Let this process, and each that it starts, have no more of the machine's memory than a share,
    and what libraries set aside besides, which grows with the processors.

    Who wants more gets a `MemoryError` (or what a library makes of it, see `ran_out`). Else the
    system would begin to write memory to its disk, and end whatever program takes most. Linux
    counts what may be written to, touched or not, so a small container may have what libraries set
    aside; elsewhere, and where the user answers for his files (`LARGE`), nothing happens.
    """
    limit_of(os.getpid(), share)


def limit_of(process: int, share: float) -> None:
    """The same for a process that was just started, before it has started others."""
    if sys.platform != "linux" or is_chosen():
        return
    import resource

    most = max(int(share * machine_memory()), _SET_ASIDE) + _SET_ASIDE_A_CORE * (
        os.cpu_count() or 1
    )
    with suppress(OSError, ValueError):  # it has ended
        limits = resource.prlimit(process, resource.RLIMIT_DATA)
        if all(limit == resource.RLIM_INFINITY or limit > most for limit in limits):
            resource.prlimit(process, resource.RLIMIT_DATA, (most, limits[1]))


def room_for(*, chosen: bool) -> int:
    """Bytes that one image may take at a time in the model or the graph of a file.

    Args:
        chosen: the caller has said what size images have, or the file is the user's own; it may be
            a stranger's who says so otherwise.
    """
    return machine_memory() if is_chosen(chosen) else min(MOST_OF_A_FILE, machine_memory())


def room_of(share: float) -> int:
    """Bytes of a share of the machine's memory; of nine tenths where the user answers for the size
    (`LARGE`).
    """
    return int((_SHARE if is_chosen() else share) * machine_memory())


def is_chosen(chosen: bool = False) -> bool:
    """Whether the caller, or the user for all calls (`LARGE`), answers for the size of images."""
    return chosen or os.environ.get(LARGE) == "1"


def shown(size: int) -> str:
    """A number of bytes as messages say it."""
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"


def check_room(size: int, what: str, where: str, hint: str) -> None:
    """Refuse what does not fit into memory, before it is made.

    Args:
        size: bytes of it.
        what: it is, in the plural: ``18 images``.

    Raises:
        DataError: there is less.
    """
    if size > machine_memory():
        said = f"{what} do not fit into memory: {size / 2**30:.0f} GiB"
        raise DataError(said, where=where, hint=hint)


class Turns:
    """What all threads together may have at a time: who wants more than is free waits.

    Args:
        most: of it, in any unit.
    """

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._changed = threading.Condition()

    @contextmanager
    def of(self, count: int) -> Iterator[None]:
        """Have so much; whoever wants more than there is at all has all of it, alone."""
        count = min(count, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


def too_little(where: str) -> DataError:
    """The error for a file whose reader had no memory left: nothing is said of the file itself."""
    return DataError(
        "there is not enough memory to read it",
        where=where,
        hint="end other programs, or read it on a machine with more",
    )


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was no memory left: torch raises a `RuntimeError`."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
