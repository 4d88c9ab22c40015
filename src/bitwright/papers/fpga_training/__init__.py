# SPDX-License-Identifier: Apache-2.0
"""Accelerators that train: Barista and FPGPT (Vink 2023), their models, simulators and search."""
