# SPDX-License-Identifier: Apache-2.0
"""`post_training_quantize`: a trained float model and typical inputs -> a quantized model.

No labels and no retraining: all that is learned is where each weight is rounded to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, fx, nn

from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.policy import Policy
from bitwright.quantize.ptq.bias_correction import BiasCorrection, expected_inputs
from bitwright.quantize.ptq.calibration import calibrate_on
from bitwright.quantize.ptq.clipping import Recalibrate
from bitwright.quantize.ptq.equalization import Equalized, as_graph, give_biases
from bitwright.quantize.ptq.folding import Folding, folding_of
from bitwright.quantize.ptq.matrices import TooWideError
from bitwright.quantize.ptq.methods import (
    DEFAULT,
    Absorb,
    Calibrate,
    LayerMethod,
    Method,
    NetworkMethod,
    parse_methods,
)
from bitwright.quantize.ptq.reconstruction import (
    MEMORY_SHARE,
    LayerView,
    reference_model,
    walk_layers,
)
from bitwright.quantize.ptq.samples import (
    BATCH,
    Samples,
    batches_for,
    check_fit,
    sample_count,
)
from bitwright.quantize.signals import raised

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    Attributes:
        path: of the layer.
        format: of its weight.
        nearest_error: squared error of its output with weights rounded as the policy says, and the
            float bias, as a share of the output's power; on the inputs that it really gets.
        error: the same after all methods.
        note: why a method left its weights as they were.
    """

    path: str
    format: str
    nearest_error: float
    error: float
    note: str = ""


@dataclass(frozen=True)
class PtqReport:
    """What `post_training_quantize` did.

    Attributes:
        methods: their words, in order.
        samples: size of the calibration set.
        folding: of batch norms; None if nothing was folded.
        equalized: pairs of layers.
        absorbed: channels moved, by layer.
        layers: in order; empty if no method works on layers.
        scales: unit of each activation quantizer, by its path.
        analytic: layers whose bias was corrected without data.
        seconds: wall time.
    """

    methods: tuple[str, ...]
    samples: int
    folding: Folding | None
    equalized: tuple[Equalized, ...]
    absorbed: dict[str, int]
    layers: tuple[LayerReport, ...]
    scales: dict[str, float]
    analytic: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        folding = self.folding
        return {
            "methods": list(self.methods),
            "samples": self.samples,
            "folded": [] if folding is None else [asdict(norm) for norm in folding.norms],
            "equalized": [asdict(row) for row in self.equalized],
            "absorbed": self.absorbed,
            "layers": [asdict(layer) for layer in self.layers],
            "scales": self.scales,
            "analytic": list(self.analytic),
            "seconds": self.seconds,
        }

    def to_markdown(self) -> str:
        """A table of the layers."""
        lines = ["| layer | weight | error, nearest | error |", "|---|---|---|---|"]
        lines += [
            f"| {r.path} | {r.format} | {r.nearest_error:.3g} | {r.error:.3g} |"
            for r in self.layers
        ]
        notes = [f"* {r.path}: {r.note}" for r in self.layers if r.note]
        if notes:
            lines += ["", *notes]
        return "\n".join(lines) + "\n"


