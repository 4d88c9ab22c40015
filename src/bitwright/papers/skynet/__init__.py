# SPDX-License-Identifier: Apache-2.0
"""SkyNet (Zhang et al. 2020): the published weights, and a reference in NumPy."""
