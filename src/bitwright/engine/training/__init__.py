# SPDX-License-Identifier: Apache-2.0
"""The three products of training a layer as programs of the engine, of its existing instructions.

Forward products and gradients of the input are convolutions with images one after the other
(`sliding`); the gradient of the weights has images in the lanes (`gradient`). What is computed is
exact: raw sums of 32 bits, which the host scales. `products` makes the programs of a layer.
"""

from bitwright.engine.training.products import TrainingProgram, training_programs

__all__ = ["TrainingProgram", "training_programs"]
