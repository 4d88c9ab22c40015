# SPDX-License-Identifier: Apache-2.0
"""`QuantizedModel`: what `apply` makes of a user's model.

In training it simulates: quantizers round in float, with straight-through gradients. In evaluation
it *is* the integer network: it runs the graph that `integerize` derives from it, the same that is
lowered to hardware, so its levels and scores are those of ``Graph.run``, equal by ``==``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import BitwrightError
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.integers import IntegerModel, integer_problems, integerize
from bitwright.quantize.policy import Policy
from bitwright.quantize.quantizer import Phase
from bitwright.quantize.snapshot import MODAL, Snapshot
from bitwright.quantize.straight_through import SubstituteWeight
from bitwright.quantize.weight_quantizer import WeightQuantizer

#: In ``meta`` of a converted model: the policy, and the shape of one sample if it is known.
POLICY, SHAPE = "bitwright", "bitwright_shape"
_log = logging.getLogger(__name__)


class QuantizedModel(fx.GraphModule):
    """A converted model, with the layer paths of the user's.

    Attributes:
        why_simulated: why evaluation is simulated in float (an operand that the policy keeps float,
            a format without integers), or "". Tells about the last evaluation.
    """

    why_simulated = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedModel:
        self.__dict__.pop("_integers", None)  # found again when it is needed
        copied: QuantizedModel = super().__deepcopy__(memo)
        return copied

    def __copy__(self) -> QuantizedModel:
        copied = QuantizedModel(self, self.graph, class_name=type(self).__name__)
        copied.meta = self.meta
        return copied

    def _replicate_for_data_parallel(self) -> QuantizedModel:
        """A replica has the contents of its original, but no parameters to derive integers from."""
        replica: QuantizedModel = super()._replicate_for_data_parallel()
        replica.__dict__["_original"] = self.__dict__.get("_original", self)
        return replica

    def recompile(self) -> Any:
        self.__dict__.pop("_integers", None)  # the graph has changed
        code = super().recompile()
        made = type(self)  # every graph module has a class of its own
        made.simulate, made.forward = made.forward, _forward
        return code

    def simulate(self, x: Tensor) -> Tensor:
        """What training computes: every quantizer rounds in float, on whatever came before it.

        It differs from evaluation where a requantization's multiplier is rounded to integers (more
        bits than ``threshold_bits``) and where float32 rounds a sum to the other side of a border
        between levels.
        """
        raise NotImplementedError("made by recompile")

    @property
    def policy(self) -> Policy:
        """By which the model was converted."""
        policy: Policy = self.meta[POLICY]
        return policy

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """Of one input, from the example or else from the last forward pass; None if unknown."""
        given = self.meta.get(SHAPE)
        if given is not None:
            return tuple(given)
        seen = [m.sample_shape for m in self.modules() if isinstance(m, ActivationQuantizer)]
        return next((shape for shape in seen if shape is not None), None)

    def integers(self, sample_shape: tuple[int, ...]) -> IntegerModel | None:
        """The integer network for inputs of a shape, as evaluation runs it; None if there is none,
        and then `why_simulated` says why. Kept until a parameter, buffer or setting of a module
        changes, in whatever way.
        """
        original = self.__dict__.get("_original", self)
        with _LOCK:
            found, why = original._kept(sample_shape)
        self.__dict__["why_simulated"] = why
        return found

    def _kept(self, sample_shape: tuple[int, ...]) -> tuple[IntegerModel | None, str]:
        """`_integerized`, remembered for the last few shapes."""
        policy, kept = self.policy, self.__dict__.get("_integers")
        if kept is None or kept[0] != policy or not kept[1].matches(self):
            kept = self.__dict__["_integers"] = (policy, Snapshot(self), {})
        found: dict[tuple[int, ...], tuple[IntegerModel | None, str]] = kept[2]
        if sample_shape not in found:
            if len(found) >= _SHAPES:
                del found[next(iter(found))]
            found[sample_shape] = self._integerized(sample_shape)
        return found[sample_shape]

    def _integerized(self, sample_shape: tuple[int, ...]) -> tuple[IntegerModel | None, str]:
        quantizers = [m for m in self.modules() if isinstance(m, _QUANTIZERS)]
        if any(quantizer.phase is Phase.CALIBRATE for quantizer in quantizers):
            return None, "it is being calibrated"
        awake = [path for path, m in self.named_modules() if m.training and isinstance(m, MODAL)]
        if awake:
            return None, f"in training mode: {', '.join(awake)}"
        problems = integer_problems(self)
        if problems:
            return None, "; ".join(problems)
        try:
            return integerize(self, self.policy, sample_shape), ""
        except BitwrightError as error:
            if str(error) != self.why_simulated:
                _log.warning("evaluation is simulated in float: %s", error)
            return None, str(error)

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, and so of the scores."""
        original: nn.Module = self.__dict__.get("_original", self)
        found = (p.dtype for p in original.parameters() if p.is_floating_point())
        return next(found, torch.float32)

    def _observed(self, x: Tensor, integers: IntegerModel) -> Tensor:
        """The simulation with the exact value put in the place of every node's that has one: for
        gradients, and for hooks on layers. One thread at a time: the modules are everybody's.
        """
        exact, dtype = integers.node_values(x), self.dtype
        calls: dict[nn.Module, list[Tensor | None]] = {}  # a module may be called several times
        for node in self.graph.nodes:
            if node.op == "call_module":
                value = exact.get(node.name)
                module = self.get_submodule(str(node.target))
                calls.setdefault(module, []).append(None if value is None else value.to(dtype))
        with _LOCK:
            handles, reused = [], []
            for module, values in calls.items():
                hook = _substitute(iter(values))
                handles.append(module.register_forward_hook(hook, prepend=True))
                if isinstance(module, ActivationQuantizer) and module.reuse_input:
                    reused.append(module)
                    module.reuse_input = False  # somebody may hold the input
            try:
                return self.simulate(x.to(dtype))
            finally:
                for handle in handles:
                    handle.remove()
                for module in reused:
                    module.reuse_input = True


_QUANTIZERS = (WeightQuantizer, ActivationQuantizer)
#: Input shapes whose integer networks are kept.
_SHAPES = 4
#: Held while integers are derived and while hooks are on the modules.
_LOCK = threading.RLock()


def _forward(self: QuantizedModel, x: Tensor) -> Tensor:
    """Training: `QuantizedModel.simulate`. Evaluation: the integers, where there are any."""
    integers = None if self.training else self.integers(tuple(x.shape[1:]))
    if integers is None:
        return self.simulate(x)
    if _wants_gradient(self, x) or _hooked(self):
        return self._observed(x, integers)
    return integers.scores(x).to(self.dtype)


def _wants_gradient(model: nn.Module, x: Tensor) -> bool:
    if not torch.is_grad_enabled():
        return False
    original: nn.Module = model.__dict__.get("_original", model)
    return x.requires_grad or any(p.requires_grad for p in original.parameters())


def _hooked(model: nn.Module) -> bool:
    """Whether somebody looks at a layer inside."""
    return any(m._forward_hooks or m._forward_pre_hooks for m in model.modules() if m is not model)


def _substitute(values: Iterator[Tensor | None]) -> Callable[..., Tensor]:
    """Puts the next value in the place of what a module gives; None leaves that as it is."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        value = next(values)
        if value is None:
            return output
        if not (torch.is_grad_enabled() and output.requires_grad):
            return value
        found: Tensor = SubstituteWeight.apply(output, value, None)
        return found

    return hook
