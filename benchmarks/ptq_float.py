# SPDX-License-Identifier: Apache-2.0
"""Float models for the post-training benchmark: trained as their recipes say, resumable.

    python benchmarks/ptq_float.py mnist-cnn-w4a4 --out RUN
    python benchmarks/ptq_float.py cifar-cnn-ptq-w4a4 --out RUN

Writes ``RUN/RECIPE/float.pt`` (weights), ``data.npz`` (the decoded images) and the logs of the
training; a run that was stopped goes on from its last whole epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from bitwright.data import Dataset, DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.pipeline.recipe import Recipe, find_recipe, load_recipe
from bitwright.train import TrainProgress, evaluate, fit, save_weights

WEIGHTS = "float.pt"
_DATA = "data.npz"
_SPLITS = ("train", "validation", "test")


def splits_of(recipe: Recipe, folder: Path) -> DataSplits:
    """The recipe's data; images that were decoded once are kept beside the run."""
    cache = folder / _DATA
    if cache.exists():
        with np.load(cache, allow_pickle=False) as held:
            classes, scale = tuple(held["classes"].tolist()), float(held["scale"])
            parts = [
                Dataset(
                    f"{recipe.data.name}/{part}",
                    held[f"{part}_images"],
                    held[f"{part}_labels"],
                    classes,
                    scale,
                    held[f"{part}_indices"],
                )
                for part in _SPLITS
            ]
        return DataSplits(recipe.data.name, *parts, source=str(cache))
    splits = load_dataset(recipe.data, None, recipe.seed)
    arrays = {"classes": np.array(splits.classes), "scale": np.array(splits.scale)}
    for part in _SPLITS:
        held = getattr(splits, part)
        arrays[f"{part}_images"] = held.images
        arrays[f"{part}_labels"] = held.labels
        arrays[f"{part}_indices"] = held.indices
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(cache, **arrays)
    return splits


def main() -> None:
    """Train one float model and print what it reaches on the test images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recipe = load_recipe(find_recipe(options.recipe))
    folder = options.out / recipe.name
    splits = splits_of(recipe, folder)
    model = build_model(recipe.model, splits.num_classes, splits.image_shape, seed=recipe.seed)
    model = model.to(memory_format=torch.channels_last)  # half as fast again on a processor

    def told(state: TrainProgress) -> None:
        if state.last is not None and state.batch == state.batches:
            print(f"{time.strftime('%H:%M:%S')} {state.last}", flush=True)

    fitted = fit(model, splits, recipe.train.float_, run_dir=folder / "logs", on_progress=told)
    save_weights(folder / WEIGHTS, model.to(memory_format=torch.contiguous_format))
    measured = evaluate(model, splits.test)
    summary = {"recipe": recipe.name, "test": measured.accuracy, "epoch": fitted.kept_epoch}
    (folder / "float.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
