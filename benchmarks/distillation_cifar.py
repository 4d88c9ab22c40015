# SPDX-License-Identifier: Apache-2.0
"""What a teacher is worth to a few-bit DenseNet on CIFAR-10: the arms of the three-phase study.

    python benchmarks/distillation_cifar.py --runs RUNS --seeds 0 1

Every arm starts from the same float student; ``qat`` trains it alone for as many epochs as all
three phases of ``qkd`` together. Quantized networks are measured as integers. An interrupted arm
goes on from its last whole epoch, and arms that begin alike share the beginning. The test images
are used once an arm, and never to choose anything.

Writes docs/results/distillation_cifar.json and .md.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bitwright.api import Pipeline, versions
from bitwright.files import atomic_write
from bitwright.recipe import load_recipe
from bitwright.run import no_progress
from bitwright.steps.quantize import calibrated, frozen_from
from bitwright.steps.teach import taught
from bitwright.steps.train import trained_model
from bitwright.steps.workspace import Workspace, step_folder
from bitwright.train import evaluate
from bitwright.train.config import Phases
from bitwright.train.phases import study

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
RECIPE = "cifar-densenet21-qkd-small"
ORDER = ("ptq", "ss", "qat", "ss_ts", "qkd", "baseline")
TITLES = {
    "teacher": "teacher, float",
    "baseline": "baseline: student, float",
    "ptq": "ptq: calibrated, not trained",
    "ss": "ss: self-study (QAT)",
    "qat": "qat: self-study, as many epochs as qkd",
    "ss_ts": "ss_ts: self-study, tutor-study",
    "qkd": "qkd: self-, co-, tutor-study",
}
#: Which differences the page shows: (better, worse).
PAIRS = (
    ("baseline", "qkd"),
    ("qkd", "ss"),
    ("qkd", "qat"),
    ("qkd", "ss_ts"),
    ("ss_ts", "ss"),
    ("ss", "ptq"),
)


@dataclass(frozen=True)
class Networks:
    """The float networks that a study starts from."""

    student: nn.Module
    teacher: nn.Module


def phases_of(arm: str, whole: Phases) -> Phases | None:
    """What an arm trains; None: nothing."""
    alone, together, taught = whole.self_study, whole.co_study, whole.tutor_study
    if alone is None or together is None or taught is None:
        sys.exit("the recipe must have all three phases")
    match arm:
        case "ss":
            return Phases(self_study=alone)
        case "qat":
            epochs = alone.epochs + together.epochs + taught.epochs
            return Phases(self_study=alone.model_copy(update={"epochs": epochs}))
        case "ss_ts":
            return Phases(self_study=alone, tutor_study=taught)
        case "qkd":
            return whole
    return None


def seeded(phases: Phases, seed: int) -> Phases:
    """The same phases with another seed."""
    changed = {name: config.model_copy(update={"seed": seed}) for name, config in phases.present}
    return phases.model_copy(update=changed)


def run_arm(work: Workspace, nets: Networks, arm: str, seed: int, runs: Path) -> dict[str, Any]:
    """Train one arm, measure it once on the test images, and keep what was predicted."""
    folder = runs / f"seed{seed}" / arm
    record = folder / "result.json"
    if record.exists():
        return dict(json.loads(record.read_text()))
    whole = work.recipe.train.quantized
    if whole is None:
        sys.exit("the recipe must name phases")
    phases = phases_of(arm, whole)
    shared = runs / f"seed{seed}" / "ss" / "self_study"
    if phases is not None and arm in ("ss_ts", "qkd") and shared.exists():
        shutil.copytree(shared, folder / "self_study", dirs_exist_ok=True)
    started = time.perf_counter()
    found: dict[str, Any] = {"arm": arm, "seed": seed, "phases": {}}
    model: nn.Module = copy.deepcopy(nets.teacher if arm == "teacher" else nets.student)
    if arm not in ("teacher", "baseline"):
        model = calibrated(work, model, no_progress)
        if phases is not None:
            pupil = copy.deepcopy(nets.teacher)
            done = study(model, work.data, seeded(phases, seed), run_dir=folder, teacher=pupil)
            found["phases"] = {
                each.name: [
                    [entry.train_accuracy, entry.validation_accuracy, entry.seconds]
                    for entry in each.result.history
                ]
                for each in done
            }
            if phases.co_study is not None:
                found["teacher_after"] = evaluate(pupil, work.data.validation).accuracy
        model = frozen_from(work, model)
    found["validation"] = evaluate(model, work.data.validation).accuracy
    measured = evaluate(model, work.data.test)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "hits.npy", measured.predictions == work.data.test.labels)
    found["accuracy"] = measured.accuracy
    found["seconds"] = time.perf_counter() - started
    atomic_write(record, json.dumps(found))
    return found


def hits_of(runs: Path, seeds: list[int], arm: str) -> NDArray[np.float64]:
    """(images,) share of the seeds whose network is right about each test image."""
    paths = [runs / f"seed{seed}" / arm / "hits.npy" for seed in seeds]
    rows = [np.load(path) for path in paths if path.exists()]
    return np.mean(rows, axis=0, dtype=np.float64)


def paired(better: NDArray[np.float64], worse: NDArray[np.float64]) -> tuple[float, float]:
    """Mean difference of two networks on the same images, and its standard error, in points."""
    difference = 100 * (better - worse)
    return float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)


def table(results: list[dict[str, Any]], runs: Path, seeds: list[int]) -> list[dict[str, Any]]:
    """One row an arm: accuracy of each seed, mean and spread, and what its training took."""
    rows = []
    for arm in ("teacher", *ORDER):
        of_arm = [found for found in results if found["arm"] == arm]
        if not of_arm:
            continue
        points = [100 * found["accuracy"] for found in of_arm]
        share = hits_of(runs, seeds, arm)
        curves = [curve for found in of_arm for curve in found["phases"].values()]
        rows.append(
            {
                "arm": arm,
                "seeds": points,
                "mean": float(np.mean(points)),
                "spread": float(np.std(points, ddof=1)) if len(points) > 1 else None,
                "standard_error": float(100 * share.std(ddof=1) / len(share) ** 0.5),
                "validation": [100 * found["validation"] for found in of_arm],
                "epochs": sum(len(curve) for curve in of_arm[0]["phases"].values()),
                "minutes": sum(row[2] for curve in curves for row in curve) / 60 / len(of_arm),
            }
        )
    return rows


def page(content: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Distillation on CIFAR-10, four bits, on a CPU\n",
        f"`{content['command']}`; recipe `{content['recipe']}`, seeds {content['seeds']}, "
        f"{content['machine']}, torch {content['versions']['torch']}, {content['date']}. "
        f"{content['images']} test images, never used for a choice; few-bit networks measured as "
        "integers.\n",
        "| arm | test accuracy, % (mean of seeds) | by seed | of images: +- | epochs | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for row in content["rows"]:
        each = ", ".join(f"{value:.2f}" for value in row["seeds"])
        lines.append(
            f"| {TITLES[row['arm']]} | {row['mean']:.2f} | {each} | {row['standard_error']:.2f} | "
            f"{row['epochs'] or '-'} | {row['minutes']:.0f} |"
        )
    lines += [
        "\nDifferences on the same images (points; standard error of the paired difference):\n",
        "| better | worse | difference | +- | standard errors |",
        "|---|---|---|---|---|",
    ]
    for row in content["pairs"]:
        ratio = row["difference"] / row["error"] if row["error"] else float("inf")
        lines.append(
            f"| {row['better']} | {row['worse']} | {row['difference']:+.2f} | {row['error']:.2f} | "
            f"{ratio:.1f} |"
        )
    return "\n".join(lines) + "\n"


def networks(work: Workspace, run_dir: Path) -> Networks:
    """The recipe's float student and teacher, trained or read by its own steps."""
    if len(work.recipe.teacher) != 1:
        sys.exit("the recipe must name one teacher")
    Pipeline(work.recipe, run_dir).build("train")
    student = trained_model(work, run_dir / step_folder("train"))
    return Networks(student, taught(work, run_dir / step_folder("teach")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--set", action="append", default=[], help="change the recipe: a.b=value")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", default=["teacher", "baseline", *ORDER[:-1]])
    parser.add_argument("--dry", action="store_true", help="train and print, write no page")
    chosen = parser.parse_args()
    work = Workspace(load_recipe(chosen.recipe, chosen.set))
    nets = networks(work, chosen.runs / "float")
    results = []
    for seed in chosen.seeds:
        for arm in chosen.arms:
            results.append(run_arm(work, nets, arm, seed, chosen.runs))
            found = results[-1]
            print(arm, seed, f"{100 * found['validation']:.2f} {100 * found['accuracy']:.2f}")
    rows = table(results, chosen.runs, chosen.seeds)
    pairs = []
    for better, worse in PAIRS:
        if {better, worse} <= set(chosen.arms):
            shares = (hits_of(chosen.runs, chosen.seeds, arm) for arm in (better, worse))
            difference, error = paired(*shares)
            pair = {"better": better, "worse": worse, "difference": difference, "error": error}
            pairs.append(pair)
    content = {
        "command": "python benchmarks/distillation_cifar.py " + " ".join(sys.argv[1:]),
        "recipe": work.recipe.name,
        "resolved": work.recipe.resolved(),
        "seeds": chosen.seeds,
        "images": len(work.data.test),
        "machine": f"{cpu()}, 1 thread",
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
        "rows": rows,
        "pairs": pairs,
    }
    print(page(content))
    if not chosen.dry:
        atomic_write(RESULTS / "distillation_cifar.json", json.dumps(content, indent=1) + "\n")
        atomic_write(RESULTS / "distillation_cifar.md", page(content))


def cpu() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((li.split(":")[1].strip() for li in lines if li.startswith("model name")), "?")


if __name__ == "__main__":
    main()
