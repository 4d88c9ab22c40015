# SPDX-License-Identifier: Apache-2.0
"""Files of tensors: safetensors, with what they belong to, and those of torch.

The metadata of a safetensors file hold one JSON text under ``bitwright``: the model (a name of the
zoo or a user's factory with its options, or the layers themselves), the image's shape, and the
input convention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, parse_json
from bitwright.base.memory import ran_out, too_little
from bitwright.models.torch_files import MOST_AXES, read_saved

_KEY = "bitwright"
_HINT = "pip install safetensors"
#: Kinds of numbers that everything here computes with.
_KINDS = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)

_MOST_TENSORS = 20_000  # the largest networks have a few thousand
#: Bytes of all tensors of a file that may share memory, for each byte of it, and besides. Tied
#: weights are there two or three times; every tensor is looked at for NaN.
_SHARED, _BESIDES = 16, 64 << 20
_PLAIN = (str, int, float, type(None), torch.dtype, torch.device)  # besides tensors and containers


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, facts: Mapping[str, Any] | None = None
) -> Path:
    """Write tensors by name, bit for bit; the file is whole or not there.

    Args:
        facts: plain values about them, see the module's docstring.

    Raises:
        DataError: the package safetensors is not installed.
    """
    try:
        from safetensors.torch import save
    except ModuleNotFoundError:
        raise DataError("needs the package safetensors", where=str(path), hint=_HINT) from None
    # Tensors that share memory would be refused; a copy of each never does.
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    metadata = {"format": "pt"}
    if facts:
        metadata[_KEY] = json.dumps(dict(facts), sort_keys=True)
    atomic_write(path, save(whole, metadata=metadata))
    return path


@bounded_reader
def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and the facts about them (empty for a file of other origin).

    Raises:
        DataError: the file is missing, cut short, damaged, or holds numbers that are not finite.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise DataError("needs the package safetensors", where=str(path), hint=_HINT) from None
    if not path.is_file():
        raise DataError("does not exist", where=str(path))
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            if len(names) > _MOST_TENSORS:
                raise ValueError(f"it has {len(names)} tensors, at most {_MOST_TENSORS} are read")
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"is no whole safetensors file: {error}",
            where=str(path),
            hint="the file is cut short or of another kind; copy it again",
        ) from error
    check_numbers(tensors, str(path))
    return tensors, _facts(metadata, path)


def check_numbers(tensors: Mapping[Any, Tensor], where: str) -> None:
    """Make sure that tensors have names and are finite numbers.

    Raises:
        DataError: one does not, or is not; names it.
    """
    for name, values in tensors.items():
        if not isinstance(name, str):
            raise DataError(
                f"a tensor is called {name!r}, which is a {type(name).__name__}, not text",
                where=where,
                hint="save a state dict: names and tensors",
            )
        reason = _not_plain(values)
        if reason is not None:
            raise DataError(
                f"{name!r} is {reason}; plain numbers are expected",
                where=where,
                hint="convert it before it is saved: .to_dense(), .dequantize(), .float()",
            )
        if values.is_floating_point() and not torch.isfinite(values).all():
            raise DataError(
                f"{name!r} holds NaN or infinity",
                where=where,
                hint="the training has diverged, or the file is damaged",
            )


def _not_plain(values: Tensor) -> str | None:
    """What a tensor is that holds no plain numbers, one for each element; None for one that does.

    Most of what torch computes fails for such tensors, each in a way of its own.
    """
    if values.is_nested:
        return "a nested tensor"
    if values.is_quantized:
        return f"a quantized tensor ({values.dtype})"
    if values.dim() > MOST_AXES:
        return f"a tensor of {values.dim()} axes, at most {MOST_AXES} are read"
    if values.layout is not torch.strided:
        return f"a sparse tensor ({values.layout})"
    if values.device.type != "cpu":
        return f"a tensor without numbers (device {values.device.type})"
    if values.dtype not in _KINDS:
        return f"a tensor of {values.dtype}"
    if values.nbytes > values.untyped_storage().nbytes():
        return f"a tensor of shape {tuple(values.shape)} that is not whole"
    return None


@bounded_reader
def load_plain(path: Path) -> Any:
    """What ``torch.save`` wrote of tensors and plain values, onto the CPU; nothing in the file is
    executed: see `bitwright.models.torch_files`.

    Raises:
        DataError: it is missing, cut short, damaged, holds anything else, or would take far more
            memory than it has bytes.
    """
    where = str(path)
    if not path.is_file():
        raise DataError("does not exist", where=where)
    try:
        content = read_saved(path)
        _check_values(content)
    except DataError:
        raise
    except Exception as error:  # of many kinds for files that are damaged
        if ran_out(error):
            raise too_little(where) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"is no checkpoint of torch: {reason}", where=where) from error
    return content


def _check_values(content: Any) -> None:
    """Refuse what is no plain value, and tensors that are no plain numbers or claim more of them
    than the file holds: a view of one, repeated.
    """
    seen: set[int] = set()
    held: dict[int, int] = {}
    shown, waiting = 0, [content]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            reason = _not_plain(value)
            if reason is not None:
                raise ValueError(f"it holds {reason}")
            memory = value.untyped_storage()
            held[memory.data_ptr()], shown = memory.nbytes(), shown + value.nbytes
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        elif not isinstance(value, _PLAIN):
            raise ValueError("it holds names of what is not called")
    if shown > _SHARED * sum(held.values()) + _BESIDES:
        raise ValueError(f"its tensors show {sum(held.values())} bytes as {shown}")


def _facts(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    if _KEY not in metadata:
        return {}
    try:
        facts = parse_json(metadata[_KEY])
    except ValueError as error:
        raise DataError(f"has broken metadata: {error}", where=str(path)) from error
    if not isinstance(facts, dict):
        raise DataError("has broken metadata: no object", where=str(path))
    return facts


def fill_state(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load tensors by name into a model, all or none.

    Batch norm's counters (``num_batches_tracked``) may be missing on either side.

    Raises:
        DataError: a name is missing or unknown, or a shape differs; the model is unchanged.
    """
    own = model.state_dict()
    check_state(own, tensors, where)
    model.load_state_dict({n: t for n, t in tensors.items() if n in own}, strict=False)


def check_state(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    """Make sure that tensors are those of a model, by their names and shapes alone.

    Args:
        own: the model's state dict; it need not have numbers.

    Raises:
        DataError: as `fill_state`.
    """
    counters = {name for name in {*own, *tensors} if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in tensors and name not in counters]
    extra = [name for name in tensors if name not in own and name not in counters]
    if missing or extra:
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which the model has not"
        count = len(missing or extra) - 1
        raise DataError(
            what + (f" (and {count} more)" if count else ""),
            where=where,
            hint="the file is of another network",
        )
    for name in own:
        if name in tensors and tensors[name].shape != own[name].shape:
            raise DataError(
                f"{name!r} has the shape {tuple(tensors[name].shape)}, the model's is "
                f"{tuple(own[name].shape)}",
                where=where,
                hint="the file is of another network",
            )
