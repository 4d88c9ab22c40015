# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that come with the package: make an entry of a finished run, measure all again.

    bitwright train digits --set train.pretrained=false --run-dir RUN
    python benchmarks/pretrained.py add RUN --name digits-cnn \\
        --command "bitwright train digits --set train.pretrained=false"
    python benchmarks/pretrained.py check

``add`` takes model, data and settings from ``RUN/recipe.yaml`` and the weights of its step
``train`` (``--teacher N``: of its teacher number N). Weights that another program trained by a
recipe's settings are added with ``add RECIPE --weights FILE --log METRICS.jsonl``. They are stored
(``--half``: in float16, half as large), loaded into a fresh model and measured on the test images;
then the entry is written. ``check`` fails if a stored file no longer reaches exactly the accuracy
that its entry states.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from bitwright.base.errors import BitwrightError, DataError
from bitwright.base.files import atomic_write
from bitwright.data import DataSplits, load_dataset
from bitwright.data.spec import DatasetSpec
from bitwright.interop.model_files import load_weights
from bitwright.models import ModelSpec, Pretrained, build_model, list_pretrained
from bitwright.models.pretrained import STORE, load_into, matching
from bitwright.models.tensors import save_tensors
from bitwright.pipeline.recipe import Recipe, load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.results import Epoch, TeachResult, TrainResult, load_result
from bitwright.pipeline.steps.train import WEIGHTS
from bitwright.pipeline.steps.versions import versions
from bitwright.train import evaluate
from bitwright.train.config import TrainConfig

#: What the package is allowed to grow by, in bytes: one entry, and all of them.
LARGEST, ALL = 1_500_000, 5_000_000


def finished(run: Path, step: str) -> Path:
    """The folder of a finished step of a run.

    Raises:
        DataError: the step is not finished.
    """
    folder = run / step_folder(step)
    if not (folder / "step.json").is_file():
        raise DataError(f"holds no finished step {step!r}", where=str(run), hint="run it first")
    return folder


def add(options: argparse.Namespace) -> Pretrained:
    """Write the entry of a run.

    Raises:
        BitwrightError: the run is not finished, or its files do not belong together.
    """
    run = Path(options.run)
    is_run = (run / "recipe.yaml").is_file()
    recipe = load_recipe(run / "recipe.yaml" if is_run else options.run)
    splits = load_dataset(recipe.data, None, recipe.seed)
    model_spec, training = _trained(recipe, options.teacher)
    bare = ModelSpec(name=model_spec.name, options=model_spec.options)
    weights, history, kept = _trained_by(options, run)
    model = build_model(bare, splits.num_classes, splits.image_shape)
    load_weights(model, weights, splits.image_shape)
    state = model.state_dict()
    if options.half:
        state = {n: t.half() if t.is_floating_point() else t for n, t in state.items()}
    STORE.mkdir(exist_ok=True)
    path = STORE / f"{options.name}.safetensors"
    facts = {"model": bare.model_dump(mode="json"), "input_shape": list(splits.image_shape)}
    save_tensors(state, path, facts)
    content = path.read_bytes()
    fields: dict[str, Any] = {
        "name": options.name,
        "model": bare.name,
        "options": dict(bare.options),
        "data": splits.name,
        "image_shape": splits.image_shape,
        "classes": splits.num_classes,
        "file": path.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "dtype": "float16" if options.half else "float32",
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "accuracy": 0.0,
        "test_images": len(splits.test),
        "test_digest": splits.test.choice(),
        "command": options.command,
        "seed": recipe.seed,
        "validation": recipe.data.validation,
        "training": training.model_dump(mode="json", exclude_defaults=True),
        "history": [row.model_dump() for row in history],
        "kept_epoch": kept,
        "data_digest": splits.digest(),
        "data_note": options.note,
        "versions": json.loads((run / "run.json").read_text())["versions"]
        if is_run
        else versions(),
    }
    entry = Pretrained.model_validate(fields)
    entry = entry.model_copy(update={"accuracy": measure(entry, splits)})
    atomic_write(STORE / f"{entry.name}.json", _text(entry))
    return entry


