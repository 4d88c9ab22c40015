# SPDX-License-Identifier: Apache-2.0
"""Time and memory of a training step in 8 bits, emulated and on integers, against plain float32.

    python benchmarks/train_step.py                     # prints the tables, writes docs/results/
    python benchmarks/train_step.py --nets alexnet --rounds 5 --no-write
    python benchmarks/train_step.py --threads 1 --clock cpu   # on a machine that others use, too

All arms train the same network from the same weights on one batch, in one process, in turn
(A B C ... A B C ...), so that whatever else the machine does meets all. A step is forward, cross
entropy, backward and an SGD update with momentum.

* float32: the network as users write it; float32, channels last: in the memory that suits torch's
  convolutions. Ratios are given against both. The figures to reach are for the **faster** of them.
* emulated: 8-bit dynamic fixed point with stochastic rounding for all operands of all products,
  multiplied in floating point, exactly.
* integer: the same numbers, multiplied as integers.
* norms: batch norm and ReLU in C beside it (`arithmetic.norms`), an own arm since float32 could
  have them as well; the last arm shows that.

Memory is the peak of the resident set while an arm does three steps, less what it was before the
first (libraries, weights and the batch), each arm in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from qat_step import CLOCKS, machine
from torch import Tensor, nn
from torch.nn import functional

from bitwright.low_precision.arithmetic.apply import apply_arithmetic, layer_formats
from bitwright.low_precision.arithmetic.choose import ChoosingEngine, make_engine
from bitwright.low_precision.arithmetic.layers import Context
from bitwright.low_precision.arithmetic.norms import use_native_norms
from bitwright.low_precision.config import LowPrecision
from bitwright.models import build_model

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        engine: of `make_engine`; None: float32.
        norms: whether batch norm and ReLU run in C.
        channels_last: memory of weights and batch.
    """

    engine: str | None = None
    norms: bool = False
    channels_last: bool = True


PLAIN, PLAIN_LAST = "float32", "float32, channels last"
ARMS = {
    PLAIN: Arm(channels_last=False),
    PLAIN_LAST: Arm(),
    "emulated": Arm("emulated"),
    "emulated, norms": Arm("emulated", norms=True),
    "integer": Arm("integer"),
    "integer, norms": Arm("integer", norms=True),
    "auto, norms": Arm("auto", norms=True),
    "float32, channels last, norms": Arm(norms=True),
}
#: The most that an arm's time may be of float32's; by network, of the integer arms.
EMULATED_LIMIT = 1.4
INTEGER_LIMITS = {"resnet20": 1 / 1.3, "alexnet": 1 / 1.6}
MEMORY_LIMIT = 1.15


@dataclass(frozen=True)
class Row:
    """One arm on one network; milliseconds of a step, ratios to float32 in either memory.

    Attributes:
        fastest_ms, median_ms: of the rounds.
        ratio, ratio_last: median of the ratios within a round.
        peak_mib: memory that three steps take.
    """

    net: str
    arm: str
    fastest_ms: float
    median_ms: float
    ratio: float
    ratio_last: float
    peak_mib: float


