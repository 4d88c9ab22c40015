# SPDX-License-Identifier: Apache-2.0
"""Training on several devices: one process each, by Fabric, an equal share of every batch each.

Every process draws the same order and the same augmentation and takes its slice, and the gradients
are averaged: up to the order of float sums a step is that of one device. What depends on the batch
as a whole is another matter: batch norm and quantizers that measure ranges see the slice of their
own device, and the statistics of the first one are kept.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed
import torch.multiprocessing as mp
from lightning_fabric import Fabric
from torch import fx, nn
from torch.multiprocessing.spawn import ProcessException

from bitwright.base import errors
from bitwright.base.errors import BitwrightError, RunError
from bitwright.base.tools.process import die_with_parent
from bitwright.base.tools.python import safe_children
from bitwright.base.users_modules import Opened
from bitwright.train.checkpoint import load_checkpoint
from bitwright.train.records import OnProgress, TrainProgress
from bitwright.train.start import Job, make_fabric
from bitwright.train.state import CHECKPOINT

Train = Callable[[Fabric, Job, OnProgress | None], Any]
_PORT = "MASTER_PORT"
_LAST_WORDS_S = 5.0  # in which what processes have told is taken in, behind their end


def train_on_many(job: Job, train: Train, on_progress: OnProgress | None) -> int:
    """Run ``train`` in as many processes as the config has devices, until its checkpoint is done.

    The processes are started anew ("spawn"), so a script that trains needs the usual
    ``if __name__ == "__main__":``.

    Args:
        train: a function of a module, called with Fabric, the job and a progress callback.

    Returns:
        The number of epochs that were done before.

    Raises:
        BitwrightError: what a process has raised.
        RunError: a process died without a word.
    """
    with TemporaryDirectory(prefix="bitwright-train-", ignore_cleanup_errors=True) as own:
        fabric = make_fabric(job.config, job.folder, meeting=Path(own) / "meeting")
        path = job.folder / CHECKPOINT
        done = job.resume and path.is_file()
        before = int(load_checkpoint(path, fields=("epoch",))["epoch"]) if done else 0
        if before < job.config.epochs:
            _launch(fabric, job, train, on_progress)
        return before


def _launch(fabric: Fabric, job: Job, train: Train, on_progress: OnProgress | None) -> None:
    """What the processes do, until they have ended."""
    raised: list[BitwrightError] = []
    try:
        with safe_children():
            queue = mp.get_context("spawn").SimpleQueue()
            with _listening(queue, raised, on_progress), _own_port(), _ended_with_this():
                fabric.launch(_work, train, _Parcel(job), queue)
    except ProcessException as error:
        raise _reason(raised, error) from error


class _Parcel:
    """A job on its way to another process.

    Networks arrive there in memory that all processes share, so each takes a copy.
    """

    def __init__(self, job: Job) -> None:
        self._modules = Opened()  # first: the job may hold objects of what lies in them
        self._job = _with_networks(job, _plain_graphs)

    def open(self) -> Job:
        """The job, with networks of its own."""
        return _with_networks(self._job, copy.deepcopy)


@contextmanager
def _ended_with_this() -> Iterator[None]:
    """Processes that are started within are gone behind it. After Ctrl-C they would be waited for
    at the end of Python, while they wait for each other.
    """
    others = set(mp.active_children())
    try:
        yield
    finally:
        mine = [child for child in mp.active_children() if child not in others]
        for child in mine:
            child.kill()  # a checkpoint is whole at any moment
        for child in mine:
            child.join(_LAST_WORDS_S)


def _work(fabric: Fabric, train: Train, parcel: _Parcel, queue: Any) -> None:
    """What each process does."""
    die_with_parent()
    try:
        train(fabric, parcel.open(), queue.put if fabric.is_global_zero else None)
    except BitwrightError as error:
        queue.put((type(error).__name__, error.message, error.where, error.hint))
        raise
    finally:
        # Threads of the group that are still there when Python ends abort the process.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@contextmanager
def _listening(
    queue: Any, raised: list[BitwrightError], on_progress: OnProgress | None
) -> Iterator[None]:
    """Hand on what the processes tell, while they run."""

    failed: list[BaseException] = []

    def listen() -> None:
        """Whatever happens, the queue is emptied: the processes wait while it is full."""
        while (given := queue.get()) is not None:
            if isinstance(given, TrainProgress):
                if on_progress is None or failed:
                    continue
                try:
                    on_progress(given)
                except BaseException as error:
                    failed.append(error)
            else:
                name, message, where, hint = given
                raised.append(getattr(errors, name)(message, where=where, hint=hint))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    wait: float | None = _LAST_WORDS_S
    try:
        yield
        wait = None
    finally:
        # Who was ended while it told something may have left the queue locked, or half a message.
        threading.Thread(target=queue.put, args=(None,), daemon=True).start()
        listener.join(wait)
    if failed:  # too late to stop anything, but not to be reported
        raise failed[0]


@contextmanager
def _own_port() -> Iterator[None]:
    """Fabric's launcher chooses a port for each run, and leaves its number in the environment; the
    processes meet in a file and open none.
    """
    before = os.environ.pop(_PORT, None)
    try:
        yield
    finally:
        os.environ.pop(_PORT, None)
        if before is not None:
            os.environ[_PORT] = before


def _with_networks(job: Job, change: Callable[[nn.Module], nn.Module]) -> Job:
    parts = {name: getattr(job, name) for name in ("model", "teacher", "peer")}
    changed = {n: change(part) for n, part in parts.items() if isinstance(part, nn.Module)}
    return replace(job, **changed)


def _plain_graphs(model: nn.Module) -> nn.Module:
    """A copy whose traced parts carry no type hints: written as text they cannot be pickled."""
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.type = None
            part.recompile()
    return model


def share_buffers(fabric: Fabric, *modules: nn.Module) -> None:
    """Give every process the buffers of the first one."""
    if fabric.world_size == 1:
        return
    for buffer in {id(b): b for module in modules for b in module.buffers()}.values():
        torch.distributed.broadcast(buffer, 0)


def gather_gradients(fabric: Fabric, module: nn.Module | None) -> None:
    """Average the gradients of a module that is none of Fabric's own."""
    if module is None or fabric.world_size == 1:
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            mean = fabric.all_reduce(parameter.grad, reduce_op="mean")
            parameter.grad.copy_(mean)


def _reason(raised: list[BitwrightError], error: ProcessException) -> BitwrightError:
    if raised:
        return raised[0]
    lines = str(error).strip().splitlines()
    return RunError(
        f"a training process ended: {lines[-1] if lines else error}",
        where="devices",
        hint="what is done so far is kept; run again, or with devices: 1",
    )
