# SPDX-License-Identifier: Apache-2.0
"""Train odd sizes with the C program built for address checks; run with its library preloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bitwright.base.native import find_compiler
from bitwright.papers.bnn_soc.settings import Settings, order, rates
from bitwright.papers.bnn_soc.trainer import TRAINER, Trainer

CHECKS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
SIZES = ((1, 2), (63, 65, 3), (64, 64, 10), (100, 1, 130, 10), (784, 70, 10))
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"kernel": "xnor8", "drop_input": 0.2, "drop_hidden": 0.5, "bias": True},
    {
        "kernel": "multiply",
        "weight_binarization": "stochastic",
        "activation_binarization": "stochastic",
    },
    {"binary": False, "kernel": "multiply", "input": "scale_float", "clip": False, "bias": True},
)


def main() -> None:
    compiler = find_compiler()
    assert compiler is not None
    checked = replace(TRAINER, flags=(*TRAINER.flags, *CHECKS))
    library = checked.build(compiler, ("-O1", "-g", "-march=native", "-pthread"))
    random = np.random.default_rng(0)
    for sizes in SIZES:
        for options in OPTIONS:
            s = Settings(sizes=sizes, rate_start=1e-3, rate_end=1e-4, **options)
            trainer = Trainer(s, threads=2, library=library)
            images = random.integers(0, 256, (9, sizes[0]), dtype=np.uint8)
            labels = random.integers(0, sizes[-1], 9)
            trainer.train(images, labels, order(s, 20, 9), rates(s, 20, 9))
            trainer.sums(images)
    print("in bounds")


if __name__ == "__main__":
    main()
