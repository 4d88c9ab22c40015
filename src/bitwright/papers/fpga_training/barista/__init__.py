# SPDX-License-Identifier: Apache-2.0
"""Barista: a tiled matrix product on an FPGA inside a training framework (Vink 2023, chapter 4)."""
