# SPDX-License-Identifier: Apache-2.0
"""Everything that the steps of a recipe depend on: its sections, the data, files, code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bitwright.base.files import sha256_file
from bitwright.base.plugins import load_attribute, own_code, plugged
from bitwright.base.source import code_key, module_key
from bitwright.base.trust import importable
from bitwright.interop.onnx.reader.beside import digest_beside
from bitwright.models import ModelSpec
from bitwright.pipeline.recipe_hardware import hardware_facts
from bitwright.pipeline.recipe_schema import TeacherSection
from bitwright.pipeline.steps.names import STEP_NAMES
from bitwright.pipeline.steps.shipped import check_unseen
from bitwright.pipeline.steps.workspace import Workspace


def facts_of(work: Workspace) -> dict[str, Any]:
    """Everything that steps depend on, by the names that `Step.facts` uses."""
    fields = work.recipe.resolved()
    own = {
        name: own_code(fields[name], work.module_folders)
        for name in ("quant", "task", "teacher", "train", "data")
    }
    return {
        "name": work.recipe.name,
        "seed": work.recipe.seed,
        "data": [_which_images(fields["data"]), work.data.digest(), own["data"]],
        "model": [fields["model"] | {"weights": None}, _version(work, work.recipe.model)],
        "task": [fields["task"], own["task"]],
        "teacher": [
            fields["teacher"],
            [_teacher_version(work, entry) for entry in work.recipe.teacher],
            own["teacher"],
        ],
        "train.float": [fields["train"]["float"], own["train"]],
        "pretrained": None if work.shipped is None else work.shipped.sha256,
        "train.quantized": [fields["train"]["quantized"], own["train"]],
        "quant": [fields["quant"], own["quant"]],
        "hardware": [
            hardware_facts(work.recipe.hardware),
            _own_hardware(work) if work.recipe.hardware.blocks else None,
        ],
        "simulate": fields["simulate"],
        "implement": work.recipe.implement.facts(),
        "report": fields["report"],
        "description": fields["description"],
        **{f"code:{name}": code_key(f"bitwright.pipeline.steps.{name}") for name in STEP_NAMES},
    }


def model_version(spec: ModelSpec, folders: Iterable[Path]) -> str:
    """Hash of the source of a user's own model and of the modules beside it that it imports, and
    of the files that a model or its weights are read from.

    Args:
        spec: for a model of the zoo this is empty, as the step's own code covers it; a plug-in's
            has the module that builds it.
        folders: where the user's modules lie: the recipe's folder first.
    """
    files = [path for path in spec.files if path.is_file()]
    read = "".join(map(sha256_file, files))
    read += "".join(digest_beside(path) for path in files if path.suffix.lower() == ".onnx")
    if spec.is_own:
        read = module_key(spec.name.partition(":")[0], folders) + read
    elif place := plugged("models").get(spec.name):
        modules = (place, load_attribute(place).factory)
        read = "".join(module_key(text.partition(":")[0], ()) for text in modules) + read
    return read if len(read) <= 64 else hashlib.sha256(read.encode()).hexdigest()


def _version(work: Workspace, spec: ModelSpec) -> str:
    """Hash of what a model is read from: the user's code, files, pretrained weights."""
    taken = check_unseen(spec, work.data)
    return taken.sha256 if taken else model_version(spec, work.module_folders)


def _teacher_version(work: Workspace, section: TeacherSection) -> str:
    if section.model is not None:
        return _version(work, section.model)
    assert section.logits is not None
    return sha256_file(section.logits)


def _own_hardware(work: Workspace) -> list[Any]:
    """Code of the user's own hardware blocks: Python, and the SystemVerilog that they name.

    Raises:
        ModelError, RecipeError: as `hw.own.named_blocks`.
    """
    from bitwright.hw.own import named_blocks

    blocks = work.recipe.hardware.blocks
    with importable(*work.module_folders):
        files = [path for own in named_blocks(blocks) for path in own.sources if path.is_file()]
    return [own_code(blocks, work.module_folders), [sha256_file(path) for path in files]]


def _which_images(data: dict[str, Any]) -> dict[str, Any]:
    """A recipe's section ``data`` without what says where and how fast images are read."""
    if data["stream"] is not None:
        data = data | {"stream": data["stream"] | {"threads": None, "ahead": None}}
    return data | {"path": None, "unlabelled": None}
