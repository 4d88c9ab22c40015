# SPDX-License-Identifier: Apache-2.0
"""Trains the two face DenseNets by distillation and runs the matrix of `formats matrix`.

    python benchmarks/faces.py pool   --teacher dlib_face_recognition_resnet_model_v1.dat
    python benchmarks/faces.py train  face_densenet10      # about 40 minutes on one core
    python benchmarks/faces.py train  face_densenet20      # about 75 minutes
    python benchmarks/faces.py matrix                      # about 30 minutes
    python benchmarks/faces.py sweep                       # about 10 minutes a network

The ORL faces (AT&T Laboratories Cambridge) are looked for in BITWRIGHT_DATA. The teacher's file is
inside the package `face_recognition_models` on PyPI (public domain). Networks learn from 25 people,
thresholds come from 5 others, and the 10 people that are measured are seen by neither. Everything
is kept in --work and gone on with; nothing is written into the repository but the tables. Without
any training `matrix` and `sweep` run for face_densenet10, whose weights are in docs/results.
"""

from __future__ import annotations

import argparse
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from bitwright.interop.model_files import save_model
from bitwright.models import build_model
from bitwright.models.catalog import ModelSpec
from bitwright.papers.faces.dlib_resnet import load_dlib_resnet
from bitwright.papers.faces.embedding import (
    EmbeddingPool,
    EmbeddingTraining,
    make_pool,
    train_embedding,
)
from bitwright.papers.faces.images import FacePreprocessing, load_orl
from bitwright.papers.faces.matrix import MatrixRequest, run_matrix
from bitwright.papers.faces.protocols import OrlSplit, orl_protocol
from bitwright.papers.faces.recipe import load_matrix
from bitwright.papers.faces.sweep import parse_entries, run_sweep
from bitwright.papers.faces.verification import verification_accuracy
from bitwright.pipeline.recipe import find_recipe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SHAPE = (80, 80, 3)
#: Side of the faces that the teacher describes and that students see jittered parts of.
POOL_SIDE, POOL_COUNT = 120, 6500
#: Epochs of 3 000 faces: on small images first, then on whole ones.
TRAINING = {
    "face_densenet10": EmbeddingTraining(epochs=26, early=18, per_epoch=3000, lr=3e-3),
    "face_densenet20": EmbeddingTraining(epochs=21, early=16, per_epoch=3000, lr=3e-3),
}
#: What a reader of the tables has to know.
CAVEATS = {
    "people measured": "10 of ORL's 40: 900 pairs of 100 pictures. Errors are standard errors over "
    "the 10 folds of view 2. Differences between rows of one network are judged by p, which "
    "compares pair by pair; no correction is made for the number of rows",
    "view 2 during development": "its accuracy was printed after every epoch of training and while "
    "the methods of the right half were put together. The weights are those of the last epoch "
    "that ran, but how training went on, and methods and clipping rules of the right half, were "
    "settled with these figures in sight. So it is no untouched test set, and both the float "
    "networks and the right half may look better here than on new people",
    "training": "distilled from dlib's face recognition network on about 6 500 blends and warps of "
    "faces of people 1 to 25, in several runs on a shared processor; see docs/faces.md. Training "
    "again gives other weights, and so other rows",
}


