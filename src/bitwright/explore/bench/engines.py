# SPDX-License-Identifier: Apache-2.0
"""What can run a network on this machine: the integer executor, ONNX Runtime, a GPU.

An engine makes what a runner works with: a function from a batch to its scores. Engines of plug-ins
(`Plugin.platforms`) give points of a sweep by a model instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ToolError
from bitwright.explore.bench.subject import BenchSubject

Array = NDArray[np.generic]
Call = Callable[[Array], Array]


@dataclass(frozen=True)
class Engine:
    """One way to run a network.

    Attributes:
        name: ``cpu int8``, ``cpu float32``, ``gpu float32``.
        power: which power counts: ``cpu`` or ``gpu``.
        images: what it takes, (N, ...), of the subject.
        make: with so many processor threads a job, what a runner calls; runners may share it.
        own_device: it has a device of its own, so that processor threads do not speed it up.
    """

    name: str
    power: str
    images: Array
    make: Callable[[int], Call]
    own_device: bool = False


def executor_engine(subject: BenchSubject) -> Engine:
    """The integer network, in the exact executor."""
    from bitwright.ir.executor import Executor

    edge, output = subject.graph.inputs[0], subject.graph.outputs[0]

    def make(workers: int) -> Call:
        executor = Executor(subject.graph, threads=workers)
        return lambda batch: executor.run({edge: batch})[output]

    return Engine("cpu int8", "cpu", subject.levels, make)


def onnx_engine(subject: BenchSubject) -> Engine | None:
    """The float network in ONNX Runtime; None where torch cannot export it, or there is none."""
    from bitwright.pipeline.steps.baseline import onnx_session

    model, reals = subject.model, subject.reals
    if model is None or reals is None or onnx_session(model, reals[:1], 1) is None:
        return None

    def make(workers: int) -> Call:
        session = onnx_session(model, reals[:1], workers)
        assert session is not None
        return lambda batch: np.asarray(session.run(None, {"x": batch})[0])

    return Engine("cpu float32", "cpu", reals, make)


def gpu_engine(subject: BenchSubject) -> Engine | None:
    """The float network in torch on a GPU; None where there is none."""
    import torch

    model: Any = subject.model
    if model is None or subject.reals is None or not torch.cuda.is_available():
        return None

    def make(_: int) -> Call:
        placed = model.to("cuda").eval()

        def call(batch: Array) -> Array:
            with torch.inference_mode():
                scores = placed(torch.from_numpy(batch).to("cuda", non_blocking=True))
                return np.asarray(scores.cpu().numpy())  # waits for the device

        return call

    return Engine("gpu float32", "gpu", subject.reals, make, own_device=True)


def engines_of(subject: BenchSubject, wanted: tuple[str, ...] = ()) -> tuple[Engine, ...]:
    """All that there are here, float on the CPU first; or those that are wanted.

    Raises:
        ToolError: one that is wanted is not there.
    """
    found = [onnx_engine(subject), executor_engine(subject), gpu_engine(subject)]
    there = {engine.name: engine for engine in found if engine is not None}
    absent = [name for name in wanted if name not in there]
    if absent:
        raise ToolError(
            f"no {', '.join(absent)} here",
            where="--platforms",
            hint=f"there are {', '.join(there)}",
        )
    return tuple(there[name] for name in wanted or there)
