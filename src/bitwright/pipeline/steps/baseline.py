# SPDX-License-Identifier: Apache-2.0
"""The processor baseline: our integer executor and ONNX Runtime in float32, on this machine."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.figures import Figure, Source
from bitwright.base.nouns import OF_AXES
from bitwright.base.progress import Progress
from bitwright.ir import Graph, IntArray
from bitwright.report.record import Baseline

if TYPE_CHECKING:
    from torch import nn

BATCHES = (1, 100)
_SECONDS = 0.4
_ROUNDS = 3


def measure(
    graph: Graph,
    inputs: IntArray,
    model: nn.Module,
    reals: NDArray[np.float32],
    *,
    threads: int,
    progress: Progress,
) -> tuple[Baseline, ...]:
    """Inputs per second at batch 1 and 100, contenders taking turns, the median of three rounds.

    Args:
        graph: the integer graph; ``inputs`` are its levels of some images (N, H, W, C).
        model: the float model; ``reals`` are the same images (N, C, H, W).
        threads: of both engines.
    """
    from bitwright.ir.executor import Executor

    executor = Executor(graph, threads=threads)
    contenders: list[tuple[str, int, Callable[[], object]]] = []
    session = onnx_session(model, reals[:1], threads)
    for batch in BATCHES:
        levels = np.ascontiguousarray(np.resize(inputs, (batch, *inputs.shape[1:])))
        feeds = {graph.inputs[0]: narrow(levels)}
        name = f"Bitwright integer executor ({executor.backend})"
        contenders.append((name, batch, partial(executor.run, feeds)))
        images = np.ascontiguousarray(np.resize(reals, (batch, *reals.shape[1:])))
        if session is not None:
            run = partial(session.run, None, {"x": images})
            contenders.append(("ONNX Runtime float32", batch, run))
    unit = f"{OF_AXES[reals.ndim - 1].many}/s"
    rates: dict[tuple[str, int], list[float]] = {}
    for turn in range(_ROUNDS):
        progress("measuring the processor", turn, _ROUNDS)
        for name, batch, call in contenders:
            rates.setdefault((name, batch), []).append(_rate(call, batch))
    progress("measuring the processor", _ROUNDS, _ROUNDS)
    return tuple(
        Baseline(
            engine=name,
            batch=batch,
            threads=threads,
            images_per_second=Figure(round(statistics.median(found)), unit, Source.MEASUREMENT),
        )
        for (name, batch), found in rates.items()
    )


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # no such file outside Linux
    import platform

    return platform.processor() or platform.machine()


def _rate(call: Callable[[], object], batch: int) -> float:
    call()
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _SECONDS:
        call()
        calls += 1
    return calls * batch / spent


def narrow(levels: IntArray) -> NDArray[np.generic]:
    """The smallest type that holds the levels: what an application would hand over."""
    for kind in (np.uint8, np.int8, np.int16, np.int32):
        info = np.iinfo(kind)
        if info.min <= levels.min() and levels.max() <= info.max:
            return levels.astype(kind)
    return levels


def onnx_session(model: nn.Module, image: NDArray[np.float32], threads: int) -> Any:
    """The float model in ONNX Runtime; None where torch cannot export it."""
    import io

    import torch

    from bitwright.interop.onnx.runtime import onnx_runtime

    file = io.BytesIO()
    axes = {"x": {0: "n"}, "scores": {0: "n"}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model.eval(),
                (torch.from_numpy(image),),
                file,
                input_names=["x"],
                output_names=["scores"],
                dynamic_axes=axes,
                dynamo=False,  # seconds faster than the other exporter, and the network is simple
            )
    except (RuntimeError, TypeError, ValueError):  # what the exporter raises on what it cannot do
        return None
    ort = onnx_runtime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
