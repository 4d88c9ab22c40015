# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: plain tensors and numbers, written whole or not at all, checked when read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.base.files import atomic_write
from bitwright.models.tensors import load_plain

_LARGEST_RATE = torch.finfo(torch.float32).max
_HINT = "the file is corrupt or cut short; delete it and train again"


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write nested dicts and lists of tensors, numbers and strings.

    Raises:
        DataError: the disk is full or the folder cannot be written; the old file is untouched.
    """
    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        atomic_write(path, buffer.getvalue())
    except OSError as error:
        raise DataError(
            f"checkpoint cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free some disk space and run again: finished epochs are kept",
        ) from error


def load_checkpoint(path: Path, *, fields: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a checkpoint onto the CPU. Nothing in the file is executed (`load_plain`).

    Args:
        path: the file.
        fields: keys that it must have.

    Raises:
        DataError: it is missing, corrupt, truncated, or lacks a field.
    """
    if not path.is_file():
        raise DataError("no such checkpoint", where=str(path), hint="train first")
    try:
        content = load_plain(path)
    except DataError as error:
        message = f"is no whole checkpoint: {error.message}"
        raise DataError(message, where=str(path), hint=_HINT) from error
    missing = [name for name in fields if not isinstance(content, dict) or name not in content]
    if missing:
        raise DataError(f"has no {missing[0]!r}", where=str(path), hint=_HINT)
    result: dict[str, Any] = content
    return result


def save_progress(
    path: Path, state: dict[str, Any], optimizer: torch.optim.Optimizer, losses: list[float],
    settings: object,
) -> None:  # fmt: skip
    """Write where a training stands: the losses so far, the settings, and state dicts by name."""
    done = {"optimizer": optimizer.state_dict(), "losses": losses, "settings": repr(settings)}
    save_checkpoint(path, {**state, **done})


def resume(
    path: Path | None, name: str, model: nn.Module, optimizer: torch.optim.Optimizer,
    settings: object, most: int,
) -> list[float]:  # fmt: skip
    """Go on from what `save_progress` wrote, if it is there; returns the losses so far.

    Args:
        name: of the model's state dict.
        most: losses of the whole training.

    Raises:
        DataError: the file is unusable, was written with other settings, or belongs to another
            model.
    """
    if path is None or not path.is_file():
        return []
    content = load_checkpoint(path, fields=(name, "optimizer", "losses", "settings"))
    if content["settings"] != repr(settings):
        raise DataError(
            f"was written with {content['settings']}, now it is {settings}",
            where=str(path),
            hint="delete it to begin anew, or use the settings it was written with",
        )
    try:
        model.load_state_dict(content[name])
        load_optimizer(optimizer, content["optimizer"])
        losses = [float(loss) for loss in content["losses"]]
        if len(losses) > most:
            raise ValueError(f"it has {len(losses)} losses, and the training ends after {most}")
    except (
        ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise DataError(
            f"belongs to another model: {str(error).splitlines()[0]}",
            where=str(path),
            hint="delete it to begin anew",
        ) from error
    return losses


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load what an optimizer has gathered, and the rates that a schedule has left it with; how it
    works (its other settings, which of torch's kernels) is its own to say, not the file's.

    Torch's fused kernels ask nothing of what has been gathered: they read and write as many numbers
    as the parameter has, wherever they lie. So each is copied into a tensor of our own, made as the
    optimizer makes it.

    Raises:
        ValueError: it is of other parameters, or is not what this optimizer gathers.
        KeyError, TypeError, AttributeError: it is no state of an optimizer.
    """
    own = optimizer.state_dict()["param_groups"]
    if len(own) != len(state["param_groups"]):
        raise ValueError(f"{len(state['param_groups'])} groups of parameters, not {len(own)}")
    for group, theirs in zip(own, state["param_groups"], strict=True):
        if len(theirs["params"]) != len(group["params"]):
            raise ValueError(f"{len(theirs['params'])} parameters, not {len(group['params'])}")
    groups = [
        {key: _kept(key, value, theirs.get(key)) for key, value in group.items()}
        for group, theirs in zip(own, state["param_groups"], strict=True)
    ]
    places = [
        (group, parameter) for group in optimizer.param_groups for parameter in group["params"]
    ]
    gathered = {}
    for place, found in state["state"].items():
        if not 0 <= place < len(places):
            raise ValueError(f"it has gathered something of parameter {place!r:.40}")
        if found:
            group, parameter = places[place]
            gathered[place] = _as_made(_first_state(optimizer, group), parameter, found, place)
    optimizer.load_state_dict({"state": gathered, "param_groups": groups})


def _first_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any]
) -> Mapping[str, Tensor | None]:
    """What such an optimizer has gathered of a parameter of (2, 3) after its first step."""
    kind = type(getattr(optimizer, "optimizer", optimizer))  # Fabric's lies around it
    parameter = nn.Parameter(torch.zeros(2, 3))
    parameter.grad = torch.zeros(2, 3)
    settings = {name: value for name, value in group.items() if name != "params"}
    made = kind([{**settings, "params": [parameter]}], lr=0.0)
    made.step()
    found: Mapping[str, Tensor | None] = made.state[parameter]
    return found


def _as_made(
    first: Mapping[str, Tensor | None], parameter: Tensor, found: Mapping[str, Any], place: int
) -> dict[str, Tensor | None]:
    """What was found, in tensors of the parameter's size and layout, or of one number.

    Raises:
        ValueError: it is something else.
    """
    if set(found) != set(first):
        names = ", ".join(map(repr, sorted(map(str, found))))
        raise ValueError(f"{names:.80} of parameter {place}, not {', '.join(sorted(first))}")
    made: dict[str, Tensor | None] = {}
    for name, pattern in first.items():
        value, shape = found[name], () if pattern is None else pattern.shape
        wanted = parameter.shape if shape else shape
        if pattern is None and value is None:
            made[name] = None
            continue
        plain = isinstance(value, Tensor) and value.layout == torch.strided
        if pattern is None or not plain or not value.is_floating_point() or value.shape != wanted:
            raise ValueError(f"{name} of parameter {place} is not of its shape {[*wanted]}")
        if not shape and not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} of parameter {place} is {float(value)}")
        own = torch.empty_like(parameter) if shape else torch.empty_like(pattern)
        made[name] = own.detach().copy_(value)
    return made


def _kept(name: str, own: Any, found: Any) -> Any:
    """A setting of a group: ours, but for the rate, which a schedule moves, and the one it moves
    from, which may have been taken of the weights as they were when training began."""
    is_rate = (
        name in ("lr", "initial_lr") and type(found) in (int, float) and 0 <= found <= _LARGEST_RATE
    )
    return float(found) if is_rate else own


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's state dict."""
    save_checkpoint(path, {"model": model.state_dict()})


def load_weights(path: Path, model: nn.Module) -> None:
    """Load what ``save_weights`` wrote into a model of the same structure.

    Raises:
        DataError: the file is unusable.
        ModelError: it belongs to another model.
    """
    load_state(model, load_checkpoint(path, fields=("model",))["model"], str(path))


def load_state(model: nn.Module, state: dict[str, Any], where: str) -> None:
    """Load a state dict, every key of which must fit.

    Raises:
        ModelError: keys or shapes differ.
    """
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ModelError(
            f"checkpoint belongs to another model: {' '.join(lines[1:2]) or lines[0]}",
            where=where,
            hint="use the recipe it was trained with, or train again",
        ) from error
