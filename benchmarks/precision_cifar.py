# SPDX-License-Identifier: Apache-2.0
"""MuPPET on CIFAR-10 against float32 at equal epochs, and against random schedules of equal cost.

    python benchmarks/precision_cifar.py --runs RUNS --seeds 0 1 2 --workers 2
    python benchmarks/precision_cifar.py --runs RUNS --collect   # only the page, of what is there

ResNet-20, SGD as MuPPET's authors have it. Without a GPU the run is short: `--images` of the
training images, and a policy that decides `SCALE` times faster, with everything else as published.
Every seed has these runs:

* ``muppet``: the policy decides when to switch.
* ``fp32``: float32 for as many epochs as that run had, its learning rate divided by 10 after a
  third and two thirds of them.
* ``fp32_rates``: float32 for as many epochs, its learning rate falling as MuPPET's does: constant,
  and in the last phase divided by 10 every few epochs. What differs is the precision alone.
* ``random``: the first three switches at random epochs, the switch to float32 where the policy put
  it: as many epochs and as much float32. (`--randoms` of them a seed.)
* ``int8``: the lowest level until then.

Test images are looked at once a run, behind its last epoch, for no choice. An interrupted run goes
on. Writes docs/results/precision_cifar.json and .md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bitwright.base.files import atomic_write
from bitwright.base.statistics import mean_of
from bitwright.data import load_dataset
from bitwright.low_precision.log import read_log
from bitwright.models import build_model
from bitwright.pipeline.api import versions
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.train import TrainConfig, evaluate, fit

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
#: How much faster the shortened policy decides: its threshold falls so much faster.
LAMBDA, RESOLUTION, PATIENCE = 0.6, 2, 2
FLOAT_EPOCHS, LR_EVERY, MOST_EPOCHS = 6, 2, 30
VALIDATION = 500
LIMIT_S = 4 * 3600
RESULT = "result.json"
NOTES = """
Runs are short: a hundredth of the steps of a full schedule, so all accuracies are far below what
ResNet-20 reaches (published: 90.08 % in float32, 90.86 % with MuPPET, five runs of the full
schedule on a GPU). `fp32` drops its rate after a third of this little and stays behind for that
reason; `fp32_rates` is the comparison of precision alone. Random schedules leave 8, 12 and 14 bits
at random epochs, and all else is as in the seed's MuPPET run. The policy's threshold falls six
times faster (lambda 0.6), with a window of r = 2; these were chosen before the first of these runs,
after a run of two seeds with lambda 0.4 and more images had been stopped for lack of time. The
machine was used by others meanwhile, so the seconds in the JSON file say nothing about the speed of
an arm (`train_step.md`, `training_costs.md` do).

