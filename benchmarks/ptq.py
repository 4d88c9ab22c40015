# SPDX-License-Identifier: Apache-2.0
"""Four bits without retraining: ours beside Brevitas' PTQ and ONNX Runtime's static quantization.

    python benchmarks/ptq.py --runs RUNS [--peers PYTHON] [--only mnist|cifar]

Quantizes the float models that come with the package (`benchmarks/ptq_float.py` trained them) with
the same calibration images, and measures every result on the whole test set: ours as the integer
network, Brevitas' as its own simulation, ONNX Runtime's as it runs. PYTHON is the interpreter of an
environment with ``brevitas`` (and ``tqdm``); without it its rows stay as the page has them, if the
float network is the same. Writes ``docs/results/ptq.json`` and ``ptq.md``. What is measured is kept
in RUNS, tool by tool, under a hash of all that it depends on (code, recipe, float weights, images,
versions of the peers): a run that was stopped goes on, and what has changed is measured again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ptq_float import splits_of
from ptq_onnxruntime import measure as measure_onnxruntime
from torch import nn

from bitwright.base.files import sha256_file
from bitwright.base.source import script_key
from bitwright.base.store import Store, content_key
from bitwright.data import DataSplits, digest_of
from bitwright.models import build_model
from bitwright.models.pretrained import Pretrained, find_pretrained, load_into
from bitwright.pipeline.recipe import find_recipe, load_recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.quantize import Policy
from bitwright.quantize.ptq import AdaRound, post_training_quantize
from bitwright.train import evaluate

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
IMAGES = 512
CASES = {"mnist": "mnist-cnn-w4a4", "cifar": "cifar-cnn-ptq-w4a4"}
_PEER_SECONDS = 3 * 3600


@dataclass(frozen=True)
class Ours:
    """One row of ours: weights and activations of four bits, input of eight."""

    name: str
    methods: tuple[str | AdaRound, ...]
    weight: str = "int4"
    granularity: str = "per_channel"
    activation: str = "uint4"

    @property
    def policy(self) -> Policy:
        weight = {"format": self.weight, "granularity": self.granularity}
        activation = {"format": self.activation, "scale": "mse"}
        return Policy.from_dict({"input": "uint8", "weight": weight, "activation": activation})


ROWS = (
    Ours("nearest level, largest ranges", ("fold", "calibrate:max")),
    Ours("MSE ranges, clipping search, bias correction", ("fold", "clip", "bias")),
    Ours("GPTQ, bias correction (the default)", ("fold", "calibrate", "gptq", "bias")),
    Ours("the same, percentile 99.9", ("fold", "calibrate:percentile:99.9", "gptq", "bias")),
    Ours("the same, ranges set again on the way", ("fold", "recalibrate", "gptq", "bias")),
    Ours(
        "one scale a tensor: equalization, GPTQ, bias correction",
        ("fold", "equalize", "gptq", "bias"),
        granularity="per_tensor",
    ),
    Ours(
        "AdaRound, 400 steps, bias correction",
        ("fold", "calibrate:percentile:99.9", AdaRound(iterations=400, columns=256), "bias"),
    ),
)


def our_rows(model: nn.Module, splits: DataSplits) -> list[dict[str, Any]]:
    """Every row of ours, measured on the integer network."""
    calibration = splits.train.take(range(IMAGES))
    found = []
    for row in ROWS:
        started = time.perf_counter()
        converted, report = post_training_quantize(model, row.policy, calibration, row.methods)
        seconds = time.perf_counter() - started
        accuracy = evaluate(converted.eval(), splits.test).accuracy
        entry = {"name": row.name, "bits": "4 / 4", "accuracy": accuracy, "seconds": seconds}
        entry["methods"] = list(report.methods)
        print("Bitwright:", row.name, accuracy, f"{seconds:.0f} s", flush=True)
        found.append(entry)
    return found


def brevitas_rows(
    python: Path, model: nn.Module, splits: DataSplits, folder: Path
) -> dict[str, Any]:
    """What ``ptq_brevitas.py`` measures in its environment."""
    handover, out = folder / "handover.npz", folder / "brevitas_rows.json"
    weights = {f"w.{name}": value.numpy() for name, value in model.state_dict().items()}
    widths = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    np.savez(
        handover,
        calibration=splits.train.take(range(IMAGES)).images.transpose(0, 3, 1, 2),
        test=splits.test.images.transpose(0, 3, 1, 2),
        labels=splits.test.labels,
        scale=np.array(splits.scale),
        widths=np.array(widths),
        classes=np.array(splits.num_classes),
        **weights,
    )
    script = Path(__file__).with_name("ptq_brevitas.py")
    command = [str(python), str(script), str(handover), "--out", str(out)]
    subprocess.run(command, check=True, timeout=_PEER_SECONDS, cwd=folder)
    return json.loads(out.read_text(encoding="utf-8"))


def _kept(folder: Path, tool: str, depends_on: Iterable[str], measure: Callable[[], Any]) -> Any:
    """What an interrupted run has measured already with the same code and data, or else anew."""
    store, key = Store(folder), content_key(*depends_on)
    found = store.find(tool, key)
    return store.keep(tool, key, measure()).value if found is None else found.value


def _basis(weights: Pretrained, splits: DataSplits) -> tuple[str, ...]:
    """What every tool's figures depend on: the float network and the images."""
    return weights.sha256, str(IMAGES), digest_of(splits.train, splits.test)


