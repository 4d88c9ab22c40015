# SPDX-License-Identifier: Apache-2.0
"""From a recipe to a run directory: recipe, store, steps, and the Python API."""
