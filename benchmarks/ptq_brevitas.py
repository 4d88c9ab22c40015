# SPDX-License-Identifier: Apache-2.0
"""Brevitas' post-training quantization of a network that ``ptq.py`` handed over.

Runs in an environment of its own, with ``pip install brevitas`` and nothing of ours:

    python ptq_brevitas.py HANDOVER.npz --out RESULT.json

The quantizers come from ``brevitas_examples`` (its published PTQ flow for classifiers), the graph
is prepared, equalised, calibrated, and corrected by the library's own functions in the order that
the flow has. Weights have one scale a channel, activations are unsigned behind ReLU, the input has
8 bits.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import brevitas
import brevitas.nn as qnn
import numpy as np
import torch
from brevitas.graph.quantize import preprocess_for_quantize
from brevitas.quant import Uint8ActPerTensorFloat
from brevitas_examples.imagenet_classification.ptq.ptq_common import (
    apply_bias_correction,
    apply_gpfq,
    apply_gptq,
    apply_qronos,
    calibrate,
    quantize_model,
)
from torch import nn

BITS = 4
#: What a version raises on what it cannot do; it is reported in the row's place.
FAILURES = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError)
ROWS = {
    "calibration": {},
    "calibration, equalization, bias correction": {"equalize": 20, "bias": True},
    "GPTQ, bias correction": {"weights": "gptq", "bias": True},
    "MSE ranges, bias correction": {"method": "mse", "bias": True},
    "MSE ranges, GPTQ, bias correction": {"method": "mse", "weights": "gptq", "bias": True},
    "MSE ranges, GPFQ, bias correction": {"method": "mse", "weights": "gpfq", "bias": True},
    "MSE ranges, Qronos, bias correction": {"method": "mse", "weights": "qronos", "bias": True},
}


class Labelled(list):
    """Batches of (images, labels), as the library's loops take them."""


def network(channels: int, size: int, widths: list[int], classes: int) -> nn.Sequential:
    """Convolution, batch norm, ReLU, pool for every width, then the classifier; names as ours."""
    layers = nn.Sequential()
    inputs = channels
    for number, width in enumerate(widths, 1):
        layers.add_module(f"conv{number}", nn.Conv2d(inputs, width, 3, padding=1, bias=False))
        layers.add_module(f"bn{number}", nn.BatchNorm2d(width))
        layers.add_module(f"act{number}", nn.ReLU())
        layers.add_module(f"pool{number}", nn.MaxPool2d(2))
        inputs, size = width, size // 2
    layers.add_module("flatten", nn.Flatten())
    layers.add_module("fc1", nn.Linear(inputs * size * size, classes))
    return layers


def quantized(model: nn.Module, calibration: Labelled, options: dict[str, object]) -> nn.Module:
    """The library's flow."""
    prepared = preprocess_for_quantize(
        model, equalize_iters=int(options.get("equalize", 0)), merge_bn=True
    )
    method = str(options.get("method", "stats"))
    result = quantize_model(
        prepared,
        backend="fx",
        weight_bit_width=BITS,
        act_bit_width=BITS,
        bias_bit_width=None,
        weight_quant_granularity="per_channel",
        act_quant_percentile=99.999,
        act_quant_type="sym",
        scale_factor_type="float_scale",
        quant_format="int",
        weight_param_method=method,
        act_param_method=method,
        weight_narrow_range=True,
    )
    first = next(name for name, m in result.named_modules() if isinstance(m, qnn.QuantIdentity))
    eight = qnn.QuantIdentity(act_quant=Uint8ActPerTensorFloat, return_quant_tensor=True)
    setattr(result, first, eight.eval())
    for name, _ in list(result.named_children()):
        # Scores of four bits would tie, and behind the flatten the same values would be quantized
        # once more: both are the converter's caution, which costs accuracy and serves nobody here.
        if name in ("fc1_output_quant", "fc1_input_quant"):
            setattr(result, name, nn.Identity())
    with torch.no_grad():
        result(calibration[0][0][:2])
    calibrate(calibration, result)
    chosen = options.get("weights")
    if chosen == "gptq":
        apply_gptq(calibration, result, act_order=True, use_quant_activations=True)
    elif chosen == "gpfq":
        apply_gpfq(calibration, result, act_order=True)
    elif chosen == "qronos":
        apply_qronos(result, calibration)
    if options.get("bias"):
        apply_bias_correction(calibration, result)
    return result.eval()


def main() -> None:
    """Quantize by every row of the table and write accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("handover", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(options.handover, allow_pickle=False) as held:
        data = {name: held[name] for name in held.files}
    weights = {k[2:]: torch.from_numpy(v) for k, v in data.items() if k.startswith("w.")}
    scale = np.float32(data["scale"])
    images = torch.from_numpy(data["calibration"].astype(np.float32) * scale)
    test = torch.from_numpy(data["test"].astype(np.float32) * scale)
    labels = torch.from_numpy(data["labels"])
    batches = Labelled((batch, torch.zeros(len(batch))) for batch in images.split(64))
    found = {"version": brevitas.__version__, "torch": torch.__version__, "rows": {}}
    if options.out.exists():  # of a run that was stopped
        found = json.loads(options.out.read_text(encoding="utf-8"))
    for name, row in ROWS.items():
        if name in found["rows"]:
            continue
        model = network(
            images.shape[1], images.shape[2], data["widths"].tolist(), int(data["classes"])
        )
        model.load_state_dict(weights)
        started = time.perf_counter()
        try:
            result = quantized(model.eval(), batches, row)
        except FAILURES as error:
            found["rows"][name] = {"error": f"{type(error).__name__}: {error}"[:200]}
            print(name, found["rows"][name], flush=True)
            continue
        seconds = time.perf_counter() - started
        with torch.no_grad():
            answers = torch.cat([result(part).argmax(dim=1) for part in test.split(500)])
        accuracy = float((answers == labels).double().mean())
        found["rows"][name] = {"accuracy": accuracy, "seconds": seconds}
        print(name, found["rows"][name], flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
