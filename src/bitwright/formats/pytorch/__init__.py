# SPDX-License-Identifier: Apache-2.0
"""The torch side of the number formats: rounding, grids, simulation."""
