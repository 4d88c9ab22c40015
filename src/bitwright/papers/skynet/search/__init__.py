# SPDX-License-Identifier: Apache-2.0
"""The bottom-up search of a network for its hardware (Zhang et al. 2020, section 4)."""
