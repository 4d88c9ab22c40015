# SPDX-License-Identifier: Apache-2.0
"""Small rewrites of a `Network` that other frameworks' ways of writing things ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bitwright.base.errors import ModelError
from bitwright.interop import ops
from bitwright.interop.network import Layer, Network
from bitwright.interop.ops import windows

_NEVER_NEGATIVE = ("relu", "relu6", "sigmoid", "softmax")


def merge_scales(network: Network) -> Network:
    """A `Scale` that alone reads a bare `Norm` becomes its gamma and beta."""
    layers: dict[str, Layer] = {}
    gone: dict[str, str] = {}
    for layer in network.layers:
        inputs = tuple(gone.get(name, name) for name in layer.inputs)
        front = layers.get(inputs[0]) if inputs else None
        alone = len(network.readers(layer.inputs[0])) == 1 if inputs else False
        bare = front is not None and isinstance(front.op, ops.Norm)
        bare = bare and not {"gamma", "beta"} & set(front.arrays)
        if isinstance(layer.op, ops.Scale) and front is not None and bare and alone:
            arrays = {**front.arrays, **layer.arrays}
            if "beta" not in arrays:
                arrays["beta"] = 0 * arrays["gamma"]
            layers[front.name] = replace(front, arrays=arrays)
            gone[layer.name] = front.name
            continue
        layers[layer.name] = replace(layer, inputs=inputs)
    return _rebuilt(network, layers, gone)


def merge_pads(network: Network) -> Network:
    """Zeros around an image become the padding of the convolution or maximum behind them.

    A maximum pads with minus infinity, so only behind an activation that is never negative. What a
    pool that rounds up makes too much and a negative `Pad` cuts off again is a pool that rounds
    down. A pad that fits nowhere stays.
    """
    network = _join_pads(network)
    layers: dict[str, Layer] = {}
    gone: dict[str, str] = {}
    taken: set[str] = set()  # pads that all of their readers do
    known: dict[str, bool] = {}  # see `never_negative`
    for layer in network.layers:
        inputs = tuple(gone.get(name, name) for name in layer.inputs)
        moved = replace(layer, inputs=inputs)
        if isinstance(layer.op, ops.Pad):
            if _cuts_pool(network, layers, moved, layer.inputs[0]):
                pool = layers[inputs[0]]
                assert isinstance(pool.op, ops.Pool)
                layers[pool.name] = replace(pool, op=replace(pool.op, round_up=False))
                gone[layer.name] = pool.name
                continue
            if _all_take(network, layers, moved, layer.name, known):
                layers[layer.name] = moved  # its readers look at it, then it goes
                taken.add(layer.name)
                continue
        front = layers[inputs[0]] if inputs and inputs[0] in taken else None
        layers[layer.name] = moved if front is None else _with_padding(front, moved)
    used = {name for layer in layers.values() for name in layer.inputs} | {network.output}
    kept = {k: v for k, v in layers.items() if not isinstance(v.op, ops.Pad) or k in used}
    return _rebuilt(network, kept, gone)


def _join_pads(network: Network) -> Network:
    """A `Pad` that alone reads another one, of the same direction, becomes one with it."""
    layers: dict[str, Layer] = {}
    for layer in network.layers:
        front = layers.get(layer.inputs[0]) if layer.inputs else None
        if front is None or not isinstance(layer.op, ops.Pad) or not isinstance(front.op, ops.Pad):
            layers[layer.name] = layer
            continue
        amounts = (*front.op.amounts, *layer.op.amounts)
        alone = len(network.readers(front.name)) == 1 and network.output != front.name
        if not alone or min(amounts) < 0 < max(amounts):
            layers[layer.name] = layer
            continue
        del layers[front.name]
        top, left, bottom, right = (
            a + b for a, b in zip(front.op.amounts, layer.op.amounts, strict=True)
        )
        op = ops.Pad((top, left, bottom, right))
        layers[layer.name] = replace(layer, op=op, inputs=front.inputs)
    return replace(network, layers=tuple(layers.values()))


def _symmetric(pad: ops.Pad) -> tuple[int, int] | None:
    top, left, bottom, right = pad.amounts
    return (top, left) if top == bottom >= 0 and left == right >= 0 else None


def _takes(layers: Mapping[str, Layer], pad: Layer, reader: Layer, known: dict[str, bool]) -> bool:
    """Whether a layer can do a symmetric padding by itself."""
    assert isinstance(pad.op, ops.Pad)
    amount = _symmetric(pad.op)
    if amount is None:
        return False
    if isinstance(reader.op, ops.Conv):
        return True
    if (
        not isinstance(reader.op, ops.Pool)
        or reader.op.mode != "max"
        or reader.op.padding != (0, 0)
    ):
        return False
    fits = all(2 * a <= k for a, k in zip(amount, reader.op.kernel, strict=True))
    return fits and never_negative(layers, pad.inputs[0], known)


def never_negative(layers: Mapping[str, Layer], name: str, known: dict[str, bool]) -> bool:
    """Whether no output of a layer can be below zero, whatever the image.

    Args:
        known: what was found of layers so far, which is noted here: who asks for many layers gives
            the same one each time, since each answer is a walk through all that lies in front.
    """
    left = [name]
    while left:
        layer = layers[left[-1]]
        missing: list[str] = []
        match layer.op:
            case _ if layer.name in known:
                pass
            case ops.Activation(function, slope):
                known[layer.name] = function in _NEVER_NEGATIVE and slope == 0
            case ops.Pool() | ops.Concat():
                missing = [front for front in layer.inputs if front not in known]
                if not missing:
                    known[layer.name] = all(known[front] for front in layer.inputs)
            case _:
                known[layer.name] = False
        if missing:
            left += missing
        else:
            left.pop()
    return known[name]


def _all_take(
    network: Network, layers: Mapping[str, Layer], pad: Layer, name: str, known: dict[str, bool]
) -> bool:
    readers = network.readers(name)
    return name != network.output and all(_takes(layers, pad, r, known) for r in readers)


def _with_padding(front: Layer, layer: Layer) -> Layer:
    """The layer with the padding of the `Pad` in front of it, which it can do."""
    assert isinstance(front.op, ops.Pad) and isinstance(layer.op, ops.Conv | ops.Pool)
    amount = _symmetric(front.op)
    assert amount is not None
    padding = (layer.op.padding[0] + amount[0], layer.op.padding[1] + amount[1])
    return replace(layer, op=replace(layer.op, padding=padding), inputs=front.inputs)


def _cuts_pool(network: Network, layers: Mapping[str, Layer], pad: Layer, was: str) -> bool:
    """Whether a negative pad turns the rounding of the pool in front of it from up to down."""
    front = layers.get(pad.inputs[0])
    if front is None or not isinstance(front.op, ops.Pool) or not front.op.round_up:
        return False
    assert isinstance(pad.op, ops.Pad)
    top, left, bottom, right = pad.op.amounts
    if (top, left) != (0, 0) or max(bottom, right) > 0 or len(network.readers(was)) != 1:
        return False
    channels, *sides = network.shapes[front.inputs[0]]
    op = front.op
    down = tuple(
        windows(side, k, s, p, round_up=False)
        for side, k, s, p in zip(sides, op.kernel, op.stride, op.padding, strict=True)
    )
    return network.shapes[pad.name] == (channels, *down)


def _rebuilt(network: Network, layers: Mapping[str, Layer], gone: Mapping[str, str]) -> Network:
    output = gone.get(network.output, network.output)
    return replace(network, layers=tuple(layers.values()), output=output)


def prune(network: Network, output: str | None = None) -> Network:
    """Only what the output needs.

    Args:
        output: a layer's name; by default the one that no other reads.

    Raises:
        ModelError: there is no such layer, or several are read by none.
    """
    names = [layer.name for layer in network.layers]
    if output is None:
        read = {name for layer in network.layers for name in layer.inputs}
        ends = [name for name in names if name not in read]
        if len(ends) != 1:
            raise ModelError(
                f"ends in {len(ends)} layers: {', '.join(ends)}",
                where=network.name,
                hint="say which one is the output",
            )
        output = ends[0]
    if output not in names:
        raise ModelError(f"no layer {output!r}; the last is {names[-1]!r}", where=network.name)
    needed = {output, network.input.name}
    for layer in reversed(network.layers):
        if layer.name in needed:
            needed.update(layer.inputs)
    kept = tuple(layer for layer in network.layers if layer.name in needed)
    return replace(network, layers=kept, output=output)
