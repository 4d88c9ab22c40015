# SPDX-License-Identifier: Apache-2.0
"""Published QONNX files, imported and run image for image against QONNX's own executor.

    python benchmarks/qonnx_zoo.py                 # prints the table, writes docs/results/

``BITWRIGHT_DATA`` (default: ../shared/data) names the folder with ``qonnx/`` and ``mnist/``. MNIST
files run on the 10 000 test images; for the keyword network no data is at hand: random images, half
of them on the grid of its input quantizer.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data import load_dataset
from bitwright.data.spec import DatasetSpec
from bitwright.interop.artifact import export_artifact
from bitwright.interop.onnx.reader import load
from bitwright.interop.onnx.reader.compare import compare, original_outputs

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
DATA = Path(os.environ.get("BITWRIGHT_DATA", ROOT.parent / "shared" / "data"))
KEYWORDS = 2000


def images_for(name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Samples in the file's own input shape, and labels if there are any."""
    if name.startswith("TFC"):
        test = load_dataset(DatasetSpec(name="mnist", path=DATA / "mnist"), None, 0).test
        pixels = test.images.reshape(-1, 1, 28, 28)
        return (pixels / np.float32(255)).astype(np.float32), test.labels
    rng = np.random.default_rng(0)
    step = np.float32(0.8298503756523132)
    images = (rng.integers(-127, 128, (KEYWORDS, 1, 10, 49)) * step).astype(np.float32)
    images[KEYWORDS // 2 :] += rng.normal(size=(KEYWORDS // 2, 1, 10, 49)).astype(np.float32)
    return images, None


def measure(path: Path, scratch: Path) -> dict[str, Any]:
    """One row."""
    images, labels = images_for(path.stem)
    started = time.perf_counter()
    imported = load(path)
    seconds = time.perf_counter() - started
    result = compare(imported, images, original_outputs(path, images))
    size = export_artifact(imported.graph, scratch / path.stem).files["params.bin"]
    return {
        "file": path.name,
        "images": result.images,
        "qonnx_accuracy": None if labels is None else float((result.expected == labels).mean()),
        "graph_accuracy": None if labels is None else float((result.found == labels).mean()),
        "labels_that_differ": result.labels,
        "scores_that_differ": result.scores,
        "largest_difference": result.largest,
        "activation_steps": imported.steps,
        "steps_elsewhere_in_float32": imported.ties,
        "parameter_bytes": size,
        "import_seconds": round(seconds, 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Published QONNX files",
        "",
        "`python benchmarks/qonnx_zoo.py`: each file run by QONNX's executor (float32) and by the "
        "integer graph that it became, on the same images. A score counts as different beyond 1e-5 "
        "of the largest score. *Steps elsewhere*: of all steps of all activations, those that lie "
        "at another accumulator when the operators of the file are evaluated in float32.",
        "",
        "| file | images | accuracy, QONNX | accuracy, graph | labels that differ | scores that "
        "differ | largest difference | steps elsewhere | packed parameters |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        accuracy = [
            "-" if row[key] is None else f"{100 * row[key]:.2f} %"
            for key in ("qonnx_accuracy", "graph_accuracy")
        ]
        steps = f"{row['steps_elsewhere_in_float32']} of {row['activation_steps']}"
        lines.append(
            f"| {row['file']} | {row['images']} | {accuracy[0]} | {accuracy[1]} | "
            f"{row['labels_that_differ']} | {row['scores_that_differ']} | "
            f"{row['largest_difference']:.1e} | {steps} | {row['parameter_bytes']} bytes |"
        )
    lines += [
        "",
        "TFC files: the 10 000 MNIST test images, pixels / 255. The keyword network: "
        f"{KEYWORDS} random images, half of them on the grid of its input quantizer.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every file of the folder."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        rows = [measure(p, Path(scratch)) for p in sorted((DATA / "qonnx").glob("*.onnx"))]
    text = table(rows)
    print(text)
    (RESULTS / "qonnx_zoo.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "qonnx_zoo.md").write_text(text)


if __name__ == "__main__":
    main()
