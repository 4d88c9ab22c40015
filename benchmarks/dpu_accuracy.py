# SPDX-License-Identifier: Apache-2.0
"""What the preset `dpu` costs: float, calibrated and trained in its integers, over three seeds.

    python benchmarks/dpu_accuracy.py --runs RUNS [digits mnist-cnn ...]   # goes on where it was
    python benchmarks/dpu_accuracy.py --runs RUNS --collect                # the page alone

Every seed has its own cut of the training images, first weights and order of images. Networks in
few bits are measured as integers, on the test images, which choose nothing. The page says how far
each is from the float network of its own seed. Writes docs/results/dpu_accuracy.json and .md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from results import keep, machine, table

from bitwright.base.statistics import mean_of
from bitwright.explore.study_jobs import ARMS, RIGHT

NAME = "dpu_accuracy"
SEEDS = 3
#: Points that the integers may lie below the float network.
ALLOWED = 0.3
_ARMS = ("baseline", "ptq", "ss")
_LATER = "co_study: {epochs: 1}, tutor_study: {epochs: 1}"  # a study names all; not trained here


@dataclass(frozen=True)
class Study:
    """A recipe, what is changed of it, and what the page says of that."""

    recipe: str
    told: str
    changes: tuple[str, ...]

    def command(self, out: Path) -> list[str]:
        given = ["quant=dpu", "train.pretrained=false", *self.changes]
        changes = [word for change in given for word in ("--set", change)]
        seeds = ["--arms", ",".join(_ARMS), "--seeds", str(SEEDS), "--threads", "1"]
        return ["study", self.recipe, *changes, *seeds, "--out", str(out)]


def _trained(self_study: str) -> str:
    return f"train.quantized={{self_study: {{{self_study}, threads: 1}}, {_LATER}}}"


STUDIES = {
    "digits": Study(
        "digits", "8 x 8 digits of scikit-learn, 360 test images: one is 0.28 points",
        (_trained("epochs: 15, batch_size: 32, lr: 0.001, keep: last"),),
    ),
    "mnist-cnn": Study(
        "mnist-cnn-w4a4", "MNIST, three convolutions, 4 float epochs, one in few bits",
        ("train.float.epochs=4", _trained("epochs: 1, batch_size: 128, lr: 0.001")),
    ),
    "cifar-densenet21-small": Study(
        "cifar-densenet21-qkd-small",
        "CIFAR-10, modified DenseNet-21 of 26 508 parameters; 20 000 training images, 6 float "
        "epochs, two in few bits: far from trained to the end",
        (
            "train.float.epochs=6", "data={name: cifar10, keep: {train: 20000}}",
            "teacher={model: {name: cifar_cnn, weights: pretrained}}",
        ),
    ),
}  # fmt: skip


def run(names: Sequence[str], runs: Path) -> None:
    """Do what is not done yet."""
    for name in names:
        command = [sys.executable, "-m", "bitwright", *STUDIES[name].command(runs / name)]
        subprocess.run(command, check=True)  # may be stopped and started again at will: no timeout


def read(folder: Path) -> dict[str, Any] | None:
    """Accuracies by arm and seed, in per cent, and paired differences from float, in points."""
    places = sorted(path for path in folder.glob("seed-*") if (path / "own/result.json").is_file())
    if not places:
        return None
    values = [json.loads((path / "own/result.json").read_text())["value"] for path in places]
    right = [dict(np.load(path / "own" / RIGHT)) for path in places]
    arms = {}
    for arm in _ARMS:
        points = [100 * value[arm]["test"] for value in values]
        apart = [100 * (one[arm].astype(float) - one["baseline"]) for one in right]
        seeds = [float(each.mean()) for each in apart]
        error = mean_of(np.mean(apart, axis=0)).error if arm != "baseline" else None
        arms[arm] = {
            "epochs": values[0][arm]["epochs"], "test": points, "mean": float(np.mean(points)),
            "error": mean_of(points).error, "apart": seeds, "apart_mean": float(np.mean(seeds)),
            "apart_images": error, "apart_seeds": mean_of(seeds).error,
        }  # fmt: skip
    return {"seeds": [int(path.name.removeprefix("seed-")) for path in places], "arms": arms}


def collect(runs: Path) -> dict[str, Any]:
    found = {name: read(runs / name) for name in STUDIES}
    return {
        "machine": machine("torch", "numpy"),
        "studies": {name: value for name, value in found.items() if value is not None},
    }


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def page(figures: dict[str, Any]) -> str:
    heads = (
        "network", "arm", "epochs in few bits", "test, % (mean, +- of seeds)", "by seed",
        "against float, points", "+- seeds", "+- images", "by seed", "within 0.3",
    )  # fmt: skip
    rows = []
    for name, study in figures["studies"].items():
        for arm, row in study["arms"].items():
            first = [
                name, arm, str(row["epochs"]), f"{row['mean']:.2f} +- {_error(row['error'])}",
                ", ".join(f"{value:.2f}" for value in row["test"]),
            ]  # fmt: skip
            if arm == "baseline":
                rows.append([*first, "", "", "", "", ""])
                continue
            each = ", ".join(f"{value:+.2f}" for value in row["apart"])
            held = "yes" if row["apart_mean"] >= -ALLOWED else "no"
            rows.append(
                [
                    *first, f"{row['apart_mean']:+.2f}", _error(row["apart_seeds"]),
                    _error(row["apart_images"]), each, held,
                ]
            )  # fmt: skip
    lines = [
        "# The integers of the DPU against float",
        "",
        "`python benchmarks/dpu_accuracy.py --runs RUNS`. Preset `dpu`: int8 of one power of two a "
        "tensor, weights, activations, biases and input. Every seed has its own cut, first weights "
        "and order; networks in few bits are measured as integers, and compared with the float "
        "network of their own seed on the same test images. Errors are standard errors of the "
        "mean. Training in few bits goes on from the float weights, so it has more epochs than "
        "float has.",
        "",
        *table(heads, rows),
        "",
        *(f"- {arm}: {ARMS[arm]}" for arm in _ARMS),
        *(f"- {name}: {STUDIES[name].told}" for name in figures["studies"]),
        "",
        "By hand, with RUNS as wished:",
        "",
        "```",
        *(
            shlex.join(["bitwright", *STUDIES[name].command(Path("RUNS") / name)])
            for name in figures["studies"]
        ),
        "```",
        "",
        figures["machine"],
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*STUDIES])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--collect", action="store_true", help="train nothing")
    asked = parser.parse_args()
    unknown = sorted({*asked.networks} - {*STUDIES})
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(STUDIES)}")
    if not asked.collect:
        run(asked.networks, asked.runs)
    keep(NAME, collect(asked.runs), page)


if __name__ == "__main__":
    main()
