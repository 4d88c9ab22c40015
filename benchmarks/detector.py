# SPDX-License-Identifier: Apache-2.0
"""A detector of one's own on the raccoon images: SkyNet from the published weights and from
scratch, in floating point and in 4 bits, over seeds; and on drawn scenes that nothing was tuned on.

    python benchmarks/detector.py raccoon --data DATA --seeds 0 1 2          # published weights
    python benchmarks/detector.py raccoon --data DATA --points --seeds 0 1 2  # "variant B"
    python benchmarks/detector.py raccoon --data DATA --scratch --seeds 0 1 2
    python benchmarks/detector.py raccoon --data DATA --unseen --seeds 0 1 2 3 4 --epochs 240
    python benchmarks/detector.py scenes --seeds 0 --size 96 96 --epochs 150 \
        --set train.float.batch_size=8                                       # several objects

DATA holds ``raccoon-detection.zip`` and ``skynet/dac.weights`` (default: the environment variable
BITWRIGHT_DATA). Each seed is the recipe `my-detector` with other settings, up to step ``lower``, in
a run directory below ``--out``: stopped, it goes on from its last epoch. A fifth of the images is
held out, another cut for each seed. ``--write`` adds the figures to docs/results.

``--unseen``: the images that none of seeds 0, 1, 2 holds out, cut anew by each seed: what settings
are chosen on. ``--draw``: scenes drawn from other random numbers; ``--device cuda``: on a GPU.

``--points``: the thesis' second variant, with quantizers of 8 signed bits behind each pool and the
concatenation, from the float network of the run without them, and trained alike from there on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file

from bitwright.data.listing import list_images
from bitwright.papers.skynet.weights import for_unit_inputs, load_skynet_weights
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.run_files import digest_of
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.train import WEIGHTS
from bitwright.pipeline.steps.workspace import Workspace

#: Seeds whose held-out images no setting is chosen on.
FINAL = (0, 1, 2)
PHASES = ("float", "quantized.self_study", "quantized.tutor_study")
RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "detector.json"
KINDS = ("disc", "box", "bar")
DRAW = 20_261_126
#: The recipe's rule, and that of the points.
POINTS = (
    {"position": "last", "role": "weight", "format": "int8"},
    {"type": "Hardtanh", "role": "activation", "format": "int8"},
)


def raccoon_settings(args: argparse.Namespace, seed: int) -> list[str]:
    weights = args.out / "skynet-unit.safetensors"
    if not weights.is_file():
        args.out.mkdir(parents=True, exist_ok=True)
        published = load_skynet_weights(args.data / "skynet" / "dac.weights")
        save_file(for_unit_inputs(published).state_dict(), weights)
    model = (
        "model={name: skynet, options: {scratch: true}}"
        if args.scratch
        else f"model={{name: skynet, weights: {weights.resolve()}}}"
    )
    more = []
    if args.points:
        plain = (run_of(args, seed, points=False) / step_folder("train") / WEIGHTS).resolve()
        model = f"model={{name: skynet, options: {{points: true}}, weights: {plain}}}"
        more = ["train.float.epochs=0", f"quant.rules={json.dumps(POINTS)}"]
    # Chosen on training and validation images; what is held out has no part in it.
    augmented = {"jitter": 0.3, "flip": "true", "distort": "{}"}
    words = "{" + ", ".join(f"{key}: {value}" for key, value in augmented.items()) + "}"
    images = unseen(args) if args.unseen else args.data / "raccoon-detection.zip"
    return [
        model,
        f"data.path={images}",
        "task.options={anchors: 2, variant: ranked, reach: 3, merge: 0.7}",
        "data.validation=0",  # no epoch is chosen: the last weights count
        *(f"train.{phase}.augmentation={words}" for phase in PHASES),
        *common(args, seed, lr=0.004 if args.scratch else 0.001),
        *more,
    ]


def unseen(args: argparse.Namespace) -> Path:
    """A folder of the raccoon images that no seed of `FINAL` holds out."""
    archive = args.data / "raccoon-detection.zip"
    names = list_images(archive).names
    out: set[int] = set()
    for seed in FINAL:
        settings = [f"data.path={archive}", "data.validation=0", *common(args, seed, lr=0.001)]
        data = Workspace(load_recipe("my-detector", settings)).data.labelled()
        out |= set(data.test.indices.tolist())
    kept = [name for number, name in enumerate(names) if number not in out]
    folder = args.out / f"raccoon-unseen-{digest_of(kept)[:8]}"
    if folder.is_dir():
        return Path(folder)
    made = folder.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(archive) as packed:
        for name in kept:
            packed.extract(name, made)
            packed.extract(f"annotations/{Path(name).stem}.xml", made)
    made.rename(folder)
    return Path(folder)


def scenes_settings(args: argparse.Namespace, seed: int) -> list[str]:
    folder = args.out / (f"scenes-{args.images}" + ("" if args.draw == DRAW else f"-{args.draw}"))
    draw_scenes(folder, args.images, args.draw)
    return [
        f"data.path={folder}",
        "task.options={anchors: 3, objects: several, classes: true}",
        *common(args, seed, lr=0.004),
    ]


def common(args: argparse.Namespace, seed: int, lr: float) -> list[str]:
    few = max(1, args.epochs // 4)
    training = {"lr": lr, "weight_decay": 0.01, "ema": 0.97, "epochs": args.epochs}
    settings = {f"train.float.{key}": value for key, value in training.items()}
    settings |= {f"train.{phase}.device": args.device for phase in PHASES}
    settings |= {
        "train.quantized.self_study.epochs": few,
        "train.quantized.tutor_study.epochs": few,
        "data.image_size": f"[{args.size[0]}, {args.size[1]}]",
        "seed": seed,
        "train.float.seed": seed,
    }
    return [f"{key}={value}" for key, value in settings.items()]


def draw_scenes(folder: Path, count: int, seed: int) -> None:
    """Pascal VOC style: one to four things of three kinds on striped ground, of many sizes and
    colours, some covering others.
    """
    if (folder / "annotations" / f"{count - 1:04}.xml").is_file():
        return
    for part in ("images", "annotations"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        width, height = (int(side) for side in random.integers(90, 200, 2))
        stripes = 40 * np.sin(np.arange(width) / random.uniform(3, 20))[None, :, None]
        ground = random.integers(60, 180, 3) + stripes + random.normal(0, 12, (height, width, 3))
        picture = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
        objects = [_thing(random, picture) for _ in range(random.integers(1, 5))]
        name = f"{number:04}"
        picture.save(folder / "images" / f"{name}.png")
        text = f"<annotation><filename>{name}.png</filename>{''.join(objects)}</annotation>"
        (folder / "annotations" / f"{name}.xml").write_text(text)


def _thing(random: np.random.Generator, picture: Image.Image) -> str:
    kind = KINDS[int(random.integers(len(KINDS)))]
    side = min(picture.size)
    w, h = (int(side * share) for share in random.uniform(0.12, 0.5, 2))
    w, h = {"disc": (w, w), "box": (w, h), "bar": (max(6, w // 4), h)}[kind]
    x, y = int(random.integers(picture.width - w)), int(random.integers(picture.height - h))
    pen = ImageDraw.Draw(picture)
    colour = tuple(int(c) for c in random.integers(0, 256, 3))
    edges = (x, y, x + w - 1, y + h - 1)
    if kind == "disc":
        pen.ellipse(edges, colour)
    else:
        pen.rectangle(edges, colour)
    corners = zip(("xmin", "ymin", "xmax", "ymax"), (x, y, x + w, y + h), strict=True)
    inside = "".join(f"<{key}>{value}</{key}>" for key, value in corners)
    return f"<object><name>{kind}</name><bndbox>{inside}</bndbox></object>"


def run_of(args: argparse.Namespace, seed: int, *, points: bool) -> Path:
    """The run directory of a seed."""
    kind = f"{'-scratch' if args.scratch else ''}{'-points' if points else ''}"
    kind += "-unseen" if args.unseen else ""
    kind += "" if args.draw == DRAW else f"-{args.draw}"
    kind += "" if args.device == "cpu" else f"-{args.device}"
    if args.set:
        kind += "-" + hashlib.sha256(" ".join(args.set).encode()).hexdigest()[:6]
    name = f"{args.what}{kind}-{args.size[0]}x{args.size[1]}-{seed}"
    found: Path = args.out / f"{name}-{args.epochs}"
    return found


def measure(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One seed: every metric on held-out images, float and in 4 bits."""
    settings = {"raccoon": raccoon_settings, "scenes": scenes_settings}[args.what](args, seed)
    run = run_of(args, seed, points=args.points)
    Pipeline(load_recipe("my-detector", [*settings, *args.set]), run).build("lower")
    found: dict[str, Any] = {"seed": seed}
    for step, key in (("train", "float"), ("quantize", "w4a4")):
        result = json.loads((run / step_folder(step) / "result.json").read_text())
        found[key] = {
            metric: {"value": figure["value"], "error": figure.get("error")}
            for metric, figure in result["metrics"].items()
        }
        found["held out"] = next(iter(result["metrics"].values()))["count"]
    print(json.dumps(found), flush=True)
    return found