Full length (150 epochs and more; `bitwright build cifar-resnet20-muppet`) needs a GPU or days and
has not been run.
"""


def config_of(arm: str, seed: int, known: Mapping[str, Any], threads: int) -> TrainConfig:
    """Settings of one run.

    Args:
        known: what the seed's ``muppet`` run found: its number of epochs and its switches.
    """
    settings: dict[str, Any] = {
        "batch_size": 128,
        "lr": 0.1,
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 1e-4,
        "weight_decay_on": "all",
        "augmentation": {"shift": 4, "flip": True},
        "keep": "last",
        "threads": threads,
        "seed": seed,
    }
    if arm == "fp32":
        return TrainConfig(
            **settings, epochs=known["epochs"], schedule="step", milestones=(1 / 3, 2 / 3)
        )
    policy: dict[str, Any] = {
        "kind": "muppet",
        "lambda": LAMBDA,
        "resolution": RESOLUTION,
        "patience": PATIENCE,
    }
    epochs = MOST_EPOCHS
    if arm == "fp32_rates":
        policy, epochs = {"kind": "fixed", "switch_at": 0}, int(known["epochs"])
    elif arm != "muppet":
        last = int(known["switches"][-1])
        epochs = last + FLOAT_EPOCHS
        starts = [0, last]
        levels: list[str | int] = [8, "float32"]
        if arm.startswith("random"):
            draw = np.random.default_rng([seed, int(arm.removeprefix("random"))])
            inner = sorted(int(i) + 1 for i in draw.choice(last - 1, 3, replace=False))
            starts, levels = [0, *inner, last], [8, 12, 14, 16, "float32"]
        policy = {"kind": "replay", "schedule": list(zip(starts, levels, strict=True))}
    low = {"policy": policy, "float_epochs": FLOAT_EPOCHS, "lr_every": LR_EVERY}
    return TrainConfig(**settings, epochs=epochs, low_precision=low)


def run_one(arm: str, seed: int, images: int, threads: int, folder: Path) -> None:
    """Train and measure one arm of one seed."""
    whole = load_dataset("cifar10")
    rng = np.random.default_rng(seed)
    splits = replace(
        whole,
        train=whole.train.take(rng.permutation(len(whole.train))[:images]),
        validation=whole.validation.take(rng.permutation(len(whole.validation))[:VALIDATION]),
    )
    known = {}
    if arm != "muppet":
        known = json.loads((folder.parent / "muppet" / RESULT).read_text())
    config = config_of(arm, seed, known, threads)
    model = build_model("resnet20", 10, (32, 32, 3), seed=seed)
    done = fit(model, splits, config, run_dir=folder)
    measured = evaluate(model, splits.test)
    log = folder / "precision.jsonl"
    entries = read_log(log) if log.exists() else ()
    levels = [entry.level for entry in entries] or ["float32"] * len(done.history)
    found = {
        "epochs": len(done.history),
        "switches": [entry.epoch for entry in entries if entry.switched_to is not None],
        "levels": levels,
        "accuracy": measured.accuracy,
        "loss": measured.loss,
        "seconds": [entry.seconds for entry in done.history],
        "validation": [entry.validation_accuracy for entry in done.history],
        "figures": [entry.to_dict() for entry in entries],
    }
    atomic_write(folder / RESULT, json.dumps(found).encode())


def collect(runs: Path, images: int) -> None:
    """Write the page of what is there."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for path in sorted(runs.glob(f"seed*/*/{RESULT}")):
        seed, arm = int(path.parts[-3].removeprefix("seed")), path.parts[-2]
        found.setdefault(arm, {})[seed] = json.loads(path.read_text())
    record = {"images": images, "machine": cpu_name(), "versions": versions(), "arms": found}
    atomic_write(RESULTS / "precision_cifar.json", json.dumps(record, indent=1).encode())
    atomic_write(RESULTS / "precision_cifar.md", page(record).encode())


def kind(arm: str) -> str:
    """Runs of one kind stand in one row."""
    return "random" if arm.startswith("random") else arm


def page(record: Mapping[str, Any]) -> str:
    groups: dict[str, list[dict[str, Any]]] = {}
    for arm, by_seed in record["arms"].items():
        groups.setdefault(kind(arm), []).extend(by_seed.values())
    rows = []
    for name in ("fp32", "fp32_rates", "muppet", "random", "int8"):
        runs = groups.get(name, [])
        if not runs:
            continue
        accuracy = [100 * run["accuracy"] for run in runs]
        epochs = sorted({run["epochs"] for run in runs})
        rows.append(
            f"| {name} | {len(runs)} | {spread(accuracy)} | {', '.join(map(str, epochs))} |"
        )
    return "\n".join(
        [
            "# MuPPET on CIFAR-10, shortened",
            "",
            "`python benchmarks/precision_cifar.py --runs RUNS --seeds 0 1 2 --workers 2`",
            "",
            f"{record['machine']}; {', '.join(f'{k} {v}' for k, v in record['versions'].items())}.",
            f"ResNet-20, {record['images']} training images, all 10 000 test images, one CPU",
            "thread a run. Mean and its standard error over runs.",
            "",
            "| arm | runs | test accuracy, % | epochs |",
            "|---|---:|---:|---|",
            *rows,
            "",
            *paired(record),
            *schedules(record),
            NOTES,
        ]
    )


def spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    mean = mean_of(values)
    return f"{mean.value:.2f}" + ("" if mean.error is None else f" +- {mean.error:.2f}")


def paired(record: Mapping[str, Any]) -> list[str]:
    """Differences to MuPPET, seed by seed: the same images, the same first weights."""
    ours = record["arms"].get("muppet", {})
    lines = []
    for other in ("fp32", "fp32_rates", "random", "int8"):
        differences = []
        for seed, run in ours.items():
            theirs = [
                by_seed[seed]["accuracy"]
                for arm, by_seed in record["arms"].items()
                if kind(arm) == other and seed in by_seed
            ]
            if theirs:
                differences.append(100 * (run["accuracy"] - float(np.mean(theirs))))
        if differences:
            lines.append(f"* MuPPET - {other}, paired by seed: {spread(differences)} points")
    return [*lines, ""]


def schedules(record: Mapping[str, Any]) -> list[str]:
    lines = ["| run | epochs done at each switch |", "|---|---|"]
    for arm, by_seed in record["arms"].items():
        lines += [
            f"| {arm}, seed {seed} | {', '.join(map(str, run['switches']))} |"
            for seed, run in by_seed.items()
            if run["switches"]
        ]
    return [*lines, ""]


def arms(randoms: int) -> list[str]:
    return ["muppet", "fp32", "fp32_rates", *(f"random{i}" for i in range(randoms))]


def run_all(options: argparse.Namespace) -> None:
    """Every run that is not done, ``--workers`` at a time, the policy's own first."""

    def work(task: tuple[str, int]) -> None:
        arm, seed = task
        folder = options.runs / f"seed{seed}" / arm
        if (folder / RESULT).exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, __file__, "--runs", str(options.runs), "--one", arm,
            "--seeds", str(seed), "--images", str(options.images),
            "--threads", str(options.threads),
        ]  # fmt: skip
        with (folder / "log.txt").open("w") as log:
            subprocess.run(command, stdout=log, stderr=log, timeout=LIMIT_S, check=True)
        print(f"seed {seed}: {arm} done", flush=True)

    wanted = options.arms or arms(options.randoms)
    for stage in (["muppet"], [arm for arm in wanted if arm != "muppet"]):
        tasks = [(arm, seed) for arm in stage if arm in wanted for seed in options.seeds]
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(work, tasks))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--randoms", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.one:
        folder = options.runs / f"seed{options.seeds[0]}" / options.one
        run_one(options.one, options.seeds[0], options.images, options.threads, folder)
        return
    if not options.collect:
        run_all(options)
    collect(options.runs, options.images)


if __name__ == "__main__":
    main()
