# SPDX-License-Identifier: Apache-2.0
"""What a network takes of memory, found out before anything of it is there.

Torch computes shapes without numbers on its device ``meta``. What is counted is what any run must
hold, so that nothing is refused that would do: the weights three times (the float model, the one
that is quantized, gradients), and for each image what the layers with weights give, which their
batch norm or the gradient of the next layer needs. What a run takes is usually twice as much.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bitwright.base.errors import DataError, ModelError
from bitwright.base.memory import LARGE, MOST_OF_A_FILE, machine_memory, shown
from bitwright.ir.footprint import MOST_WORK
from bitwright.models.modes import evaluating

_log = logging.getLogger(__name__)
_COPIES = 3
#: Numbers that layers give for each number of an image; in the zoo at most 3 500. Below that much
#: there is room in any case, and torch need not load what it knows about shapes (1.5 s).
_MOST_EACH = 10_000
_CHANNELS = 16


@dataclass(frozen=True)
class Footprint:
    """Numbers that a network holds.

    Attributes:
        parameters: weights, biases and buffers.
        activations: what its layers with weights give for one image, and the image.
    """

    parameters: int
    activations: int

    def bytes_for(self, images: int, each: int = 4) -> int:
        """Bytes that training holds at least, with so many images at a time; 0: to build it.

        Args:
            each: bytes of an activation.
        """
        return 4 * _COPIES * self.parameters + each * self.activations * images


@dataclass(frozen=True)
class Held:
    """What a file holds of the model that it names: nothing larger is built because it says so.

    Attributes:
        tensors: how many.
        check: raises if a model, given with shapes alone, is not the one whose numbers they are.
        where: the file.
        room: bytes of activations that are held at a time for one image of it; see
            `base.memory.room_for`.
    """

    tensors: int
    check: Callable[[nn.Module], None]
    where: str
    room: int = MOST_OF_A_FILE

    @property
    def most(self) -> int:
        """Parameters that are made until it is clear that the file does not have them; some may be
        made only to be replaced.
        """
        return 4 * self.tensors + 100


class _TooManyError(Exception):
    """More parameters than a file holds."""


def without_numbers(
    factory: Callable[..., Any], arguments: dict[str, Any], held: Held | None = None
) -> nn.Module | None:
    """The network that a factory of the zoo makes, with shapes alone; None if it cannot do so.

    Args:
        held: of the file that names it.

    Raises:
        DataError: the file does not hold the network.
    """
    made_yet = 0

    def count(*_: object) -> None:
        nonlocal made_yet
        made_yet += 1
        if held is not None and made_yet > held.most:
            raise _TooManyError

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            made = factory(**arguments)
    except _TooManyError as error:
        assert held is not None
        raise DataError(
            f"names a model of more than {held.most} parameters, and holds {held.tensors}",
            where=held.where,
            hint="the file is damaged, or of another network",
        ) from error
    except Exception:  # built in earnest it says what is wrong, or that nothing is
        return None
    finally:
        hook.remove()
    if not isinstance(made, nn.Module):
        return None
    if held is not None:
        held.check(made)
    return made


def footprint(model: nn.Module, sample_shape: tuple[int, ...]) -> Footprint:
    """What a network takes; the network itself is not touched.

    Args:
        sample_shape: (C, H, W) of an image.
    """
    state = _state(model)
    shapes = {name: torch.empty_like(value, device="meta") for name, value in state.items()}
    given: list[int] = [math.prod(sample_shape)]

    def count(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            given.append(output.numel())

    layers = [m for m in model.modules() if any(p.ndim > 1 for p in m.parameters(recurse=False))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with evaluating(model):
            image = torch.empty((1, *sample_shape), device="meta")
            torch.func.functional_call(model, shapes, (image,))
    except Exception:  # code of the user's that needs numbers; tried in earnest it says what it is
        given = given[:1]
    finally:
        for hook in hooks:
            hook.remove()
    return Footprint(_count(state), sum(given))


def is_small(sample_shape: tuple[int, ...], room: int) -> bool:
    """Whether an image of this shape fits into any network of the zoo, as far as can be said
    without a look at the network.
    """
    return 4 * math.prod(sample_shape) * _MOST_EACH <= room


def check_image(model: nn.Module, sample_shape: tuple[int, ...], room: int, where: str) -> None:
    """Refuse a network that holds too many activations at a time while one image passes, or takes
    too many operations for it: torch does a layer in one call, in which nothing can stop it.

    What counts is what all layers give, with weights or without, from when it is made until nobody
    reads it any more; nothing is computed.

    Args:
        sample_shape: of an image, such as (C, H, W).
        room: bytes; see `base.memory.room_for`. If that is more than only a file may ask for, there
            is no bound of operations.
        where: the file that says what size images have.

    Raises:
        ModelError: it does; says how much.
    """
    passed = passing(model, sample_shape)
    if passed.peak > room:
        taken, allowed = f"{shown(passed.peak)} of memory", shown(room)
    elif passed.work > MOST_WORK and room <= MOST_OF_A_FILE:
        taken = f"{passed.work / 1e9:.1f} thousand million operations"
        allowed = f"{MOST_WORK / 1e9:.1f}"
    else:
        return
    raise ModelError(
        f"takes {taken} for one image of the shape {tuple(sample_shape)}; {allowed} are allowed",
        where=where,
        hint="if this is what you want, say what size images have: --input-shape HxWxC, or in "
        f"Python input_shape=(H, W, C), or {LARGE}=1; then it may take what the machine has",
    )


@dataclass(frozen=True)
class Passing:
    """What one float32 image takes that passes a network without gradients.

    Attributes:
        peak: bytes of the activations that are held at a time, at the most.
        inside: the same, with the copies that a convolution makes of what it reads and gives, whose
            channels are then a multiple of 16 (oneDNN's layout): of few channels the larger part.
        work: products, and numbers that pools look at.
    """

    peak: int
    inside: int
    work: int


def passing(model: nn.Module, sample_shape: tuple[int, ...]) -> Passing:
    """What an image takes that passes; of a model that needs numbers for it, as far as it came.

    Args:
        sample_shape: of an image, such as (C, H, W).
    """
    state = {name: torch.empty_like(v, device="meta") for name, v in _state(model).items()}
    held = _Held(state.values())
    image = torch.empty((1, *sample_shape), device="meta")
    held.add(image)
    try:
        with evaluating(model), held:
            torch.func.functional_call(model, state, (image,))
    except Exception:  # tried in earnest it says what it is
        pass
    return Passing(held.peak, held.inside, held.work)


def images_at_a_time(model: nn.Module, sample_shape: tuple[int, ...], most: int) -> int:
    """How many images may pass a network at a time, without gradients: those that take an eighth of
    the machine's memory (but 1 GiB in any case), at least one.

    Args:
        sample_shape: of an image, such as (C, H, W).
        most: images that are wished for.
    """
    room = max(MOST_OF_A_FILE, machine_memory() // 8)
    if is_small(sample_shape, room // most):
        return most
    return max(1, min(most, room // max(1, passing(model, sample_shape).inside)))


class _Held(TorchDispatchMode):
    """Counts the bytes of all tensors that are made within and still live, and the work of it.

    Args:
        weights: tensors that do not count, nor do views of them.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = self.inside = self.work = 0
        self._live: dict[int, weakref.ref[Any]] = {}
        self._weights = [weight.untyped_storage() for weight in weights]
        self._known = frozenset(map(id, self._weights))

    def add(self, value: object) -> None:
        """Count a tensor until its storage is gone, which views of it keep."""
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._live or key in self._known:
            return

        def gone(_: object) -> None:
            del self._live[key]
            self.now -= size

        self._live[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
        self.inside = max(self.inside, self.now)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        leaves = tree_leaves(made)
        for value in leaves:
            self.add(value)
        if func.overloadpacket is torch.ops.aten.convolution:
            self.inside = max(self.inside, self.now + _padded(args[0]) + _padded(made))
        if leaves and isinstance(leaves[0], Tensor):
            self.work += leaves[0].numel() * _work_each(func.overloadpacket, args)
        return made


def _padded(image: Tensor) -> int:
    """Bytes of an image (N, C, ...) whose channels are a multiple of `_CHANNELS`."""
    count, channels, *rest = image.shape
    return 4 * count * (channels + -channels % _CHANNELS) * math.prod(rest)


def _work_each(packet: Any, args: tuple[Any, ...]) -> int:
    """Products of a number that an operation makes, or numbers that it is chosen from."""
    aten = torch.ops.aten
    if packet is aten.convolution:
        return args[1][0].numel()
    if packet in (aten.addmm, aten.mm, aten.bmm):
        return args[-2].shape[-1]
    if packet in (aten.max_pool2d_with_indices, aten.avg_pool2d):
        return math.prod(args[1]) if isinstance(args[1], Iterable) else int(args[1]) ** 2
    return 1


def check_memory(
    model: nn.Module,
    sample_shape: tuple[int, ...],
    name: str,
    images: int = 0,
    each: int = 4,
    *,
    known: bool = True,
) -> None:
    """Refuse a network that cannot be worked with on this machine; warn of one that takes half.

    Args:
        images: at a time in training; 0: only to have the network.
        each: bytes of an activation.
        known: it is one of the zoo or the user's own. One of a file may make thousands of numbers
            of each of an image, in layers without weights, too.

    Raises:
        ModelError: it takes more memory than there is.
    """
    there, found = machine_memory(), Footprint(_count(_state(model)), 0)
    if not known or 4 * math.prod(sample_shape) * images * _MOST_EACH > there:
        found = footprint(model, sample_shape)
    if not known:
        held_at_a_time = passing(model, sample_shape).peak // 4  # of float32
        found = Footprint(found.parameters, max(found.activations, held_at_a_time))
    needed = found.bytes_for(images, each)
    if needed <= there // 2:
        return
    held = f", {found.activations} activations for each of {images} images at a time"
    message = (
        f"takes {shown(needed)} of memory or more for images of (C, H, W) = "
        f"{tuple(sample_shape)}, this machine has {shown(there)}: {found.parameters} parameters"
        f"{held if images else ''}"
    )
    if needed > there:
        hint = "choose smaller images, a smaller batch_size, or a smaller model"
        raise ModelError(message, where=name, hint=hint)
    _log.warning("%s: %s", name, message)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _count(state: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in state.values())