def keep(key: str, rows: list[dict[str, Any]], command: str, device: str) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    cpu = cpu_name() if device == "cpu" else torch.cuda.get_device_name()
    known[key] = {"command": command, "cpu": cpu, "torch": torch.__version__, "rows": rows}
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    RESULTS.with_suffix(".md").write_text(page(known))


def page(known: dict[str, Any]) -> str:
    lines = [
        "# Detectors of one's own",
        "",
        "The recipe `my-detector` with other data and models, on images that were held out; by",
        "`benchmarks/detector.py`. Over seeds: mean and standard error of their values; then value",
        "and standard error over the images of one seed. Rows `unseen` are of images that no seed",
        "of the others holds out: on these 480 epochs were chosen, of 120, 240 and 480.",
        "",
        "| case | seeds | metric | float | 4 bits |",
        "|---|---|---|---|---|",
        *(line for key, case in sorted(known.items()) for line in _over_seeds(key, case["rows"])),
        "",
        "| case | seed | images | metric | float | 4 bits |",
        "|---|---|---|---|---|---|",
    ]
    for key, case in sorted(known.items()):
        for row in case["rows"]:
            for metric in row["float"]:
                both = (_cell(row[level][metric]) for level in ("float", "w4a4"))
                cells = [key, str(row["seed"]), str(row["held out"]), metric, *both]
                lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for key, case in sorted(known.items()):
        lines.append(f"* {key}: `{case['command']}`; {case['cpu']}, torch {case['torch']}")
    return "\n".join(lines) + "\n"


