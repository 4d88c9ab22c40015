# SPDX-License-Identifier: Apache-2.0
"""The modified DenseNets on this machine's platforms and on the model of the published DPU.

    python benchmarks/dpu_bench.py [densenet21 ..] [--workers N] [--seconds S] [--threads 1,2,4]
        [--out DIR]

Fresh weights (which change no time), 100 classes, the preset dpu; CPU float32 by ONNX Runtime, CPU
int8 by the integer executor, a GPU if there is one: sweeps of batches and threads, energies with
measured or nominal power, as tables 7.1 to 7.3 of Vailakis 2022. Besides: whether two threads
of the executor give 1.8 times one, and whether int8 is faster than float32 at batch 1 and at the
best batch (the document's int8 was not at batch 1). Nothing else must run on the machine. Writes
files into docs/results/dpu_bench/.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

import torch

from bitwright.base.processors import available_threads
from bitwright.explore.bench.engines import engines_of
from bitwright.explore.bench.page import Benched, write_bench
from bitwright.explore.bench.performance import Performance, against
from bitwright.explore.bench.power import NOMINAL, counters
from bitwright.explore.bench.subject import BenchSubject, smallest
from bitwright.explore.bench.sweep import SweepSettings, Swept, performances, sweep
from bitwright.models import build_model
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.quantize import Policy, integerize
from bitwright.quantize.ptq.post_training import post_training_quantize

OUT = Path(__file__).resolve().parents[1] / "docs/results/dpu_bench"
NETWORKS = ("densenet21", "densenet37", "densenet63")
_IMAGES = 256
#: Times that two runner threads of the executor are to do what one does.
_TWO = 1.8


def subject(name: str) -> BenchSubject:
    """A modified DenseNet of fresh weights with random images."""
    model = build_model(
        {"name": name, "options": {"form": "convolution_first"}}, 100, (32, 32, 3)
    ).eval()
    policy = Policy.from_dict({"preset": "dpu"})
    images = torch.rand(_IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    converted, _ = post_training_quantize(model, policy, images[:4], policy.methods)
    integers = integerize(converted.eval(), policy, (3, 32, 32), name)
    levels = integers.input_levels(images).permute(0, 2, 3, 1).long().numpy()
    return BenchSubject(name, integers.graph, smallest(levels), model, images.numpy())


def gain_of_two(swept: Swept) -> str:
    """How much two threads of the executor do more than one."""
    rates = {
        p.threads: p.throughput
        for p in swept.points
        if p.platform == "cpu int8" and p.batch == 1 and p.workers == 1
    }
    if not {1, 2} <= rates.keys():
        return "threads 1 and 2 were not both measured"
    gain = rates[2] / rates[1]
    return (
        f"cpu int8: two runner threads do {gain:.2f} times what one does "
        f"({_TWO} asked: {_met(gain >= _TWO)})."
    )


def against_float(platforms: Sequence[Performance]) -> str:
    """Whether the integers are faster than float32 on the CPU, in latency and in throughput."""
    found = {p.platform: p for p in platforms}
    if not {"cpu int8", "cpu float32"} <= found.keys():
        return "cpu int8 and cpu float32 were not both measured"
    ratios = against(found["cpu int8"], found["cpu float32"])
    return (
        f"cpu int8 against cpu float32: {ratios.latency:.2f} times as fast at batch 1, "
        f"{ratios.throughput:.2f} times at the best batch or number of threads of each "
        f"(above 1 asked in both: {_met(min(ratios.latency, ratios.throughput) > 1)})."
    )


def _met(reached: bool) -> str:
    return "reached" if reached else "not reached"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--workers", type=int, default=available_threads())
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    settings = SweepSettings(
        batches=tuple(map(int, given.batches.split(","))),
        threads=tuple(map(int, given.threads.split(","))),
        workers=given.workers,
        seconds=given.seconds,
    )
    results = []
    for name in given.networks:
        one = subject(name)
        swept = sweep(one, settings, engines=engines_of(one))
        platforms = performances(swept, NOMINAL)
        notes = (gain_of_two(swept), against_float(platforms), *swept.notes)
        results.append(Benched(name, swept.points, platforms, notes))
        print(name, *notes, sep="\n  ")
    facts = {
        "command": "python benchmarks/dpu_bench.py",
        "date": datetime.date.today().isoformat(),
        "processor": f"{cpu_name()}, {available_threads()} cores",
        "power": "measured by RAPL" if counters() else "constants: this machine shows none",
        "torch": torch.__version__,
    }
    print(write_bench(given.out, results, facts)["md"])


if __name__ == "__main__":
    main()
