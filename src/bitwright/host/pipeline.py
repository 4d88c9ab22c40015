# SPDX-License-Identifier: Apache-2.0
"""A host in stages that work at the same time: fetch and prepare, infer, make boxes.

Each stage is a function in threads of its own, and bounded queues lie between stages: a stage that
is faster waits, so no more frames are held than there is room for. Frames leave in the order in
which they came, whatever the number of workers, and an error of a stage is raised where the results
are read. The thesis on SkyNet (section 2.10) runs three such stages on a TX2.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bitwright.base.errors import RecipeError

Work = Callable[[Any], Any]
_POLL_S = 0.05
_MOST_WORKERS = 64


@dataclass(frozen=True)
class HostStage:
    """One step of a host.

    Attributes:
        name: for people.
        work: one frame in, one frame out; called by several threads at a time where there are
            several workers.
        workers: threads that do it.
    """

    name: str
    work: Work
    workers: int = 1

    def __post_init__(self) -> None:
        if not (type(self.workers) is int and 1 <= self.workers <= _MOST_WORKERS):
            raise RecipeError(
                f"{self.workers!r} workers", where=self.name, hint=f"1 to {_MOST_WORKERS}"
            )


@dataclass(frozen=True)
class _Frame:
    number: int
    content: Any
    error: BaseException | None = None


def sequential(frames: Iterable[Any], stages: Sequence[HostStage]) -> Iterator[Any]:
    """Every frame through all stages, one after another: what a pipeline is compared with."""
    for frame in frames:
        found = frame
        for stage in stages:
            found = stage.work(found)
        yield found


def pipelined(
    frames: Iterable[Any], stages: Sequence[HostStage], *, depth: int = 4
) -> Iterator[Any]:
    """The same results in the same order, with all stages at work at once.

    Args:
        frames: read by a thread of its own, no more than ``depth`` ahead of the first stage.
        depth: frames that wait in front of each stage, and of the reader.

    Raises:
        RecipeError: there is no stage, or no room between stages.
        BaseException: what a stage or ``frames`` raises, in the place of that frame's result; the
            frames behind it are given up.
    """
    if not stages or depth < 1:
        raise RecipeError(f"{len(stages)} stages with room for {depth} frames", where="pipeline")
    line = _Line(stages, depth)
    line.start(frames)
    try:
        yield from line.results()
    finally:
        line.stop()


class _Line:
    """The threads and queues of one run."""

    def __init__(self, stages: Sequence[HostStage], depth: int) -> None:
        self.stages = stages
        self.queues: list[queue.Queue[_Frame | None]] = [
            queue.Queue(depth) for _ in range(len(stages) + 1)
        ]
        self.over = threading.Event()
        # Frames between reader and result: room that frames which overtake a slow one may take.
        held = depth * (len(stages) + 1) + sum(stage.workers for stage in stages)
        self.room = threading.Semaphore(held)
        self.threads: list[threading.Thread] = []

    def start(self, frames: Iterable[Any]) -> None:
        jobs: list[tuple[str, Callable[[], None]]] = [("frames", lambda: self._feed(frames))]
        for place, stage in enumerate(self.stages):
            left = _Countdown(stage.workers)
            jobs += [(stage.name, partial(self._serve, place, left))] * stage.workers
        for name, job in jobs:
            thread = threading.Thread(target=job, name=f"host {name}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def results(self) -> Iterator[Any]:
        waiting: dict[int, _Frame] = {}
        turn = 0
        while True:
            frame = self._get(len(self.stages))
            if frame is None:
                return
            waiting[frame.number] = frame
            while turn in waiting:
                ready = waiting.pop(turn)
                if ready.error is not None:
                    raise ready.error
                turn += 1
                self.room.release()
                yield ready.content

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _feed(self, frames: Iterable[Any]) -> None:
        number = 0
        try:
            for content in frames:
                while not self.room.acquire(timeout=_POLL_S):
                    if self.over.is_set():
                        return
                if not self._put(0, _Frame(number, content)):
                    return
                number += 1
        except BaseException as error:
            self._put(0, _Frame(number, None, error))
        self._put(0, None)

    def _serve(self, place: int, left: _Countdown) -> None:
        work = self.stages[place].work
        while not self.over.is_set():
            frame = self._get(place)
            if frame is None:
                if left.down():
                    self._put(place + 1, None)
                else:
                    self._put(place, None)  # for the next worker
                return
            if frame.error is None:
                try:
                    frame = _Frame(frame.number, work(frame.content))
                except BaseException as error:
                    frame = _Frame(frame.number, None, error)
            self._put(place + 1, frame)

    def _put(self, place: int, frame: _Frame | None) -> bool:
        """False if the line is over."""
        while not self.over.is_set():
            try:
                self.queues[place].put(frame, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def _get(self, place: int) -> _Frame | None:
        while not self.over.is_set():
            try:
                return self.queues[place].get(timeout=_POLL_S)
            except queue.Empty:
                continue
        return None


class _Countdown:
    """How many workers of a stage are still at work."""

    def __init__(self, count: int) -> None:
        self._left, self._lock = count, threading.Lock()

    def down(self) -> bool:
        """One less; whether that was the last."""
        with self._lock:
            self._left -= 1
            return self._left == 0
