# SPDX-License-Identifier: Apache-2.0
"""Binarized networks on an ARM and FPGA system with OpenCL: a thesis of 2018."""
