# SPDX-License-Identifier: Apache-2.0
"""Post-training quantization: folding, ranges, calibration, and methods that need no labels."""

from __future__ import annotations

from bitwright.quantize.ptq.adaround import AdaRound
from bitwright.quantize.ptq.bias_correction import BiasCorrection
from bitwright.quantize.ptq.calibration import calibrate
from bitwright.quantize.ptq.choice import Choice, choose_policy
from bitwright.quantize.ptq.clipping import ClipSearch, Recalibrate
from bitwright.quantize.ptq.codebooks import RefitCodebooks
from bitwright.quantize.ptq.equalization import absorb_high_biases, equalize
from bitwright.quantize.ptq.folding import Group, fold_batch_norms, fold_groups, folding_of
from bitwright.quantize.ptq.gptq import Gptq
from bitwright.quantize.ptq.methods import Absorb, Calibrate, Equalize, Fold
from bitwright.quantize.ptq.post_training import PtqReport, post_training_quantize
from bitwright.quantize.ptq.ranges import RangeReport, measure_ranges

__all__ = [
    "Absorb",
    "AdaRound",
    "BiasCorrection",
    "Calibrate",
    "Choice",
    "ClipSearch",
    "Equalize",
    "Fold",
    "Gptq",
    "Group",
    "PtqReport",
    "RangeReport",
    "Recalibrate",
    "RefitCodebooks",
    "absorb_high_biases",
    "calibrate",
    "choose_policy",
    "equalize",
    "fold_batch_norms",
    "fold_groups",
    "folding_of",
    "measure_ranges",
    "post_training_quantize",
]
