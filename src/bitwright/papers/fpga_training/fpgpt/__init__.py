# SPDX-License-Identifier: Apache-2.0
"""FPGPT: a convolution engine for the three products of training (Vink 2023, chapter 5)."""
