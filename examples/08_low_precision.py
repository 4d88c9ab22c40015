# SPDX-License-Identifier: Apache-2.0
"""Lesson 8: training in few bits that switches itself, then the same formats as integers.

MuPPET begins in 8-bit dynamic fixed point and climbs when the gradients of successive epochs say
that there is little left to find. On this little network it decides fast, as its settings say.
"""

import json
import tempfile
from pathlib import Path

import torch

from bitwright import data, train
from bitwright import quantize as quant
from bitwright.models import build_model

digits = data.load_dataset("digits")
model = build_model("digits_cnn", 10, (8, 8, 1), seed=0)
low_precision = {
    "policy": {"kind": "muppet", "lambda": 1.0, "resolution": 1, "patience": 1},
    "ladder": [8, 12, "float32"],  # N is N-bit dynamic fixed point
    "float_epochs": 3,
    "lr_every": 1,
}
config = train.TrainConfig(epochs=12, lr=0.1, optimizer="sgd", low_precision=low_precision)

with tempfile.TemporaryDirectory() as folder:
    result = train.fit(model, digits, config, run_dir=folder)
    log = [json.loads(line) for line in (Path(folder) / "precision.jsonl").read_text().splitlines()]
for entry, figures in zip(log, result.history, strict=True):
    share = 100 * figures.validation_accuracy
    print(f"epoch {entry['epoch']:2} {entry['level']:>8} {share:5.1f} %  {entry['reason']}")
levels = [entry["level"] for entry in log]
assert list(dict.fromkeys(levels)) == ["int8", "int12", "float32"], "the ladder, step by step"

# What it was trained in, it can be run in: one power of two for each tensor, in integers only.
images = torch.from_numpy(digits.train.reals())
power = {"format": "int8", "scale": "max", "power_of_two": True}
weight = {"format": "int8", "scale": "dynamic"}  # the very scale of training
policy = quant.Policy.from_dict({"input": power, "activation": power, "weight": weight})
calibrated = quant.apply(model, policy, "calibrate", images)
integers = quant.apply(calibrated, policy, "freeze")
graph = integers.graph
test = torch.from_numpy(digits.test.reals())
scores = integers.edges(test)["scores"]
share = (scores.argmax(axis=1) == digits.test.labels).mean()
print(f"8-bit integers, {len(graph.nodes)} operations: {100 * share:.1f} % of the test images")
assert share > 0.9
