# SPDX-License-Identifier: Apache-2.0
"""Time of a training step and of an evaluation, quantized against eager float torch.

    python benchmarks/qat_step.py                      # prints the table, writes docs/results/
    python benchmarks/qat_step.py --models cnv --rounds 5 --no-write
    python benchmarks/qat_step.py --distill --threads 1 --clock cpu

Both models of a pair are built from the same module and run in one process, alternately (float,
quantized, float, quantized, ...), so that whatever else the machine does meets both. A step is
forward, cross entropy, backward and an SGD update with momentum. Policy: 4-bit weights (per
channel, maximum), 4-bit activations (learned scales), 8-bit input. Evaluation is without
gradients: the trained model in ``eval()`` is the exact integer network. The ratio is that of the
fastest rounds (what the code costs); the medians (what this machine gave, its other load included)
stand beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.models.plain import cnv
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.quantize import Policy, apply

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.shortcut(x))


def resnet18(num_classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 with the 3 x 3 stem usual for 32 x 32 images: 11.2 M parameters at width 64."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(inputs, outputs, stride))
            inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)]
    return nn.Sequential(*layers)


class DenseLayer(nn.Module):
    """Batch norm, ReLU, 3 x 3 convolution, joined to its input (Huang et al. 2017, eq. 2)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.relu(self.bn(x)))], 1)


def dense_net(num_classes: int = 10, growth: int = 16, depth: int = 6) -> nn.Module:
    """Two dense blocks of six layers, growth 16, for 32 x 32 images."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for block in range(2):
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if block == 0:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnv": lambda: cnv(10, (32, 32, 3)),
    "resnet18": resnet18,
    "densenet": dense_net,
}
TARGETS = {"cnv": 1.2, "resnet18": 1.15, "densenet": 1.5}
BREVITAS = {"cnv": (1.65, 1.9), "resnet18": (1.4, 1.6), "densenet": (2.2, 2.6)}


@dataclass(frozen=True)
class Result:
    """One pair: fastest and median times in milliseconds, and their ratios."""

    model: str
    job: str
    float_ms: float
    ours_ms: float
    ratio: float
    float_median_ms: float
    ours_median_ms: float
    median_ratio: float
    target: float
    rounds: int


def step_of(model: nn.Module, batch: Tensor, labels: Tensor) -> Callable[[], None]:
    """One training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(batch), labels).backward()
        optimizer.step()

    return step


def evaluation_of(model: nn.Module, batch: Tensor) -> Callable[[], None]:
    """One batch without gradients."""

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            model(batch)

    return evaluate


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def compare(
    first: Callable[[], None],
    second: Callable[[], None],
    rounds: int,
    clock: Callable[[], float],
) -> list[float]:
    """Fastest times and their ratio, median times and the median of paired ratios; A B A B."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(2):
        first()
        second()
    for _ in range(rounds):
        for run, taken in zip((first, second), times, strict=True):
            start = clock()
            run()
            taken.append((clock() - start) * 1e3)
    best = [min(taken) for taken in times]
    middle = [statistics.median(taken) for taken in times]
    ratios = [b / a for a, b in zip(*times, strict=True)]
    return [*best, best[1] / best[0], *middle, statistics.median(ratios)]


def measure(name: str, rounds: int, batch_size: int, clock: Callable[[], float]) -> list[Result]:
    """All jobs of one model."""
    torch.manual_seed(1)
    batch = torch.rand(batch_size, 3, 32, 32)
    labels = torch.randint(0, 10, (batch_size,))
    policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")
    plain = MODELS[name]()
    ours = apply(plain, policy, "train")
    steps = step_of(plain, batch, labels), step_of(ours, batch, labels)
    pair = [Result(name, "train", *compare(*steps, rounds, clock), TARGETS[name], rounds)]
    both = evaluation_of(plain, batch), evaluation_of(ours, batch)
    pair.append(Result(name, "eval", *compare(*both, 2 * rounds, clock), 1.0, 2 * rounds))
    if ours.why_simulated:
        raise SystemExit(f"{name}: not evaluated in integers: {ours.why_simulated}")
    return pair


def table(results: list[Result]) -> str:
    """Markdown."""
    lines = [
        "| model | job | float ms | ours ms | ours / float | target | medians: float ms | ours ms "
        "| ours / float | Brevitas 0.13.4 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        peer = BREVITAS[r.model][0 if r.job == "train" else 1]
        lines.append(
            f"| {r.model} | {r.job} | {r.float_ms:.1f} | {r.ours_ms:.1f} | {r.ratio:.3f} | "
            f"{r.target:.2f} | {r.float_median_ms:.1f} | {r.ours_median_ms:.1f} | "
            f"{r.median_ratio:.3f} | {peer:.2f} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, str | int]:
    """What the numbers were taken on."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def distilled(given: argparse.Namespace) -> None:
    """Measure, print and write docs/results/distill_step.*; two repeats of each pair."""
    import distill_step

    clock = CLOCKS[given.clock]
    repeats = [
        [
            distill_step.measure(pair, given.rounds, given.batch, clock)
            for pair in distill_step.PAIRS
        ]
        for _ in range(2)
    ]
    tables = [distill_step.table(results) for results in repeats]
    print("\n\n".join(tables))
    _write(
        given,
        "distill_step",
        "Training step of a distilled student",
        "The training loop's step of the quantized student alone, one forward of its teacher, and "
        "the loop's step with that teacher, timed in turn; the ratio is the last against the sum "
        "of the first two, of the fastest rounds and as the median of the rounds. Two repeats.",
        "\n\n".join(f"Repeat {n}\n\n{text}" for n, text in enumerate(tables, 1)),
        {"repeats": [[asdict(result) for result in results] for results in repeats]},
    )


def _write(
    given: argparse.Namespace,
    name: str,
    title: str,
    method: str,
    tables: str,
    figures: dict[str, Any],
) -> None:
    """Write docs/results/NAME.json and .md, unless that is not wanted."""
    if given.no_write:
        return
    command = " ".join(["python benchmarks/qat_step.py", *sys.argv[1:]])
    record = {
        "command": command,
        "machine": machine(),
        "load_average": os.getloadavg()[0],
        "batch": given.batch,
        "clock": given.clock,
        "policy": "weight int4 per channel, activation uint4 learned, input uint8",
        **figures,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    facts = ", ".join(f"{key} {value}" for key, value in machine().items())
    head = f"`{command}` on {facts}; batch {given.batch}; {given.clock} clock."
    (RESULTS / f"{name}.md").write_text(f"# {title}\n\n{head}\n\n{method}\n\n{tables}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--distill", action="store_true", help="a distilled student's step instead (distill_step)"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="cpu: for a machine in use by others"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.distill:
        distilled(given)
        return
    results: list[Result] = []
    for name in given.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found = measure(name, given.rounds, given.batch, CLOCKS[given.clock])
        print(table(found), file=sys.stderr, flush=True)
        results += found
    text = table(results)
    print(text)
    _write(
        given,
        "qat_step",
        "Training step and evaluation against eager float torch",
        "Alternating rounds; the first ratio is of the fastest rounds, the second the median of "
        "paired rounds. The Brevitas column was measured earlier on a machine of the same kind.",
        text,
        {"results": [asdict(r) for r in results]},
    )


if __name__ == "__main__":
    main()