def _text(entry: Pretrained) -> str:
    """JSON with a line a field, and one an epoch."""
    rows = []
    for name, value in entry.model_dump(mode="json").items():
        text = json.dumps(value)
        if name == "history" and value:
            text = "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
        rows.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _trained_by(options: argparse.Namespace, run: Path) -> tuple[Path, tuple[Epoch, ...], int]:
    """The file of weights, the training curve, and the epoch whose weights they are."""
    if options.weights is None and options.teacher is None:
        folder = finished(run, "train")
        result = load_result(TrainResult, folder)
        return folder / WEIGHTS, result.history, result.kept_epoch
    if options.weights is None:
        folder = finished(run, "teach")
        row = load_result(TeachResult, folder).teachers[options.teacher]
        return folder / f"teacher-{options.teacher}.pt", row.history, row.kept_epoch
    if options.log is None:
        return options.weights, (), 0
    names = Epoch.model_fields
    lines = [json.loads(line) for line in options.log.read_text().splitlines()]
    rows = tuple(Epoch(**{name: line[name] for name in names}) for line in lines)
    return options.weights, rows, options.epoch or rows[-1].epoch


def _trained(recipe: Recipe, teacher: int | None) -> tuple[ModelSpec, TrainConfig]:
    """The model in question, and how it is trained."""
    if teacher is None:
        return recipe.model, recipe.train.float_
    if not 0 <= teacher < len(recipe.teacher):
        raise DataError(f"has {len(recipe.teacher)} teachers, no number {teacher}", where="teacher")
    found = recipe.teacher[teacher]
    if found.train is None:
        raise DataError("was not trained in this run", where=f"teacher {teacher}")
    return found.model, found.train


def measure(entry: Pretrained, splits: DataSplits) -> float:
    """Accuracy of what is stored, on the test images."""
    model = build_model(entry.spec, entry.classes, entry.image_shape)
    load_into(model, entry)
    return evaluate(model.eval(), splits.test).accuracy


def check() -> int:
    """Measure every entry again; the number of those that differ."""
    wrong = 0
    for entry in list_pretrained():
        spec = DatasetSpec(name=entry.data, validation=entry.validation)
        try:
            splits = load_dataset(spec, None, entry.seed)
        except DataError as error:
            print(f"{entry.name}: skipped, {error}")
            continue
        found = measure(entry, splits)
        same = found == entry.accuracy and len(matching_of(entry)) == 1
        wrong += not same
        state = "as stated" if same else f"WRONG, stated {entry.accuracy:.4%}"
        print(f"{entry.name}: {found:.2%} of {len(splits.test)} test images, {state}")
    total = sum(entry.bytes for entry in list_pretrained() if not entry.urls)
    print(f"{total} bytes in all")
    return wrong


def matching_of(entry: Pretrained) -> tuple[Pretrained, ...]:
    """The entries that mean the same model and data: there must be one."""
    return matching(entry.spec, entry.image_shape, entry.classes, entry.data)


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="measure every entry again")
    adding = verbs.add_parser("add", help="make an entry of a finished run")
    adding.add_argument("run", help="a run directory, or with --weights a recipe")
    adding.add_argument("--name", required=True, help="of the entry, such as digits-cnn")
    adding.add_argument("--command", required=True, help="the exact command that trained it")
    adding.add_argument("--teacher", type=int, help="number of a teacher, from 0")
    adding.add_argument("--weights", type=Path, help="a state dict instead of the step's")
    adding.add_argument("--log", type=Path, help="with --weights: the lines of its epochs")
    adding.add_argument("--epoch", type=int, help="with --log: whose weights, if not the last's")
    adding.add_argument("--half", action="store_true", help="store float16")
    adding.add_argument("--note", default="", help="about the copy of the data set")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        if options.verb == "check":
            return check()
        entry = add(options)
    except BitwrightError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{entry.name}: {entry.accuracy:.2%} of {entry.test_images}, {entry.bytes} bytes")
    if entry.bytes > LARGEST:
        print(f"larger than {LARGEST} bytes: store it with --half, or beside the package (urls)")
    return 0


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


if __name__ == "__main__":
    raise SystemExit(main())
