# SPDX-License-Identifier: Apache-2.0
"""What a teacher is worth to a four-bit DenseNet on CIFAR-10, on a CPU: the arms of a study.

    python benchmarks/distillation_cifar.py --runs RUNS --seeds 0 1

For each seed a `bitwright study` of one seed, over every arm and self-study for as many epochs as
all phases have together (``ss_equal``). The float networks come with the package and are the same
for all seeds; a seed changes the order of images, their augmentation, and nothing else. Differences
are paired: the same images, seeds averaged. Test images are used once an arm, for no choice.

An interrupted run goes on where it was. Writes docs/results/distillation_cifar.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.api import versions
from bitwright.files import atomic_write
from bitwright.lab.study import StudyRequest, run_study
from bitwright.lab.study_jobs import ARMS, RIGHT
from bitwright.recipe import load_recipe
from bitwright.steps.baseline import cpu_name
from bitwright.steps.results import TeachResult, load_result
from bitwright.steps.workspace import step_folder
from bitwright.train.config import PHASES

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
RECIPE = "cifar-densenet21-qkd-small"
#: Which differences the page shows: (should be better, should be worse).
PAIRS = (
    ("baseline", "qkd"),
    ("qkd", "ss"),
    ("ss", "ptq"),
    ("qkd", "ss_equal"),
    ("qkd", "ss_ts"),
    ("ss_ts", "ss"),
)
Shares = NDArray[np.float64]


def one_seed(recipe: str, seed: int, runs: Path) -> Path:
    """Run the study with this seed of its phases; gives the folder of its arms."""
    changes = [f"train.quantized.{phase}.seed={seed}" for phase in PHASES]
    out = runs / f"phases-{seed}"
    request = StudyRequest(load_recipe(recipe, changes), out, seeds=1, arms=tuple(ARMS), threads=1)
    report = run_study(request)
    if report.failures:
        sys.exit("\n".join(report.failures))
    return out / "seed-0" / "own"


def told_rightly(folders: Sequence[Path], arm: str) -> Shares:
    """(seeds, images) 1 where the arm's network is right about a test image."""
    rows = []
    for folder in folders:
        with np.load(folder / RIGHT) as kept:
            rows.append(kept[arm])
    return np.array(rows, dtype=np.float64)


def arm_row(folders: Sequence[Path], arm: str) -> dict[str, Any]:
    """Accuracy of each seed, mean, and both errors of the mean, in points."""
    found = [json.loads((folder / "result.json").read_text())["value"][arm] for folder in folders]
    points = [100 * value["test"] for value in found]
    right = told_rightly(folders, arm).mean(axis=0)
    return {
        "arm": arm,
        "epochs": found[0]["epochs"],
        "test": points,
        "mean": float(np.mean(points)),
        "error_seeds": error(np.array(points)) if len(points) > 1 else None,
        "error_images": error(100 * right),
        "validation": [100 * value["validation"] for value in found],
        "train": [100 * value["train"] for value in found],
    }


def pair_row(folders: Sequence[Path], better: str, worse: str) -> dict[str, Any]:
    """The paired difference, with the errors that images and seeds give it, in points."""
    apart = 100 * (told_rightly(folders, better) - told_rightly(folders, worse))
    seeds = apart.mean(axis=1)
    return {
        "better": better,
        "worse": worse,
        "difference": float(apart.mean()),
        "seeds": [float(value) for value in seeds],
        "error_seeds": error(seeds) if len(seeds) > 1 else None,
        "error_images": error(apart.mean(axis=0)),
    }


def error(values: Shares) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


def minutes(folder: Path) -> dict[str, float]:
    """What each phase of each arm took."""
    found = {}
    for path in sorted(folder.glob("*/*/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        name = "/".join(path.parts[-3:-1])
        found[name] = sum(row["seconds"] for row in rows) / 60
    return found


def page(content: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Distillation on CIFAR-10: four bits, on a CPU\n",
        f"`{content['command']}`; recipe `{content['recipe']}`, seeds {content['seeds']} of the "
        f"phases; {content['machine']}; torch {content['versions']['torch']}, "
        f"{content['date']}. Test accuracy on {content['images']} images, few-bit networks as "
        "integers. The images are a copy of CIFAR-10 whose files are JPEG, recompressed: "
        f"on them the float student reaches {content['rows'][0]['mean']:.2f} % and the float "
        f"teacher {content['teacher']:.2f} %. Both errors are standard errors of the mean.\n",
        "| arm | epochs in few bits | test accuracy, % | +- images | +- seeds | by seed |",
        "|---|---|---|---|---|---|",
    ]
    for row in content["rows"]:
        each = ", ".join(f"{value:.2f}" for value in row["test"])
        lines.append(
            f"| {row['arm']} | {row['epochs']} | {row['mean']:.2f} | {row['error_images']:.2f} | "
            f"{optional(row['error_seeds'])} | {each} |"
        )
    lines.append("")
    lines += [f"- {row['arm']}: {ARMS[row['arm']]}" for row in content["rows"]]
    lines += [
        "\nDifferences on the same images, in points:\n",
        "| | difference | +- images | +- seeds | by seed |",
        "|---|---|---|---|---|",
    ]
    for row in content["pairs"]:
        each = ", ".join(f"{value:+.2f}" for value in row["seeds"])
        lines.append(
            f"| {row['better']} - {row['worse']} | {row['difference']:+.2f} | "
            f"{row['error_images']:.2f} | {optional(row['error_seeds'])} | {each} |"
        )
    total = sum(content["minutes"].values())
    lines.append(f"\nTraining in few bits, all arms of one seed: {total:.0f} minutes.")
    return "\n".join(lines) + "\n"


def optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    chosen = parser.parse_args()
    folders = [one_seed(chosen.recipe, seed, chosen.runs) for seed in chosen.seeds]
    floats = folders[0].parent / "float" / "run" / step_folder("teach")
    content = {
        "command": "python benchmarks/distillation_cifar.py " + " ".join(sys.argv[1:]),
        "recipe": chosen.recipe,
        "seeds": chosen.seeds,
        "images": told_rightly(folders, "ptq").shape[1],
        "machine": f"{cpu_name()}, 1 thread",
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
        "teacher": 100 * load_result(TeachResult, floats).accuracy.value,
        "rows": [arm_row(folders, arm) for arm in ARMS],
        "pairs": [pair_row(folders, *pair) for pair in PAIRS],
        "minutes": minutes(folders[0]),
        "resolved": load_recipe(chosen.recipe).resolved(),
    }
    atomic_write(RESULTS / "distillation_cifar.json", json.dumps(content, indent=1) + "\n")
    atomic_write(RESULTS / "distillation_cifar.md", page(content))
    print(page(content))


if __name__ == "__main__":
    main()