def step_of(model: nn.Module, arm: Arm, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """One training step; the model is changed in place."""
    context = None
    if arm.norms:
        use_native_norms(model)
    if arm.engine is not None:
        context = Context(make_engine(arm.engine))  # type: ignore[arg-type]
        low = apply_arithmetic(model, context)
        policy = LowPrecision().arithmetic(0)
        assert policy is not None
        low.use(layer_formats(policy, low.layers))
    if arm.channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    model.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if context is not None:
            context.step += 1

    return step


def example(net: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with its first weights, and a batch."""
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, 32, 32, generator=draw)
    return build_model(net, 10, (32, 32, 3), seed=1), images, torch.randint(0, 10, (batch,))


def measure(net: str, given: argparse.Namespace) -> list[Row]:
    """All arms of one network."""
    clock = CLOCKS[given.clock]
    model, images, labels = example(net, given.batch)
    steps = {name: step_of(copy.deepcopy(model), arm, images, labels) for name, arm in ARMS.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(given.rounds + 2):
        for name, step in steps.items():
            start = clock()
            step()
            if turn >= 2:
                times[name].append((clock() - start) * 1e3)
    rows = []
    for name, taken in times.items():
        ratios = [
            statistics.median(a / b for a, b in zip(taken, times[base], strict=True))
            for base in (PLAIN, PLAIN_LAST)
        ]
        peak = peak_in_a_process(net, name, given)
        rows.append(Row(net, name, min(taken), statistics.median(taken), *ratios, peak))
    return rows


def peak_in_a_process(net: str, arm: str, given: argparse.Namespace) -> float:
    """MiB that three steps of an arm take in a fresh process; NaN where the system does not say."""
    if not Path("/proc/self/clear_refs").exists():
        return float("nan")
    command = [sys.executable, __file__, "--memory", arm, "--nets", net]
    command += ["--batch", str(given.batch), "--threads", str(given.threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return float(done.stdout)


def peak(net: str, arm: str, batch: int) -> float:
    """MiB that three steps take beyond what is there before them."""
    model, images, labels = example(net, batch)
    # Compilers and tables first: a step of two images.
    warm = step_of(copy.deepcopy(model), ARMS[arm], images[:2], labels[:2])
    warm()
    del warm
    step = step_of(model, ARMS[arm], images, labels)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    for _ in range(3):
        step()
    return _resident("VmHWM") - before


def _resident(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {name}")


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| network | arm | fastest ms | median ms | of float32 | of float32, channels last "
        "| at most | peak MiB | of float32 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        engine = ARMS[r.arm].engine
        limits = {"emulated": EMULATED_LIMIT, None: float("nan")}
        limit = limits.get(engine, INTEGER_LIMITS.get(r.net, float("nan")))
        base = next(o.peak_mib for o in rows if o.net == r.net and o.arm == PLAIN)
        lines.append(
            f"| {r.net} | {r.arm} | {r.fastest_ms:.1f} | {r.median_ms:.1f} | {r.ratio:.3f} | "
            f"{r.ratio_last:.3f} | {'' if math.isnan(limit) else f'{limit:.3f}'} | "
            f"{r.peak_mib:.0f} | {r.peak_mib / base:.2f} |"
        )
    return "\n".join(lines)


def choices(net: str, batch: int) -> str:
    """Which engine each product of a network runs on, as measured, and what each takes."""
    model, images, labels = example(net, batch)
    engine = make_engine("auto")
    low = apply_arithmetic(model, Context(engine))
    policy = LowPrecision().arithmetic(0)
    assert policy is not None
    low.use(layer_formats(policy, low.layers))
    functional.cross_entropy(model(images), labels).backward()
    return choices_table(engine)


def choices_table(engine: ChoosingEngine) -> str:
    """An engine's choices as a Markdown table."""
    names = sorted({name for choice in engine.choices.values() for name in choice.milliseconds})
    lines = [
        "| product | left | right | stride | bits | engine | "
        + " | ".join(f"{name}, ms" for name in names)
        + " |",
        "|---" * (6 + len(names)) + "|",
    ]
    for case, choice in engine.choices.items():
        shapes = (case.left, case.right, case.geometry.stride)
        cells = [
            case.product.value,
            *("x".join(map(str, shape)) for shape in shapes),
            "/".join(map(str, case.bits)) if any(case.bits) else "reals",
            choice.engine.name,
        ]
        for name in names:
            spent = choice.milliseconds.get(name)
            known = "" if spent is None else f"{spent:.2f}"
            cells.append("wrong" if name in choice.wrong else known)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(given: argparse.Namespace, rows: list[Row], chosen: dict[str, str]) -> None:
    """docs/results/train_step.json and .md."""
    command = " ".join(["python benchmarks/train_step.py", *sys.argv[1:]])
    facts = machine()
    record = {
        "command": command,
        "machine": facts,
        "load_average": os.getloadavg()[0],
        "batch": given.batch,
        "clock": given.clock,
        "rounds": given.rounds,
        "results": [asdict(r) for r in rows],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "train_step.json").write_text(json.dumps(record, indent=2) + "\n")
    head = ", ".join(f"{key} {value}" for key, value in facts.items())
    lines = [
        "# Training step in 8 bits against float32",
        f"`{command}` on {head}; batch {given.batch}; {given.clock} clock; {given.rounds} rounds, "
        f"all arms in turn; load {os.getloadavg()[0]:.1f}. Ratios are medians of those within a "
        "round. What the arms are: the head of `benchmarks/train_step.py`.",
        table(rows),
        "## Which engine was chosen",
        "By measurement, once for each product and shape; milliseconds of each engine. The numbers "
        "that they give are the same.",
        *(f"{net}:\n\n{text}" for net, text in chosen.items()),
    ]
    (RESULTS / "train_step.md").write_text("\n\n".join(lines).rstrip() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=["resnet20", "alexnet"])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="cpu: for a machine in use by others"
    )
    parser.add_argument("--memory", choices=list(ARMS), help="print one arm's peak and stop")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.memory:
        print(peak(given.nets[0], given.memory, given.batch))
        return
    rows: list[Row] = []
    for net in given.nets:
        print(f"{net} ...", file=sys.stderr, flush=True)
        rows += measure(net, given)
    print(table(rows))
    if not given.no_write:
        write(given, rows, {net: choices(net, given.batch) for net in given.nets})


if __name__ == "__main__":
    main()
