# SPDX-License-Identifier: Apache-2.0
"""Carries a precision policy through a training run: formats in, gradients out, log and state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.low_precision.arithmetic.apply import (
    LowPrecisionModel,
    apply_arithmetic,
    check_sums,
    layer_formats,
    layers_of_rules,
    plain_layers,
    remove_arithmetic,
)
from bitwright.low_precision.arithmetic.choose import make_engine
from bitwright.low_precision.arithmetic.errors import ErrorMeter
from bitwright.low_precision.arithmetic.geometry import Product
from bitwright.low_precision.arithmetic.layers import Context, LayerFormats, ProductFormats
from bitwright.low_precision.arithmetic.norms import use_native_norms, use_plain_norms
from bitwright.low_precision.arithmetic.operands import NotFinite
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.formats import device_costs
from bitwright.low_precision.costs.log import epoch_seconds
from bitwright.low_precision.costs.model import CostTable
from bitwright.low_precision.layer_rules import check_rules
from bitwright.low_precision.log import LOG, write_log
from bitwright.low_precision.make import make_policy
from bitwright.low_precision.policy import (
    Assignment,
    Entry,
    EpochSeen,
    Plan,
    StepSeen,
    check_assignment,
)
from bitwright.models.modes import evaluating
from bitwright.train.config import TrainConfig

_log = logging.getLogger(__name__)


def check_low_precision(model: nn.Module, config: TrainConfig) -> None:
    """Refuse what cannot train in low precision, before anything is written.

    Raises:
        ModelError: no layer can.
        RecipeError: settings contradict each other, or a rule matches no layer.
    """
    if config.low_precision is None:
        return
    layers = {path: layer for path, _, _, layer in plain_layers(model)}
    if config.precision != "32":
        raise RecipeError(
            f"precision {config.precision} and low_precision both say what products run in",
            where="precision",
            hint="use precision: 32; a level of low_precision.ladder may be bfloat16 or float16",
        )
    if config.devices > 1 and config.low_precision.policy.kind == "gm":
        raise RecipeError(
            "the policy gm needs one device: each would measure other errors",
            where="low_precision.policy",
            hint="use devices: 1, or the policy muppet",
        )
    if config.devices > 1 and config.low_precision.bad_gradients == "skip":
        raise RecipeError(
            "bad_gradients: skip needs one device: the others would wait for its gradients",
            where="low_precision.bad_gradients",
            hint="use stop, or devices: 1",
        )
    lowest = config.low_precision.arithmetic(0)
    if lowest is not None:
        check_rules(lowest, layers_of_rules(layers))


class PrecisionControl:
    """The low-precision side of one training run.

    Attributes:
        level_name: the precision at present, in words.
        entries: the log so far, one record an epoch.
        skipped: steps of this epoch that were left out for their gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        batches: int,
        example: Tensor,
        *,
        batch_size: int,
        worker: int = 0,
    ) -> None:
        """Put the arithmetic into the network.

        Args:
            model: plain, on its device.
            config: with ``low_precision``.
            batches: steps an epoch.
            example: (1, C, H, W), to see the size of every layer's output.
            batch_size: images a step of this worker.

        Raises:
            ModelError: no layer can train in low precision.
            RecipeError: an accumulator cannot hold a sum.
            TargetError: the device whose time is to be estimated is unknown, or cannot compute so.
        """
        assert config.low_precision is not None
        self.settings: LowPrecision = config.low_precision
        self._costs: CostTable | None = None
        if self.settings.device is not None:
            images, shape = batches * config.batch_size, tuple(example.shape[1:])
            self._costs = device_costs(
                model, shape, self.settings, config.batch_size, images, self.settings.device
            )
        self.context = Context(make_engine(self.settings.engine), config.seed, 0, worker)
        self.target: LowPrecisionModel = apply_arithmetic(model, self.context)
        self.batches = batches
        self._known: dict[int, Mapping[str, LayerFormats]] = {}
        self._errors = ErrorMeter(lambda level, path, of: self._formats(level)[path].of(of).left)
        self.context.on_result = self._errors.see
        self._spans: list[tuple[Assignment, int]] = []
        ladder = self.settings.ladder
        try:
            self._check(example, batch_size)
            self.policy = make_policy(
                self.settings,
                Plan(
                    layers=tuple(self.target.layers),
                    levels=len(self.settings.ladder),
                    float_level=self.settings.float_level,
                    max_epochs=config.epochs,
                    float_epochs=self.settings.float_epochs,
                    steps_per_epoch=batches,
                    seed=config.seed,
                    seconds={} if self._costs is None else self._costs.seconds(ladder),
                    shapes={
                        path: tuple(layer.weight.shape)
                        for path, layer in self.target.layers.items()
                    },
                ),
            )
        except BaseException:
            remove_arithmetic(model)
            raise
        if self.settings.norms == "fast":
            use_native_norms(model)
        self.entries: list[Entry] = []
        self.skipped = 0
        self._gradients: dict[str, Tensor] = {}
        self.level_name = self.settings.ladder[0]

    def close(self) -> None:
        """Give the network its plain layers back."""
        use_plain_norms(self.target.model)
        self.context.on_result = None
        remove_arithmetic(self.target.model)

    def enter_epoch(self, epoch: int) -> bool:
        """Set the formats of an epoch, from 0; whether they differ from those of the last one."""
        self.skipped = 0
        self._gradients, self._spans = {}, []
        before = self.level_name
        self._assign(self.policy.level(epoch))
        return bool(self.entries) and before != self.level_name

    def enter_step(self, step: int) -> None:
        """Random numbers of a step of the run, from 0."""
        self.context.step = step
        self._errors.watch(self.policy.watched())
        given, steps = self._spans[-1]
        self._spans[-1] = given, steps + 1

    def scalars(self) -> dict[str, float]:
        """Figures of the last decision, for curves."""
        if not self.entries:
            return {}
        found = self.entries[-1].to_dict()
        names = ("p", "threshold", "diversity", "violations", "device_seconds")
        return {
            f"precision/{name}": float(found[name]) for name in names if found[name] is not None
        }

    def usable(self, error: NotFinite | None, step: int) -> bool:
        """Whether the gradients of a step may move the weights; says so if not.

        Args:
            error: what stopped the step; None if it went through.

        Raises:
            ModelError: they may not, and the run is to stop.
        """
        later = self.context.not_finite()  # in any case: the next step begins anew
        error = error or later
        reason = error.message if error is not None else self._fault()
        if reason is None:
            return True
        epoch, batch = divmod(step, self.batches)
        where = f"epoch {epoch + 1}, step {batch + 1}"
        if self.settings.bad_gradients == "stop":
            raise ModelError(
                reason,
                where=where,
                hint="lower the learning rate or set clip_norm; or set "
                "low_precision.bad_gradients: skip to go on without such steps",
            ) from error
        self.skipped += 1
        _log.warning("%s: %s; the step is skipped", where, reason)
        return False

    def _fault(self) -> str | None:
        """What is wrong with the gradients of the layers; None if nothing is."""
        grads = {
            path: layer.weight.grad
            for path, layer in self.target.layers.items()
            if layer.weight.grad is not None
        }
        if not grads:
            return None  # all of them are frozen; something else learns
        norms = torch.stack(torch._foreach_norm(list(grads.values()), float("inf")))
        if not bool(torch.isfinite(norms).all()):
            path = list(grads)[int((~torch.isfinite(norms)).nonzero()[0])]
            return f"the weight gradient of {path} is not finite"
        if not bool(norms.any()):
            return "the weight gradients of all layers are zero"
        return None

    def after_step(self, step: int) -> None:
        """Show the gradients of a usable step to the policy, before the optimizer sees them."""
        epoch, batch = divmod(step, self.batches)
        last = batch == self.batches - 1
        if not last and not self.policy.wants_steps:
            return
        gradients = {
            path: layer.weight.grad.detach()
            for path, layer in self.target.layers.items()
            if layer.weight.grad is not None
        }
        if self.policy.wants_steps:
            seen = StepSeen(epoch, batch, gradients, self._errors.errors())
            change = self.policy.after_step(seen)
            if change is not None:
                self._assign(change)
        if last and self.policy.wants_gradients:
            self._gradients = {path: g.clone() for path, g in gradients.items()}

    def after_epoch(self, epoch: int, train_loss: float, validation_loss: float) -> Entry:
        """The policy's decision behind an epoch.

        Raises:
            ModelError: an operand of the validation was not finite.
        """
        if (error := self.context.not_finite()) is not None:
            raise error
        seen = EpochSeen(epoch, self._gradients, train_loss, validation_loss, self.skipped)
        entry = self.policy.after_epoch(seen)
        if self._costs is not None:
            entry = replace(entry, device_seconds=self._seconds(entry, self._costs))
        self.entries.append(entry)
        if entry.switched_to is not None:
            _log.info("epoch %d: %s", epoch + 1, entry.reason)
        return entry

    def write(self, folder: Path) -> None:
        write_log(folder / LOG, self.entries)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors, numbers and strings."""
        return {
            "policy": self.policy.state_dict(),
            "level": self.level_name,
            "entries": [entry.to_dict() for entry in self.entries],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.level_name = str(state["level"])
        self.entries = [Entry.from_dict(entry) for entry in state["entries"]]

    def _seconds(self, entry: Entry, costs: CostTable) -> float | None:
        """Of an epoch on the described device, each of its steps at its precision."""
        spans = [(given, steps) for given, steps in self._spans if steps]
        if len(spans) < 2:
            return epoch_seconds(entry, costs)
        total = 0.0
        for given, steps in spans:
            name, products = self.policy.name_of(given), self.policy.named(given)
            part = epoch_seconds(replace(entry, level=name, products=products), costs)
            if part is None:
                return None
            total += part * steps / self.batches
        return total

    def _assign(self, given: Assignment) -> None:
        """An index of the ladder for all products, or one for each."""
        check_assignment(given, self.policy)
        self._spans.append((given, 0))
        self.level_name = self.policy.name_of(given)
        if isinstance(given, int):
            self.target.use(self._formats(given))
            return
        found: dict[str, LayerFormats | None] = {}
        for path in self.target.layers:
            parts = {}
            for product in Product:
                index = given.get((path, product))
                formats = None if index is None else self._formats(index).get(path)
                parts[product.value] = ProductFormats() if formats is None else formats.of(product)
            found[path] = LayerFormats(**parts)
        self.target.use(found)

    def _formats(self, index: int) -> Mapping[str, LayerFormats]:
        if index not in self._known:
            policy = self.settings.arithmetic(index)
            found = {} if policy is None else layer_formats(policy, self.target.layers)
            self._known[index] = found
        return self._known[index]

    def _check(self, example: Tensor, batch_size: int) -> None:
        """Every level of the ladder against the accumulator, before anything is trained."""
        if self.settings.accumulator == "exact":
            return
        positions = _output_pixels(self.target, example)
        images = {path: pixels * batch_size for path, pixels in positions.items()}
        for index in range(len(self.settings.ladder)):
            formats = self._formats(index)
            if formats:
                check_sums(self.target.layers, formats, images, self.settings.accumulator)


def _output_pixels(target: LowPrecisionModel, example: Tensor) -> dict[str, int]:
    """Output positions of every layer for one image."""
    found = dict.fromkeys(target.layers, 1)
    hooks = []
    for path, layer in target.layers.items():

        def see(module: nn.Module, args: Any, out: Tensor, path: str = path) -> None:
            pixels = out[0, 0].numel() if isinstance(module, nn.Conv2d) else out[..., 0].numel()
            found[path] = max(found[path], pixels)

        hooks.append(layer.register_forward_hook(see))
    try:
        with evaluating(target.model):
            target.model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return found
