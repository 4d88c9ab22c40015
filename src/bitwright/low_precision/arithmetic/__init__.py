# SPDX-License-Identifier: Apache-2.0
"""Products of training in few bits: operands, engines that multiply them, layers that use them."""
