# SPDX-License-Identifier: Apache-2.0
"""Time of a distilled training step against the student's own step and one teacher forward.

Run as ``python benchmarks/qat_step.py --distill``. Three things are timed in one process, in turn
(A B C A B C ...): the training loop's step of the quantized student with labels alone (A), one
forward of the teacher without gradients on the same batch (B), and the loop's step with a teacher,
KL form (C). The ratio is C / (A + B): what distillation costs beyond what it cannot do without.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bitwright.data import Dataset, DataSplits
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.train import Distillation, TrainConfig
from bitwright.train.loop import _step
from bitwright.train.start import Job, make_fabric, start
from bitwright.train.state import Run

TARGET = 1.10
PAIRS = {
    "kl_mlp": ("kl_mlp_student", "kl_mlp_teacher", (28, 28, 1)),
    "densenet": ("densenet21", "densenet63", (32, 32, 3)),
}
_CLASSES = 10


@dataclass(frozen=True)
class DistilResult:
    """One pair of networks: fastest times in milliseconds, and ratios by fastest and by median."""

    pair: str
    student_ms: float
    teacher_ms: float
    distilled_ms: float
    ratio: float
    median_ratio: float
    target: float
    rounds: int


def measure(pair: str, rounds: int, batch: int, clock: Callable[[], float]) -> DistilResult:
    """Time one pair."""
    small, large, shape = PAIRS[pair]
    splits = _splits(shape, batch)
    teacher = build_model(large, _CLASSES, shape, seed=2).eval()
    images = torch.from_numpy(splits.train.reals())
    labels = torch.from_numpy(splits.train.labels)
    every = torch.arange(batch)

    def student() -> nn.Module:
        policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")
        return apply(build_model(small, _CLASSES, shape, seed=1), policy, "train", images[:16])

    plain = TrainConfig(batch_size=batch, optimizer="sgd", lr=1e-3)
    taught = plain.model_copy(update={"distillation": Distillation(alpha=0.7, temperature=8.0)})
    runs = [_run(student(), splits, config, teacher) for config in (plain, taught)]
    for run in runs:
        run.student.forward.train()

    def forward() -> None:
        with torch.no_grad():
            teacher(images)

    jobs: list[Callable[[], object]] = [
        lambda: _step(runs[0], images, labels, every, 0),
        forward,
        lambda: _step(runs[1], images, labels, every, 0),
    ]
    times = _alternate(jobs, rounds, clock)
    fastest = [min(taken) for taken in times]
    ratios = [both / (own + other) for own, other, both in zip(*times, strict=True)]
    ratio = fastest[2] / (fastest[0] + fastest[1])
    return DistilResult(pair, *fastest, ratio, statistics.median(ratios), TARGET, rounds)


def _alternate(
    jobs: list[Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Milliseconds of each job in each round; two rounds before them warm up."""
    times: list[list[float]] = [[] for _ in jobs]
    for number in range(rounds + 2):
        for job, taken in zip(jobs, times, strict=True):
            begun = clock()
            job()
            if number >= 2:
                taken.append((clock() - begun) * 1e3)
    return times


def _run(model: nn.Module, splits: DataSplits, config: TrainConfig, teacher: nn.Module) -> Run:
    """A run as the training loop begins it; nothing is written."""
    given = None if config.distillation is None else teacher
    folder = Path(tempfile.gettempdir()) / "bitwright-distill-step"
    job = Job(model, splits, config, folder, False, given, None)
    return start(make_fabric(config, folder), job, None)


def _splits(shape: tuple[int, int, int], count: int) -> DataSplits:
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (count, *shape), dtype=np.int64).astype(np.uint8)
    labels = random.randint(0, _CLASSES, count).astype(np.int64)
    names = tuple(str(number) for number in range(_CLASSES))
    part = Dataset("random", images, labels, names, 1 / 255, np.arange(count))
    return DataSplits("random", part, part, part, "random numbers")


def table(results: list[DistilResult]) -> str:
    """Markdown."""
    lines = [
        "| student from teacher | student step ms | teacher forward ms | distilled step ms "
        "| ratio | ratio, median of rounds | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        small, large, _ = PAIRS[r.pair]
        lines.append(
            f"| {small} from {large} | {r.student_ms:.2f} | {r.teacher_ms:.2f} | "
            f"{r.distilled_ms:.2f} | {r.ratio:.3f} | {r.median_ratio:.3f} | <= {r.target:.2f} |"
        )
    return "\n".join(lines)
