# SPDX-License-Identifier: Apache-2.0
"""Design folders: an integer graph and what to build it for, without a recipe of its training."""
