# SPDX-License-Identifier: Apache-2.0
"""`bitwright init`: a commented recipe for the user's own model and data."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from string import Template

from bitwright.base.errors import RecipeError
from bitwright.base.files import atomic_write


def write_template(path: Path, model: str, images: Path, *, force: bool) -> None:
    """Write a commented recipe.

    Raises:
        RecipeError: the file exists already, or cannot be written.
    """
    if path.exists() and not force:
        raise RecipeError(
            "exists already", where=str(path), hint="name another file, or use --force"
        )
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError("should end in .yaml", where=str(path))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "recipe"
    text = Template(resources.files(__package__).joinpath("template.yaml").read_text()).substitute(
        file=path, name=name, model=json.dumps(model), images=json.dumps(str(images))
    )
    try:
        atomic_write(path, text)
    except OSError as error:
        raise RecipeError(f"cannot be written: {error}", where=str(path)) from error
