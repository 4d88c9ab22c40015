# SPDX-License-Identifier: Apache-2.0
"""Lesson 12: a method of post-training quantization of your own, without editing the package.

A method is a class with a name and one of two functions: ``prepare`` changes the float network,
``treat`` one quantized layer. In a recipe it is named by its module:
``quant.methods: [fold, calibrate, "my_methods:KeepChannelSums"]``; here the same from Python.
"""

from dataclasses import dataclass

import torch

from bitwright import data, train
from bitwright.models import build_model
from bitwright.quantize import Policy
from bitwright.quantize.ptq import post_training_quantize


@dataclass(frozen=True)
class KeepChannelSums:
    """Rounds as usual, then moves those weights of a channel that were nearest to the other side,
    until its sum is what it was: the mean of the output stays, whatever the input's mean is.
    """

    name = "keep channel sums"

    def treat(self, view, biased):
        layer = view.layer
        levels, unit = layer.weight_quantizer.levels(layer.weight)
        flat = layer.weight.detach().double().flatten(1)
        ratio = flat / unit.reshape(-1, 1)
        rounded = levels.flatten(1).clone()
        low, high = layer.weight_quantizer.format.min_level, layer.weight_quantizer.format.max_level
        for row, (wanted, found) in enumerate(zip(ratio, rounded, strict=True)):
            missing = int((wanted - found).sum().round())
            step = 1 if missing > 0 else -1
            order = ((wanted - found) * step).argsort(descending=True)
            free = [i for i in order.tolist() if low <= found[i] + step <= high]
            rounded[row, free[: abs(missing)]] += step
        layer.weight_quantizer.fix_levels(rounded.reshape(levels.shape), unit)


def main() -> None:
    digits = data.load_dataset("digits")
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=0)
    train.fit(model, digits, train.TrainConfig(epochs=6, lr=0.01), run_dir="runs/lesson-12")
    images = torch.from_numpy(digits.train.take(range(256)).reals())
    policy = Policy.from_dict({"input": "uint8", "weight": "int3", "activation": "uint6"})
    for methods in (["fold"], ["fold", KeepChannelSums()], ["fold", "gptq", "bias"]):
        quantized, report = post_training_quantize(model, policy, images, methods)
        share = train.evaluate(quantized, digits.test).accuracy
        print(f"{' + '.join(report.methods):40} {100 * share:.1f} % of the test images")
        assert share > 0.8


if __name__ == "__main__":
    main()
