# SPDX-License-Identifier: Apache-2.0
"""`build_model`: from a model of one's own training loop to proven RTL, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.base.errors import MismatchError, ModelError, RecipeError, RunError
from bitwright.base.files import check_free
from bitwright.base.folders import make_way, remove_folder
from bitwright.base.nouns import OF_AXES
from bitwright.base.progress import Progress, no_progress
from bitwright.base.trust import importable
from bitwright.build.pnr_tools import bitstream_in
from bitwright.data.preprocessing import DataLevels, HostInput
from bitwright.pipeline.designs import steps
from bitwright.pipeline.designs.folder import (
    Design,
    DesignSettings,
    is_design,
    parse_settings,
)
from bitwright.pipeline.designs.own_pixels import PixelsToReals, preprocessing_of
from bitwright.report.record import SummaryRow

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from bitwright.ir import Graph
    from bitwright.quantize import IntegerModel

_CHECK_FRAMES = 4
_BATCH = 128
_CALIBRATION_IMAGES = 1024


@dataclass(frozen=True)
class BuiltModel:
    """What `build_model` has made.

    Attributes:
        design: the folder, which the verbs ``simulate``, ``implement``, ``diff`` and ``report``
            take, with its integer graph and the images' levels.
        integers: the integer network, which gives the scores of the RTL.
        rows: every figure that is there, with its source.
        proof: what the simulation compared; None if it was left out.
        report: the page.
        bitstream: the file to load; None without ``implement``, or where the target has none.
    """

    design: Design
    integers: IntegerModel = field(repr=False)
    rows: tuple[SummaryRow, ...]
    proof: steps.ProofResult | None
    report: Path
    bitstream: Path | None


def build_model(  # noqa: PLR0913 - a section of a recipe each
    model: nn.Module,
    images: Tensor | NDArray[Any],
    *,
    out: str | Path,
    quant: Mapping[str, Any] | None = None,
    hardware: Mapping[str, Any] | None = None,
    simulate: Mapping[str, Any] | None = None,
    implement: bool | Mapping[str, Any] = False,
    name: str | None = None,
    classes: Sequence[str] = (),
    pixels: PixelsToReals | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> BuiltModel:
    """From a trained model to RTL that is proven on images, and to a bitstream if wanted.

    Args:
        model: plain ``nn.Module`` in float, which is quantized by ``quant`` without training; or
            what ``quantize.apply`` made of it and your loop has trained; or its ``freeze``.
        images: (N, C, H, W) reals as the model takes them (or (N, features)): they set the scales
            of a float model, and the design is simulated on them.
        out: the design folder.
        quant: formats, the section ``quant`` of a recipe; of a float model only.
        hardware: the section ``hardware`` of a recipe: target, clock_mhz, target_fps, ...
        simulate: the section ``simulate``; by default all images, 20 of them with stalls.
        implement: True to synthesise, place and route, or the section ``implement``.
        name: of the top module; by default that of the model's class.
        classes: what the labels are called, for whoever reads the board's answers.
        pixels: how your loop makes of an image's pixels (H, W, C), uint8, what the model takes
            (C, H, W), each pixel by itself: with it the board takes image files.
        force: replace an earlier design folder.

    Raises:
        RecipeError: a section is wrong.
        ModelError: the model cannot be quantized, or has no integers.
        RunError: the folder is there already.
        TargetError: it does not fit.
        MismatchError: two levels give other integers: a bug.
        ToolError: a tool is missing or failed.
    """
    place = Path(out)
    _check_place(place, force)
    sections = {
        "hardware": dict(hardware or {}),
        "simulate": dict(simulate or {}),
        "implement": dict(implement) if isinstance(implement, Mapping) else {},
    }
    settings = parse_settings(sections, "build_model")
    reals = _reals(images)
    integers = _integers(model, reals, quant, progress)
    design = _design(integers, reals, place, settings, name or type(model).__name__, progress)
    design = replace(design, host=_host(design.graph, integers, classes, pixels))
    make_way(place)
    _check_place(place, force)  # minutes later: somebody may have made it
    remove_folder(place)
    design.save()
    steps.simulate_design(design, progress)
    bitstream = None
    if implement:
        design = steps.implement_design(design, progress)
        bitstream = bitstream_in(design.folder / steps.IMPLEMENT)
    page = steps.report_design(design, progress) / "report.html"
    return BuiltModel(
        design, integers, steps.summary_of(design), steps.proof_of(design), page, bitstream
    )


def _check_place(place: Path, force: bool) -> None:
    if force and place.exists() and not is_design(place) and any(place.iterdir()):
        raise RunError(
            "is there already and is no design folder", where=str(place), hint="name another folder"
        )
    check_free(place, force=force, what="a design folder with" if is_design(place) else "")


def _reals(images: Tensor | NDArray[Any]) -> Tensor:
    import torch

    found = torch.as_tensor(np.asarray(images) if not torch.is_tensor(images) else images)
    found = found.detach().cpu().to(torch.float32)
    if found.ndim not in (2, 4) or not len(found):
        raise ModelError(
            f"images of shape {tuple(found.shape)}",
            where="images",
            hint="expected (N, C, H, W) or (N, features), as the model takes them",
        )
    if not bool(torch.isfinite(found).all()):
        raise ModelError("hold NaN or infinity", where="images")
    return found


def _integers(
    model: nn.Module, reals: Tensor, quant: Mapping[str, Any] | None, progress: Progress
) -> IntegerModel:
    from bitwright.quantize import IntegerModel, Policy, QuantizedModel, apply
    from bitwright.quantize.ptq.post_training import post_training_quantize

    if isinstance(model, IntegerModel | QuantizedModel) == (quant is not None):
        raise RecipeError(
            "a float model needs formats" if quant is None else "the model has its formats already",
            where="quant",
            hint="such as quant={'input': 'uint8', 'weight': 'int4', 'activation': 'uint4'}"
            if quant is None
            else "leave quant out",
        )
    if isinstance(model, IntegerModel):
        return model
    shape = tuple(reals.shape[1:])
    if quant is not None:
        policy = Policy.from_dict(dict(quant))
        some = reals[:_CALIBRATION_IMAGES]
        progress(f"{', '.join(policy.methods)} on {len(some)} images", 0, 0)
        with importable():
            model, _ = post_training_quantize(
                model, policy, some, policy.methods, batch_size=_BATCH
            )
    assert isinstance(model, QuantizedModel)
    frozen = apply(model, model.policy, "freeze", sample_shape=shape)
    assert isinstance(frozen, IntegerModel)
    return frozen


def _host(
    graph: Graph,
    integers: IntegerModel,
    classes: Sequence[str],
    pixels: PixelsToReals | None,
) -> HostInput:
    """The reals that the model takes are made levels of as in training."""
    kind = graph.types[graph.inputs[0]]
    return HostInput(
        inputs=OF_AXES[len(kind.shape)].many,
        shape=kind.shape,
        format=integers.input_format.name,
        scale=kind.scale[0],
        rounding=integers.rounding.value,
        data=DataLevels(type="float32", scale=1.0),
        preprocessing=None if pixels is None else preprocessing_of(integers, pixels, kind.shape),
        classes=tuple(classes),
    )


def _design(
    integers: IntegerModel,
    reals: Tensor,
    place: Path,
    settings: DesignSettings,
    name: str,
    progress: Progress,
) -> Design:
    """The optimised graph, which gives what the model gives on every image."""
    from bitwright.ir.executor import Executor
    from bitwright.lower import optimise
    from bitwright.pipeline.steps.lower import graph_name

    progress("lowering", 0, 0)
    raw = replace(integers.graph, name=graph_name(name))
    graph = optimise(raw, check=_CHECK_FRAMES)
    edge = graph.only_input
    before, after = Executor(raw), Executor(graph)
    parts = []
    for start in range(0, len(reals), _BATCH):
        found = integers.input_levels(reals[start : start + _BATCH])
        levels = found.permute(0, 2, 3, 1) if found.ndim == 4 else found
        parts.append(np.ascontiguousarray(levels.numpy()).astype(np.int64))
        given = {edge: parts[-1].reshape(len(found), *graph.types[edge].shape)}
        wanted, made = before.run(given), after.run(given)
        for output in graph.outputs:
            if not np.array_equal(wanted[output], made[output]):
                raise MismatchError(
                    "the optimised graph gives other integers than the model",
                    where=f"edge {output}",
                    hint="this is a bug in Bitwright; please report it",
                )
        progress("comparing with the model", start + len(found), len(reals))
    frames = np.concatenate(parts).reshape(len(reals), *graph.types[edge].shape)
    return Design(place, graph, settings, {edge: frames})


__all__ = ["BuiltModel", "build_model"]