def post_training_quantize(
    model: nn.Module,
    policy: Policy,
    data: Samples,
    methods: Sequence[str | Method] = DEFAULT,
    *,
    batch_size: int = BATCH,
    memory_share: float = MEMORY_SHARE,
) -> tuple[fx.GraphModule, PtqReport]:
    """Quantize a trained model without retraining.

    Args:
        model: a plain float module; it is left as it was.
        policy: the formats of weights, activations and input.
        data: typical inputs, as the model takes them, some hundred; no labels are used.
        methods: see `parse_methods`; the default folds batch norm, calibrates, rounds the weights
            with GPTQ and corrects the biases.
        batch_size: of a data set or tensor.
        memory_share: of the machine's memory that may be taken by the samples on their way through
            both networks.

    Returns:
        A converted model as `apply` gives it, in phase ``train`` and evaluation mode, its weights
        fixed where a method chose them: evaluate it, or freeze it with ``apply(model, policy,
        "freeze")``. And what was done.

    Raises:
        DataError: the calibration set is empty, of one sample, of another shape, or not finite.
        ModelError: NaN or infinite weights, a model that cannot be converted, or one whose tensors
            of all samples take more memory than there is.
        RecipeError: methods that do not fit together, or a policy that does not fit the model.
    """
    started = time.perf_counter()
    wanted = parse_methods(methods)
    batches = batches_for(model, data, batch_size)
    example = batches[0][:1].clone()
    prepared, done = prepare_network(model, wanted, example)
    again = next((m for m in wanted if isinstance(m, Recalibrate)), None)
    layerwise = [
        _ready(m, prepared, example)
        for m in wanted
        if isinstance(m, LayerMethod) and not isinstance(m, Recalibrate)
    ]
    estimator = next(m.estimator for m in wanted if isinstance(m, Calibrate))
    check_fit(prepared, batches)
    converted = calibrate_on(prepared, policy, batches, estimator=estimator)
    layers = _treat(converted, batches, layerwise, again, memory_share)
    corrections = [m.analytic for m in layerwise if isinstance(m, BiasCorrection)]
    report = PtqReport(
        methods=tuple(method.name for method in wanted),
        samples=sample_count(batches),
        folding=folding_of(prepared),
        equalized=tuple(done.get("equalize", ())),
        absorbed=done.get("absorb", {}),
        layers=tuple(layers),
        scales=_scales(converted),
        analytic=tuple(corrections[0]) if corrections else (),
        seconds=time.perf_counter() - started,
    )
    return converted, report


def prepare_network(
    model: nn.Module, methods: Sequence[str | Method], example: Tensor
) -> tuple[nn.Module, dict[str, Any]]:
    """What the methods do to the float network before it is quantized, and what they report.

    The same methods give a network of the same structure, whatever its weights are.
    """
    prepared = raised(model, example)
    done: dict[str, Any] = {}
    wanted = parse_methods(methods)
    for method in wanted:
        if isinstance(method, NetworkMethod):
            prepared, done[method.name] = method.prepare(prepared, example)
    if any(isinstance(method, BiasCorrection | Absorb) for method in wanted):
        prepared = as_graph(prepared, example)
        give_biases(prepared)
    return prepared, done


def _ready(method: LayerMethod, prepared: nn.Module, example: Tensor) -> LayerMethod:
    """A bias correction gets the means that it needs; lists of earlier runs are not shared."""
    if not isinstance(method, BiasCorrection):
        return method
    return replace(method, expected=expected_inputs(prepared, example), analytic=[])


def _treat(
    converted: fx.GraphModule,
    batches: Sequence[Tensor],
    methods: Sequence[LayerMethod],
    again: Recalibrate | None,
    share: float,
) -> list[LayerReport]:
    """All that is done layer by layer."""
    if not methods and again is None:
        return []
    biased = any(isinstance(method, BiasCorrection) for method in methods)
    reports: list[LayerReport] = []

    def on_layer(view: LayerView) -> None:
        before, notes = view.error(), []
        for method in methods:
            try:
                method.treat(view, biased)
            except TooWideError as error:
                notes.append(f"no {method.name}: {error.message}")
                _log.warning("%s: %s", view.path, notes[-1])
        name = view.layer.weight_quantizer.spec.format.name
        reports.append(LayerReport(view.path, name, before, view.error(), "; ".join(notes)))

    walk_layers(
        converted,
        reference_model(converted),
        batches,
        on_layer,
        None if again is None else again.treat,
        share,
    )
    return reports


def _scales(converted: fx.GraphModule) -> dict[str, float]:
    return {
        path: module.unit
        for path, module in converted.named_modules()
        if isinstance(module, ActivationQuantizer) and module.ready and not module.spec.format.block
    }