def _over_seeds(key: str, rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for metric in rows[0]["float"]:
        cells = [key, ", ".join(str(row["seed"]) for row in rows), metric]
        for level in ("float", "w4a4"):
            values = [row[level][metric]["value"] for row in rows]
            error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
            cells.append(_cell({"value": np.mean(values), "error": error}))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(figure: dict[str, Any]) -> str:
    error = f" ± {figure['error']:.3f}" if figure["error"] else ""
    return f"{figure['value']:.3f}{error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("raccoon", "scenes"))
    parser.add_argument("--data", type=Path, default=os.environ.get("BITWRIGHT_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs") / "detector")
    parser.add_argument("--scratch", action="store_true", help="raccoon: fresh weights")
    parser.add_argument("--points", action="store_true", help='raccoon: "variant B"')
    parser.add_argument("--unseen", action="store_true", help="raccoon: never held out elsewhere")
    parser.add_argument("--draw", type=int, default=DRAW, help="scenes: random numbers of these")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of training")
    parser.add_argument("--set", action="append", default=[], help="other settings of the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", type=int, nargs=2, default=(48, 64), metavar=("H", "W"))
    parser.add_argument("--epochs", type=int, default=100, help="in floating point")
    parser.add_argument("--images", type=int, default=400, help="scenes: how many are drawn")
    parser.add_argument("--write", metavar="KEY", help="keep the figures under this key")
    args = parser.parse_args()
    if args.points and (args.scratch or args.what != "raccoon"):
        print("--points starts from a run of raccoon from published weights", file=sys.stderr)
        return 2
    if (args.unseen and args.what != "raccoon") or (args.draw != DRAW and args.what != "scenes"):
        print("--unseen is of raccoon, --draw of scenes", file=sys.stderr)
        return 2
    if args.what == "raccoon" and args.data is None:
        print("name the data folder with --data or BITWRIGHT_DATA", file=sys.stderr)
        return 2
    if args.data is not None:
        args.data = Path(args.data)
    rows = [measure(args, seed) for seed in args.seeds]
    if args.write:
        words, at = sys.argv[1:], sys.argv.index("--write") - 1
        keep(
            args.write,
            rows,
            " ".join(["python benchmarks/detector.py", *words[:at], *words[at + 2 :]]),
            args.device,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
