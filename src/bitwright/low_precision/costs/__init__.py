# SPDX-License-Identifier: Apache-2.0
"""What a training schedule costs in time and energy."""
