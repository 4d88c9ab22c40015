# SPDX-License-Identifier: Apache-2.0
"""The time model of training against measured epochs, and against printed hours.

    python benchmarks/training_costs.py                     # all parts, writes docs/results/
    python benchmarks/training_costs.py --models resnet20 --images 640 --no-write

Three parts:

* *Measured.* The profiler measures every product, quantizing, and the rest of a step; the model
  adds them up. Then the network really trains on CIFAR-10 images, some epochs at every level (a
  replayed schedule), and the time of those epochs stands beside the modelled one. The first epoch
  of each level warms up and is left out; the median of the others counts. ``--clock cpu`` takes
  the processor's time on one thread instead of the wall clock, where other programs run.
* *Printed.* The model fed with what the published hours of MuPPET imply (see published_costs.py).
* *Data sheet.* The roofline of an RTX 2080 Ti for the published networks, nothing fitted, against
  the same hours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import published_costs
import torch

from bitwright.base.files import atomic_write
from bitwright.data import DataSplits, load_dataset
from bitwright.low_precision.arithmetic.choose import make_engine
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.devices import load_device
from bitwright.low_precision.costs.given import read_costs
from bitwright.low_precision.costs.model import CostTable, Variant
from bitwright.low_precision.costs.profiler import CLOCKS, Setup, profile_network
from bitwright.low_precision.costs.roofline import forecast_costs
from bitwright.low_precision.costs.schedule import Schedule
from bitwright.models import build_model
from bitwright.pipeline.api import versions
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.train import TrainConfig, TrainProgress, fit

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
LADDER = ("int8", "int12", "int14", "int16", "float32")
EPOCHS = 4  # at every level
BATCH = 128
IMAGENET = 1_281_167
#: Network of the zoo, batch: as published.
PUBLISHED = {
    "alexnet": ("alexnet_imagenet", 256),
    "resnet18": ("resnet18_imagenet", 256),
    "googlenet": ("googlenet_imagenet", 256),
}


def measured(name: str, splits: DataSplits, given: argparse.Namespace) -> dict[str, Any]:
    """One network: modelled and measured steps at every level."""
    images, engine = len(splits.train), given.engine
    low = LowPrecision(
        policy={
            "kind": "replay",
            "schedule": [[i * EPOCHS, level] for i, level in enumerate(LADDER)],
        },
        ladder=LADDER,
        engine=engine,
        float_epochs=EPOCHS,
        accumulator="exact",
    )
    steps = images // BATCH
    model = build_model(name, 10, (32, 32, 3))
    setup = Setup(BATCH, steps, repeats=given.repeats, clock=given.clock)
    # what a policy that watches gradients costs is measured too
    table = profile_network(
        model, (3, 32, 32), LowPrecision(ladder=LADDER), make_engine(engine), setup, name=name
    )
    seconds = epochs_of(name, low, splits, CLOCKS[given.clock])
    rows = []
    for level in LADDER:
        epoch = table.epoch(level, adaptive=False)
        taken = seconds[level]
        rows.append(
            {
                "level": level,
                "rest_ms": 1e3 * epoch.rest.seconds / steps,
                "products_ms": 1e3 * epoch.products.seconds / steps,
                "quantize_ms": 1e3 * epoch.quantize.seconds / steps,
                "modelled_ms": 1e3 * epoch.total.seconds / steps,
                "spread_ms": 1e3 * epoch.total.spread / steps,
                "ideal_ms": 1e3
                * table.epoch(level, Variant.IDEAL, adaptive=False).total.seconds
                / steps,
                "measured_ms": 1e3 * statistics.median(taken) / steps,
                "measured_all_ms": [1e3 * each / steps for each in taken],
            }
        )
    return {
        "network": name,
        "steps": steps,
        "policy_ms": 1e3 * table.policy.seconds,
        "notes": list(table.notes),
        "rows": rows,
        "runs": runs_of(table, seconds),
    }


def epochs_of(
    name: str, low: LowPrecision, splits: DataSplits, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Level -> time of its epochs but the first, from a real training run."""
    config = TrainConfig(
        epochs=EPOCHS * len(LADDER),
        batch_size=BATCH,
        lr=0.01,
        optimizer="sgd",
        nesterov=False,
        weight_decay=1e-4,
        schedule="constant",
        keep="last",
        low_precision=low,
    )
    model = build_model(name, 10, (32, 32, 3))
    marks = [clock()]

    def told(state: TrainProgress) -> None:
        if state.last is not None and state.last.epoch == len(marks):
            marks.append(clock())

    with tempfile.TemporaryDirectory() as folder:
        fit(model, splits, config, run_dir=Path(folder), on_progress=told)
    found: dict[str, list[float]] = {level: [] for level in LADDER}
    for number, (start, end) in enumerate(pairwise(marks)):
        if number % EPOCHS:
            found[LADDER[number // EPOCHS]].append(end - start)
    return found


def runs_of(table: CostTable, seconds: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Whole schedules, put together from modelled and from measured epochs."""
    found = []
    for phases in ("int8:37,int12:9,int14:5,int16:5,float32:45", "int8:105,float32:45"):
        levels = [part.split(":") for part in phases.split(",")]
        schedule = Schedule.of_levels(
            phases, [level for level, count in levels for _ in range(int(count))], adaptive=False
        )
        plain = Schedule.constant("float32", schedule.epochs, "float32")
        took = sum(int(count) * statistics.median(seconds[level]) for level, count in levels)
        base = schedule.epochs * statistics.median(seconds["float32"])
        ours, theirs = table.run(schedule), table.run(plain)
        found.append(
            {
                "schedule": phases,
                "modelled_s": ours.total.seconds,
                "measured_s": took,
                "modelled_speed_up": ours.speed_up(theirs),
                "measured_speed_up": base / took,
            }
        )
    return found


def printed() -> list[dict[str, Any]]:
    """Modelled beside printed ratios, table 3.2 of Vink 2023."""
    rows = []
    for row in published_costs.TABLE:
        given = read_costs(published_costs.FOLDER / f"muppet-{row.network}.toml")
        table, (muppet,) = given.table, given.schedules
        base = table.run(Schedule.constant("float32", published_costs.BASELINE, "float32"))
        runs = (
            table.run(Schedule.constant("float16", published_costs.BASELINE, "x"), Variant.IDEAL),
            table.run(muppet),
            table.run(muppet, Variant.IDEAL),
        )
        kinds = zip(("mixed", "current", "ideal"), runs, row.ratios, strict=True)
        for kind, run, ratio in kinds:
            rows.append(
                {
                    "network": row.name,
                    "kind": kind,
                    "schedule": str(run.schedule),
                    "printed_min": getattr(row, kind),
                    "modelled_min": run.total.seconds / 60,
                    "printed_ratio": ratio,
                    "modelled_ratio": run.speed_up(base),
                }
            )
    return rows


def data_sheet() -> list[dict[str, Any]]:
    """Rooflines of an RTX 2080 Ti beside printed epochs; nothing is fitted."""
    device = load_device("rtx-2080-ti")
    rows = []
    for row in published_costs.TABLE:
        name, batch = PUBLISHED[row.network]
        model = build_model(name, 1000, (224, 224, 3))
        network = count_network(model, (3, 224, 224), batch, name)
        table = forecast_costs(network, device, ("float16", "int8"), IMAGENET // batch)
        plain = table.epoch("float32").total.seconds
        mixed = table.epoch("float16", Variant.IDEAL).total.seconds
        rows.append(
            {
                "network": row.name,
                "gmacs_per_image": network.macs / batch / 1e9,
                "products": len(network.products),
                "roofline_epoch_s": plain,
                "printed_epoch_s": 60 * row.float32 / published_costs.BASELINE,
                "roofline_mixed_ratio": plain / mixed,
                "printed_mixed_ratio": row.ratios[0],
                "products_share": table.epoch("float32").products.seconds / plain,
            }
        )
    return rows


def page(record: Mapping[str, Any]) -> str:
    """Markdown."""
    facts = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    lines = [
        "# The time model of training",
        "",
        f"`{record['command']}`",
        "",
        f"{record['machine']}, {record['threads']} thread(s), {record['clock']} time, load average "
        f"{record['load_average']:.1f} at the end; {facts}.",
        "",
    ]
    for found in record["measured"]:
        lines += [*network_lines(found), ""]
    lines += [*printed_lines(record["printed"]), "", *sheet_lines(record["data_sheet"])]
    return "\n".join(lines) + "\n"


def network_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## {found['network']}, batch {BATCH}: modelled and measured",
        "",
        "Milliseconds of a step. The model adds up parts that were measured one by one; measured "
        "are training epochs. Spread: half the range of the parts, added up.",
        "",
        "| level | rest | products | quantizing | modelled | spread | measured | modelled / "
        "measured | ideal |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['level']} | {row['rest_ms']:.0f} | {row['products_ms']:.0f} | "
            f"{row['quantize_ms']:.0f} | {row['modelled_ms']:.0f} | {row['spread_ms']:.0f} | "
            f"{row['measured_ms']:.0f} | {row['modelled_ms'] / row['measured_ms']:.2f} | "
            f"{row['ideal_ms']:.0f} |"
        )
    lines += [
        "",
        f"{'; '.join(found['notes'])}. A rest of 0 means that the products, timed alone, took "
        "longer than the step they were taken from; colder caches and other programs are likely "
        "reasons.",
        "",
        f"Deciding about precision after an epoch: {found['policy_ms']:.1f} ms.",
        "",
        "| run | speed-up over float32 at equal epochs, modelled | measured |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {run['schedule']} | {run['modelled_speed_up']:.2f} | {run['measured_speed_up']:.2f} |"
        for run in found["runs"]
    ]
    return lines


def printed_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "## Printed hours: Vink 2023, table 3.2 (ImageNet, RTX 2080 Ti)",
        "",
        "`mixed` and `current` are identities: each has a number of its own that was solved for. "
        "`ideal` is a weak check: whole numbers of epochs that the switching rule allows reach the "
        "printed hours. The equations are in benchmarks/published_costs.py.",
        "",
        "| network | run | printed, min | modelled, min | printed ratio | modelled ratio |",
        "|---|---|---:|---:|---:|---:|",
    ]
    return lines + [
        f"| {row['network']} | {row['kind']} | {row['printed_min']} | {row['modelled_min']:.1f} | "
        f"{row['printed_ratio']:.2f} | {row['modelled_ratio']:.3f} |"
        for row in rows
    ]


def sheet_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "## Data sheet against printed hours",
        "",
        "The roofline of an RTX 2080 Ti, counted products and public peak rates, batch 256, "
        "nothing fitted: a lower bound of an epoch, and what mixed precision would gain at best.",
        "",
        "| network | GMAC an image and step | epoch, roofline, s | printed, s | roofline / printed "
        "| mixed precision, roofline | printed |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    return lines + [
        f"| {row['network']} | {row['gmacs_per_image']:.2f} | {row['roofline_epoch_s']:.0f} | "
        f"{row['printed_epoch_s']:.0f} | {row['roofline_epoch_s'] / row['printed_epoch_s']:.2f} | "
        f"{row['roofline_mixed_ratio']:.2f} | {row['printed_mixed_ratio']:.2f} |"
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["resnet20", "alexnet"])
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--engine", default="auto", choices=["auto", "emulated", "integer"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    whole = load_dataset("cifar10")
    splits = replace(
        whole,
        train=whole.train.take(range(given.images)),
        # as good as no validation, whose time an epoch has too
        validation=whole.validation.take(range(8)),
    )
    found = []
    for name in given.models:
        found.append(measured(name, splits, given))
        print("\n".join(network_lines(found[-1])), file=sys.stderr, flush=True)
    record = {
        "command": " ".join(["python benchmarks/training_costs.py", *sys.argv[1:]]),
        "machine": cpu_name(),
        "threads": given.threads,
        "clock": given.clock,
        "load_average": os.getloadavg()[0],
        "versions": versions(),
        "measured": found,
        "printed": printed(),
        "data_sheet": data_sheet(),
    }
    text = page(record)
    print(text)
    if not given.no_write:
        atomic_write(RESULTS / "training_costs.json", json.dumps(record, indent=1) + "\n")
        atomic_write(RESULTS / "training_costs.md", text)


if __name__ == "__main__":
    main()