def _version_of(python: Path, package: str) -> str:
    """Of a package in another environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def _script(name: str) -> str:
    return sha256_file(Path(__file__).with_name(name))


def measured(case: str, options: argparse.Namespace, earlier: dict[str, Any]) -> dict[str, Any]:
    """All rows of one network.

    Args:
        earlier: what the page has of it.
    """
    recipe = load_recipe(find_recipe(CASES[case]))
    folder = options.runs / recipe.name
    splits = splits_of(recipe, folder)
    shape, classes = splits.image_shape, splits.num_classes
    weights = find_pretrained(recipe.model, shape, classes, recipe.data.name)
    model = build_model(recipe.model, classes, shape, seed=recipe.seed).eval()
    load_into(model, weights)
    result: dict[str, Any] = {"float": evaluate(model, splits.test).accuracy}
    print(case, "float", result["float"], flush=True)
    basis = _basis(weights, splits)
    result["ours"] = _kept(
        folder,
        "ours",
        (
            *basis,
            script_key(Path(__file__)),
            repr([(r, r.policy) for r in ROWS]),
            torch.__version__,
        ),
        lambda: our_rows(model, splits),
    )
    images = splits.train.take(range(IMAGES)).reals()
    result["onnxruntime"] = _kept(
        folder,
        "onnxruntime",
        (*basis, _script("ptq_onnxruntime.py"), importlib.metadata.version("onnxruntime")),
        lambda: measure_onnxruntime(model, images, splits.test, folder),
    )
    if options.peers is not None:
        result["brevitas"] = {"where": _here()} | _kept(
            folder,
            "brevitas",
            (*basis, _script("ptq_brevitas.py"), _version_of(options.peers, "brevitas")),
            lambda: brevitas_rows(options.peers, model, splits, folder),
        )
    elif earlier.get("float") == result["float"] and "brevitas" in earlier:
        result["brevitas"] = earlier["brevitas"]
    result["test_images"] = len(splits.test)
    return result


def table(results: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Post-training quantization: four bits without retraining",
        "",
        f"Measured by `{results['command']}` on {results['machine']}, one thread a process, "
        f"{results['date']}; {results['versions']}. Calibration: the first {IMAGES} training "
        "images, without labels. Accuracy: share of the whole test set. Bits: weights / "
        "activations; the input has 8. Ours is measured on the integer network; Brevitas in "
        "its own simulation, with one scale a channel also in the last layer, where ours has one "
        "a tensor. ONNX Runtime runs what it quantized; without VNNI its 8-bit weights saturate in "
        f"pairs unless reduce_range is set. {_peers(results)}",
    ]
    for case, found in results["cases"].items():
        lines += [
            "",
            f"## {CASES[case]}: float {100 * found['float']:.2f} % of "
            f"{found['test_images']} images",
            "",
            "| tool | how | bits | accuracy, % | loss, points | s |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line("Bitwright", row, found["float"]) for row in found["ours"]]
        for name, row in found.get("brevitas", {}).get("rows", {}).items():
            lines.append(_line("Brevitas", {"name": name, "bits": "4 / 4", **row}, found["float"]))
        lines += [_line("ONNX Runtime", row, found["float"]) for row in found["onnxruntime"]]
    return "\n".join(lines) + "\n"


def _here() -> str:
    return f"{cpu_name()}, {time.strftime('%Y-%m-%d')}"


def _peers(results: dict[str, Any]) -> str:
    """Where Brevitas' rows were measured: they stay when its environment is not at hand."""
    places = {
        found["brevitas"]["where"] for found in results["cases"].values() if "brevitas" in found
    }
    return f"Brevitas' rows: {'; '.join(sorted(places))}." if places else ""


def _line(tool: str, row: dict[str, Any], best: float) -> str:
    if "accuracy" not in row:
        return f"| {tool} | {row['name']} | {row['bits']} | not possible: {row['error']} | | |"
    loss = 100 * (best - row["accuracy"])
    return (
        f"| {tool} | {row['name']} | {row['bits']} | {100 * row['accuracy']:.2f} | {loss:.2f} "
        f"| {row['seconds']:.0f} |"
    )


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--only", choices=list(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    page = RESULTS / "ptq.json"
    results = json.loads(page.read_text(encoding="utf-8")) if page.exists() else {"cases": {}}
    for case in CASES if options.only is None else (options.only,):
        results["cases"][case] = measured(case, options, results["cases"].get(case, {}))
    peers = [found["brevitas"] for found in results["cases"].values() if "brevitas" in found]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxruntime")]
    versions += [f"brevitas {p['version']} on torch {p['torch']}" for p in peers[:1]]
    results |= {
        "command": "python benchmarks/ptq.py --runs RUNS --peers PYTHON",
        "machine": cpu_name(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": ", ".join(versions),
    }
    page.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page.with_suffix(".md").write_text(table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
