# SPDX-License-Identifier: Apache-2.0
"""Trains the two face DenseNets by distillation and runs the matrix of `formats matrix`.

    python benchmarks/faces.py pool   --teacher dlib_face_recognition_resnet_model_v1.dat
    python benchmarks/faces.py train  face_densenet10      # about 40 minutes on one core
    python benchmarks/faces.py train  face_densenet20      # about 75 minutes
    python benchmarks/faces.py matrix                      # about 40 minutes

The ORL faces (AT&T Laboratories Cambridge) are looked for in BITWRIGHT_DATA. The teacher's file is
inside the package `face_recognition_models` on PyPI (public domain). Networks learn from 25 people,
thresholds come from 5 others, and the 10 people that are measured are seen by neither. Everything
is kept in --work and gone on with; nothing is written into the repository but the tables.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from bitwright.data.face_protocols import OrlSplit, find_orl, orl_protocol
from bitwright.data.faces import FacePreprocessing, load_orl
from bitwright.lab.face_matrix import MatrixRequest, run_matrix
from bitwright.lab.face_recipe import load_matrix
from bitwright.models import build_model
from bitwright.models.catalog import ModelSpec
from bitwright.models.dlib_resnet import load_dlib_resnet
from bitwright.models.exchange.files import save_model
from bitwright.recipe import find_recipe
from bitwright.train.embedding import (
    EmbeddingPool,
    EmbeddingTraining,
    make_pool,
    train_embedding,
)
from bitwright.train.verification import verification_accuracy

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


def pool(args: argparse.Namespace) -> None:
    """Mix new faces out of those of 25 people and let the teacher describe them."""
    teacher = load_dlib_resnet(args.teacher).to(memory_format=torch.channels_last)
    protocol = orl_protocol(None, FacePreprocessing(size=150))
    print(f"teacher: {verification_accuracy(teacher, protocol).row()}")
    how = FacePreprocessing(size=POOL_SIDE)
    faces = load_orl(find_orl(), how, people=OrlSplit().train)
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


def matrix(args: argparse.Namespace) -> None:
    """Run the 26 rows."""
    recipe = find_recipe("face-matrix")
    only = tuple(args.only.lower().split(",")) if args.only else ()
    request = MatrixRequest(
        load_matrix(recipe), recipe.parent, args.out, weights=args.work, only=only
    )
    files = run_matrix(request, lambda text: print(text, flush=True))
    for kind in ("md", "json"):
        target = RESULTS / f"faces.{kind}"
        target.write_text(files[kind].read_text(encoding="utf-8"), encoding="utf-8")
        print(target)


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
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
