# SPDX-License-Identifier: Apache-2.0
"""`bitwright database`: images and their labels in one file, from lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli.options import Json, Shape, parse_shape
from bitwright.cli.output import Output


def database(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The database to write.")],
    train: Annotated[
        Path, typer.Option("--train", help="List of training images: a line PATH LABEL each.")
    ],
    test: Annotated[Path, typer.Option("--test", help="List of test images.")],
    root: Annotated[
        Path, typer.Option("--root", help="Folder that the paths in the lists start from.")
    ] = Path(),
    input_shape: Shape = None,
    json: Json = False,
) -> None:
    """Put images and labels from lists into one file: data of a recipe with `name: database`."""
    from bitwright.data.decoding import Decoding
    from bitwright.data.image_database import TEST, TRAIN, build_database, read_list

    shape = parse_shape(input_shape)
    decoding = Decoding() if shape is None else Decoding(shape[:2], grey=shape[2] == 1)
    lists = {TRAIN: read_list(train), TEST: read_list(test)}
    count = build_database(file, lists, root, decoding)
    output = Output(json)
    if not output.answered({"database": str(file), "images": count}):
        output.say(f"wrote {count} images to {file}")
