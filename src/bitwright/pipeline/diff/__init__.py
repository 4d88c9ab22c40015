# SPDX-License-Identifier: Apache-2.0
"""One input through every level of a run, compared."""
