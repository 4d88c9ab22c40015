# SPDX-License-Identifier: Apache-2.0
"""What calibration alone costs in the preset `dpu`, and which of its rules costs it.

    python benchmarks/dpu_calibrated.py [cifar-densenet21-small digits-cnn ...]

The trained networks that come with the package, 1 024 calibration images drawn by three seeds,
measured as integers. Variants were compared on the validation images (which no float network of
the package was trained on); test images are told beside them. Writes
docs/results/dpu_calibrated.json and .md; rows that were not named are kept.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from results import command, keep, kept, machine, table
from torch import nn

from bitwright.base.statistics import mean_of
from bitwright.data.dataset import Dataset, DataSplits
from bitwright.data.load import load_dataset
from bitwright.models.factory import load_pretrained
from bitwright.models.pretrained import named
from bitwright.quantize import Policy
from bitwright.quantize.ptq.post_training import post_training_quantize

NAME = "dpu_calibrated"
NETWORKS = ("digits-cnn", "mnist-cnn", "mnist-kl-mlp-student", "cifar-densenet21-small")
SEEDS = (0, 1, 2)
ALLOWED = 0.3
_IMAGES, _BATCH = 1024, 128
#: Name -> what is changed of the preset.
VARIANTS: dict[str, dict[str, Any]] = {
    "preset `dpu`": {},
    "without bias correction": {"methods": ["fold", "calibrate"]},
}
#: On one network and seed: which rule costs what.
RULES: dict[str, dict[str, Any]] = {
    "not corrected, scales that cover all": {
        "methods": ["fold", "calibrate"], "weight": {"scale": "max"}, "activation": {"scale": "max"}
    },
    "not corrected, weights int8, a real scale a channel": {
        "methods": ["fold", "calibrate"], "weight": {"format": "int8"}
    },
    "not corrected, activations uint8 of real scales": {
        "methods": ["fold", "calibrate"], "activation": {"format": "uint8"}
    },
    "not corrected, equalized": {"methods": ["fold", "equalize", "calibrate"]},
    "corrected and equalized": {"methods": ["fold", "equalize", "calibrate", "bias"]},
}  # fmt: skip
_TAKEN_APART = "cifar-densenet21-small"
Labels = NDArray[np.int64]


def labels_of(model: nn.Module, data: Dataset) -> Labels:
    """The class that a network gives each input."""
    found = []
    with torch.no_grad():
        for start in range(0, len(data), 500):
            part = data.take(np.arange(start, min(start + 500, len(data))))
            found.append(model(torch.from_numpy(part.reals())).argmax(1).numpy())
    return np.concatenate(found)


def measured(
    model: nn.Module, data: DataSplits, changes: dict[str, Any], seed: int
) -> dict[str, Labels]:
    """Labels of validation and test images by the calibrated integers."""
    policy = Policy.from_dict({"preset": "dpu", **changes})
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed)).numpy()
    images = torch.from_numpy(data.train.take(order[:_IMAGES]).reals())
    quantized, _ = post_training_quantize(model, policy, images, policy.methods, batch_size=_BATCH)
    quantized.eval()
    found = {part: labels_of(quantized, getattr(data, part)) for part in ("validation", "test")}
    if quantized.why_simulated:
        raise SystemExit(f"not measured as integers: {quantized.why_simulated}")
    return found


def row(
    model: nn.Module, data: DataSplits, floats: dict[str, Labels], changes: dict[str, Any],
    seeds: tuple[int, ...],
) -> dict[str, list[float]]:  # fmt: skip
    """Points above float, by part and seed, and the share of labels that changed."""
    found: dict[str, list[float]] = {"validation": [], "test": [], "changed": []}
    for seed in seeds:
        for part, labels in measured(model, data, changes, seed).items():
            right = getattr(data, part).labels
            apart = (labels == right).mean() - (floats[part] == right).mean()
            found[part].append(100 * float(apart))
            if part == "test":
                found["changed"].append(100 * float((labels != floats[part]).mean()))
    return found


def measure(name: str) -> dict[str, Any]:
    model, data = load_pretrained(name), load_dataset(named(name).data)
    floats = {part: labels_of(model, getattr(data, part)) for part in ("validation", "test")}
    wanted = {variant: (changes, SEEDS) for variant, changes in VARIANTS.items()}
    if name == _TAKEN_APART:
        wanted |= {rule: (changes, SEEDS[:1]) for rule, changes in RULES.items()}
    rows = {}
    for variant, (changes, seeds) in wanted.items():
        rows[variant] = row(model, data, floats, changes, seeds)
        print(name, variant, rows[variant], flush=True)
    accuracy = 100 * float((floats["test"] == data.test.labels).mean())
    return {
        "float": accuracy, "images": len(data.test), "rows": rows, "machine": machine("torch"),
        "command": command(),
    }  # fmt: skip


def _told(values: list[float]) -> str:
    error = mean_of(values).error
    return f"{np.mean(values):+.2f}" + ("" if error is None else f" +- {error:.2f}")


def page(figures: dict[str, Any]) -> str:
    heads = (
        "network", "test images", "float, %", "variant", "seeds", "validation, points",
        "test, points", "test, by seed", "labels changed, %", "within 0.3",
    )  # fmt: skip
    rows = [
        [
            name, f"{found['images']:,}", f"{found['float']:.2f}", variant,
            str(len(one["test"])), _told(one["validation"]), _told(one["test"]),
            ", ".join(f"{value:+.2f}" for value in one["test"]),
            f"{np.mean(one['changed']):.2f}",
            "yes" if np.mean(one["test"]) >= -ALLOWED else "no",
        ]
        for name, found in figures.items()
        for variant, one in found["rows"].items()
    ]  # fmt: skip
    lines = [
        "# What calibration alone costs in the integers of the DPU",
        "",
        "`python benchmarks/dpu_calibrated.py`: trained networks of the package, calibrated on "
        "1 024 training images (seeds draw them), nothing trained in few bits, measured as "
        "integers. Points above the float network; +- is the standard error over seeds, which "
        "share the float network. Bias correction was chosen by the validation images of "
        "`cifar-densenet21-small`, seed 0.",
        "",
        *table(heads, rows),
        "",
        *dict.fromkeys(f"{found['machine']}; `{found['command']}`" for found in figures.values()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    asked = parser.parse_args()
    unknown = sorted({*asked.networks} - {*NETWORKS})
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    torch.set_num_threads(1)
    for name in asked.networks:
        keep(NAME, kept(NAME) | {name: measure(name)}, page)


if __name__ == "__main__":
    main()
