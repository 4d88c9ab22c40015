# SPDX-License-Identifier: Apache-2.0
"""Incremental quantization against going to few bits at once, on the digits, over seeds.

    python benchmarks/incremental.py                       # prints the table
    python benchmarks/incremental.py --bits 2 3 4 --seeds 5 --epochs 24

Every arm begins with the same float network of a seed and trains as many epochs: ``direct`` with
the final bits all the time, ``bits`` with 8 and 4 bits (those above the final ones) for a quarter
of the epochs each, ``portions`` with half, three quarters and at last all of the weights fixed.
Scales are learned. The figure is the accuracy on the test images; the error is the standard error
of the mean over seeds.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from typing import Any

import torch
from torch import nn

from bitwright.base.statistics import mean_of
from bitwright.data import DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.train import TrainConfig, evaluate, fit

SHARED = {"batch_size": 32, "threads": 1}


def arms(bits: int) -> dict[str, dict[str, Any] | None]:
    """The settings of ``incremental`` by name."""
    falling = [width for width in (8, 4) if width > bits]
    until = [0.25 * (index + 1) for index in range(len(falling))]
    return {
        "direct": None,
        "bits": {"bits": falling, "until": until},
        "portions": {"portions": [0.5, 0.75, 1.0]},
    }


def train(model: nn.Module, splits: DataSplits, **settings: Any) -> None:
    """One training in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        fit(model, splits, TrainConfig.model_validate({**SHARED, **settings}), run_dir=folder)


def measured(float_model: nn.Module, splits: DataSplits, bits: int, **settings: Any) -> float:
    """Accuracy of a float network trained on in few bits."""
    policy = Policy.from_dict(
        {
            "weight": {"format": f"int{bits}", "scale": "learned"},
            "activation": {"format": f"uint{bits}", "scale": "learned"},
        }
    )
    images = torch.from_numpy(splits.train.take(range(64)).reals())
    model = apply(copy.deepcopy(float_model), policy, "train", images)
    train(model, splits, **settings)
    return evaluate(model, splits.test).accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    splits = load_dataset("digits")
    shape = splits.train.images.shape[1:]
    floats = []
    for seed in range(given.seeds):
        model = build_model("digits_cnn", splits.num_classes, shape, seed=seed)
        train(model, splits, epochs=8, lr=5e-3, seed=seed)
        floats.append(model)
    print(f"{'bits':>4}  {'arm':<9} {'accuracy':>9}  {'error':>6}")
    for bits in given.bits:
        for name, incremental in arms(bits).items():
            found = [
                measured(
                    model,
                    splits,
                    bits,
                    epochs=given.epochs,
                    lr=3e-3,
                    seed=seed,
                    incremental=incremental,
                )
                for seed, model in enumerate(floats)
            ]
            mean = mean_of(found)
            spread = "" if mean.error is None else f"{mean.error:.2%}"
            print(f"{bits:>4}  {name:<9} {mean.value:>8.2%}  {spread:>6}", flush=True)


if __name__ == "__main__":
    main()
