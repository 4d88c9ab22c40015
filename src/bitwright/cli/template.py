# SPDX-License-Identifier: Apache-2.0
"""`bitwright init`: a commented recipe for the user's own model and data."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import zipfile
from importlib import resources
from pathlib import Path
from string import Template

from bitwright.base.claims import claimed
from bitwright.base.errors import RecipeError
from bitwright.base.files import atomic_write
from bitwright.data import list_datasets
from bitwright.models.catalog import ModelSpec, list_models

_IMAGES = """\
  name: folder              # your own images; or one of `bitwright list datasets`
  path: $images
  # A folder or zip of class folders: CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE.
  image_size: [32, 32]      # height, width: all images are resized to this
  # grey: true              # one channel instead of three"""
_OWN = """\
  # Your own: module:function. The module lies beside this file (or where you call bitwright). The
  # function returns (inputs, labels) or (inputs, labels, classes): a table, signals or images.
  name: $name
  options: {}               # keyword arguments of the function
  # bits: 8                 # of the levels that numbers become"""
_NAMED = """\
  name: $name
  # One of `bitwright list datasets`."""
_INPUTS = (
    "input: uint8",
    "# input: int8           # by default the levels of the data as they are",
)


def write_template(
    path: Path, model: str, images: Path, data: str | None = None, *, force: bool
) -> list[str]:
    """Write a commented recipe.

    Args:
        data: a data set instead of a folder of images: module:function, or a name.

    Returns:
        What is not there yet, in words: the recipe may be written before model and images.

    Raises:
        RecipeError: the model's name is none, the images cannot be any, or the file cannot be
            written.
        RunError: the file exists already.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError("should end in .yaml", where=str(path))
    if path.is_dir():
        raise RecipeError("is a folder", where=str(path), hint="name the YAML file to write")
    with claimed(path, force=force):
        return _write(path, model, images, data)


def _write(path: Path, model: str, images: Path, data: str | None) -> list[str]:
    notes = _of_model(model, path.parent)
    if data is None:
        notes += _of_images(images, path.parent)
        section = Template(_IMAGES).substitute(images=json.dumps(str(images)))
    else:
        notes += _of_data(data, path.parent)
        section = Template(_OWN if ":" in data else _NAMED).substitute(name=json.dumps(data))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "recipe"
    text = Template(resources.files(__package__).joinpath("template.yaml").read_text()).substitute(
        file=path, name=name, model=json.dumps(model), data=section, input=_INPUTS[data is not None]
    )
    try:
        atomic_write(path, text)
    except OSError as error:
        raise RecipeError(f"cannot be written: {error}", where=str(path)) from error
    return notes


def _of_model(name: str, folder: Path) -> list[str]:
    """What to say about a model's name that is one."""
    spec = ModelSpec(name=name)
    if spec.is_own:
        return _of_function(name, folder, "--model", "my_model:make_model", "the model's module")
    if spec.is_file:
        return [] if (folder / name).is_file() else [f"the model's file {name} is not there yet"]
    if name not in {info.name for info in list_models()}:
        near = difflib.get_close_matches(name, [info.name for info in list_models()], 3)
        known = f"did you mean {', '.join(near)}? " if near else ""
        raise RecipeError(
            f"no model {name!r}",
            where="--model",
            hint=f"{known}Your own is module:function; `bitwright list models` names the others",
        )
    return []


def _of_data(name: str, folder: Path) -> list[str]:
    """What to say about a data set's name that is one."""
    if ":" in name:
        return _of_function(name, folder, "--data", "my_data:load", "the data's module")
    known = [info.name for info in list_datasets()]
    if name not in known:
        raise RecipeError(
            f"no data set {name!r}",
            where="--data",
            hint="your own is module:function, a folder of images --images; "
            f"others: {', '.join(known)}",
        )
    return []


def _of_function(name: str, folder: Path, option: str, example: str, what: str) -> list[str]:
    """What to say about a function of the user's own."""
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise RecipeError(
            f"{name!r} is no module:function",
            where=option,
            hint=f"names of Python, such as {example}; the module lies beside the recipe as "
            f"{example.partition(':')[0]}.py",
        )
    # Without importing it: what lies in a folder is run by `build`, not by `init`.
    places = [f / module.replace(".", "/") for f in (folder, Path())]
    there = any(p.is_dir() or p.with_name(f"{p.name}.py").is_file() for p in places)
    if there or importlib.util.find_spec(module.partition(".")[0]) is not None:
        return []
    return [f"{what} {module} is not there yet: {places[0]}.py"]


def _of_images(images: Path, folder: Path) -> list[str]:
    """What to say about a folder of images, or an archive."""
    place = folder / images
    if place.is_dir():
        if any(entry.is_dir() for entry in place.iterdir()):
            return []
        return [f"the folder {images} holds no folders yet: one for each class"]
    if place.exists() and not zipfile.is_zipfile(place):
        raise RecipeError(
            "is neither a folder nor a zip file",
            where=f"--images {images}",
            hint="name a folder (or zip) of class folders: CLASS/IMAGE",
        )
    return [] if place.exists() else [f"the images {images} are not there yet"]
