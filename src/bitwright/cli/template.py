# SPDX-License-Identifier: Apache-2.0
"""`bitwright init`: a commented recipe for the user's own model and data."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bitwright.base.errors import RecipeError
from bitwright.base.files import atomic_write

_TEMPLATE = """\
# A Bitwright recipe. `bitwright build {file}` runs it; `bitwright explain {file}` says what each
# operand becomes. Every key that is left out has a default; an unknown key is an error.
name: {name}
seed: 0                     # of splits, weights, training and simulation

data:
  name: folder              # your own images; or one of `bitwright list datasets`
  path: {images}
  # A folder or zip of class folders: CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE.
  image_size: [32, 32]      # height, width: all images are resized to this
  # grey: true              # one channel instead of three
  validation: 0.1           # share of the training images kept for choices
  test: 0.2                 # share kept for the final measurement, if there are no own test images

model:
  # Your own: module:function. The module lies beside this file (or where you call bitwright). The
  # function returns a plain torch.nn.Module that takes (N, C, H, W) and gives (N, classes);
  # arguments named num_classes and input_shape (H, W, C) are filled in if it has them.
  # Or a model of the zoo: `bitwright list models`.
  name: {model}
  options: {{}}               # further keyword arguments of the function

quant:                      # which operand gets which format: `bitwright list formats`
  input: uint8
  weight: int4
  activation: uint4
  # rules:                  # later rules win, field by field
  #   - {{position: first, role: weight, format: int8}}
  #   - {{layers: 'features.*', role: activation, format: uint2}}

train:
  float:                    # first in floating point ...
    epochs: 20
    batch_size: 64
    lr: 0.002
    optimizer: adamw
    schedule: cosine
    # augmentation: {{shift: 2, flip: true}}
  quantized:                # ... then in few bits (leave this section out: calibration only)
    epochs: 10
    batch_size: 64
    lr: 0.001

hardware:
  target: ecp5-45k          # `bitwright list targets`
  clock_mhz: 100            # or synth_clk_period_ns: 10
  # One of these; without any, half of the target is filled:
  # target_fps: 1000        # as small as possible at this many images a second
  # fill: 0.7               # as fast as possible within this share of the target
  # budget: {{lut: 8000, bram: 20, dsp: 0}}
  # folding_config_file: folding.json

simulate:
  images: 200               # held-out images whose every score is compared; or `all`
  stall_images: 20          # of these, again with random stalls on both sides

implement:
  seeds: 1                  # placement seeds to try
  timeout_s: 1200

report:
  sample_images: 24
"""


def write_template(path: Path, model: str, images: Path, *, force: bool) -> None:
    """Write a commented recipe.

    Raises:
        RecipeError: the file exists already, or cannot be written.
    """
    if path.exists() and not force:
        raise RecipeError(
            "exists already", where=str(path), hint="name another file, or use --force"
        )
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError("should end in .yaml", where=str(path))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "recipe"
    text = _TEMPLATE.format(
        file=path, name=name, model=json.dumps(model), images=json.dumps(str(images))
    )
    try:
        atomic_write(path, text)
    except OSError as error:
        raise RecipeError(f"cannot be written: {error}", where=str(path)) from error
