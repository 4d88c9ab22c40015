# SPDX-License-Identifier: Apache-2.0
"""What quantizing a tensor of training costs, in nanoseconds an element and thread.

    python benchmarks/operands.py
    python benchmarks/operands.py --threads 1 --rounds 50

Tensors are the activations of ResNet-20 on 128 images, in both memories, and a weight. The time is
the fastest of the rounds: what other programs do meanwhile can only add to it.
"""

from __future__ import annotations

import argparse
import time

import torch

from bitwright.formats.pytorch.quantize_library import QUANTIZE
from bitwright.low_precision.arithmetic.operand_quantizer import quantize
from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import Layer, Product, Role

SHAPES = ((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8), (128, 3, 32, 32), (64, 64, 3, 3))
FORMATS = ("int8", "int12", "int16", "e4m3", "e8m7", "mxfp8")


def fastest(x: torch.Tensor, name: str, rounding: str, rounds: int) -> float:
    """Seconds of one call."""
    policy = Policy.for_training({"input": {"format": name, "rounding": rounding}})
    spec = policy.resolve(Layer("conv", "Conv2d"), Role.INPUT, Product.FORWARD).spec
    times = []
    for seed in range(rounds):
        begin = time.perf_counter()
        quantize(x, spec, seed)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    native = "in C" if QUANTIZE.cdll is not None else "in torch operations, no C compiler"
    print(f"{given.threads} threads, integers {native}")
    for shape in SHAPES:
        for memory in (torch.channels_last, torch.contiguous_format):
            x = torch.randn(shape).contiguous(memory_format=memory)
            parts = []
            for name in FORMATS:
                for rounding in ("stochastic", "half_even"):
                    cost = fastest(x, name, rounding, given.rounds) / x.numel() * given.threads
                    parts.append(f"{name} {rounding[:5]} {cost * 1e9:.2f}")
            print(f"{shape} {str(memory).removeprefix('torch.')}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