def pool(args: argparse.Namespace) -> None:
    """Mix new faces out of those of 25 people and let the teacher describe them."""
    teacher = load_dlib_resnet(args.teacher).to(memory_format=torch.channels_last)
    protocol = orl_protocol(None, FacePreprocessing(size=150))
    print(f"teacher: {verification_accuracy(teacher, protocol).row()}")
    how = FacePreprocessing(size=POOL_SIDE)
    faces = load_orl(how=how, people=OrlSplit().train)
    grey = np.ascontiguousarray(faces.data.images[..., 0])
    made = make_pool(grey, teacher, args.count, seed=args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    np.savez(args.work / "pool.npz", faces=made.faces, targets=made.targets)
    print(f"{len(made.faces)} faces in {args.work / 'pool.npz'}")


def train(args: argparse.Namespace) -> None:
    """Train one student; a run that was stopped goes on."""
    stored = np.load(args.work / "pool.npz", allow_pickle=False)
    faces = EmbeddingPool(stored["faces"], stored["targets"])
    student = build_model(args.model, None, SHAPE, seed=args.seed)
    protocol = orl_protocol()
    started = time.perf_counter()

    def tell(epoch: int, loss: float) -> None:
        seconds = time.perf_counter() - started
        row = verification_accuracy(student, protocol).row()
        print(f"epoch {epoch}: loss {loss:.4f}, {row}, {seconds:.0f} s", flush=True)

    config = TRAINING[args.model]
    checkpoint = args.work / f"{args.model}.ckpt"
    train_embedding(student, faces, config, checkpoint=checkpoint, on_epoch=tell)
    target = args.work / f"{args.model}.safetensors"
    save_model(student, "safetensors", target, SHAPE, spec=ModelSpec(name=args.model))
    print(f"{target}: {verification_accuracy(student, protocol).row()}")


def found_weights(name: str, work: Path) -> Path | None:
    """The weights that were trained here, or those in the repository."""
    places = (work / f"{name}.safetensors", RESULTS / f"{name}.safetensors")
    return next((path for path in places if path.is_file()), None)


def asked(args: argparse.Namespace) -> tuple[MatrixRequest, bool]:
    """What is to be run, and whether that is all networks and rows."""
    path = find_recipe("face-matrix")
    recipe = load_matrix(path)
    sections = []
    for section in recipe.networks:
        weights = found_weights(section.model, args.work)
        if weights is None:
            print(f"{section.name} is left out: no weights in {args.work}; train {section.model}")
            continue
        print(f"{section.name}: {weights}, sha256 {sha256(weights.read_bytes()).hexdigest()}")
        sections.append(section.model_copy(update={"weights": weights.resolve()}))
    whole = len(sections) == len(recipe.networks) and not args.only
    recipe = recipe.model_copy(update={"networks": tuple(sections)})
    only = tuple(args.only.lower().split(",")) if args.only else ()
    notes = CAVEATS | {
        f"weights of {s.name}": f"sha256 {sha256(s.weights.read_bytes()).hexdigest()}"
        for s in sections
    }
    return MatrixRequest(recipe, path.parent, args.out, only=only, notes=notes), whole


def published(files: dict[str, Path], name: str) -> None:
    """Copy the tables to the results of the repository."""
    for kind in ("md", "json"):
        target = RESULTS / f"{name}.{kind}"
        target.write_text(files[kind].read_text(encoding="utf-8"), encoding="utf-8")
        print(target)


def matrix(args: argparse.Namespace) -> None:
    """Run all rows; results of the whole matrix go to docs/results."""
    request, whole = asked(args)
    files = run_matrix(request, lambda text: print(text, flush=True))
    if whole:
        published(files, "faces")


def sweep(args: argparse.Namespace) -> None:
    """K-means at 8 to 4096 entries for each scope; results go to docs/results."""
    request, _ = asked(args)
    entries = parse_entries(args.entries)
    files = run_sweep(request, entries, tell=lambda text: print(text, flush=True))
    published(files, "faces_clusters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "faces")
    parser.add_argument("--seed", type=int, default=0)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("pool", help=pool.__doc__)
    verb.add_argument("--teacher", type=Path, required=True)
    verb.add_argument("--count", type=int, default=POOL_COUNT)
    verb.set_defaults(run=pool)
    verb = verbs.add_parser("train", help=train.__doc__)
    verb.add_argument("model", choices=sorted(TRAINING))
    verb.set_defaults(run=train)
    verb = verbs.add_parser("matrix", help=matrix.__doc__)
    verb.add_argument("--only", help="parts of row names, by commas")
    verb.add_argument("--out", type=Path, default=ROOT / "runs" / "faces-matrix")
    verb.set_defaults(run=matrix)
    verb = verbs.add_parser("sweep", help=sweep.__doc__)
    verb.add_argument("--only", help="parts of network names, by commas")
    verb.add_argument("--entries", default="all", help="table sizes by commas")
    verb.add_argument("--out", type=Path, default=ROOT / "runs" / "faces-matrix")
    verb.set_defaults(run=sweep)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
