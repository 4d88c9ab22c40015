# SPDX-License-Identifier: Apache-2.0
"""The one function from a converted model to integers, and how they run: `integerize`.

What it gives is what the model computes in evaluation (`QuantizedModel`), what is lowered, and what
the hardware is compared with. There is no other derivation of these integers.
"""

from __future__ import annotations

from bitwright.quantize.integers.integerize import integer_problems, integerize
from bitwright.quantize.integers.model import IntegerModel

__all__ = ["IntegerModel", "integer_problems", "integerize"]
