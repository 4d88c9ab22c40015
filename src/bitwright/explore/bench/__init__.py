# SPDX-License-Identifier: Apache-2.0
"""How fast a network is where it runs, and what an image costs: `bitwright bench`."""
