# SPDX-License-Identifier: Apache-2.0
"""External programs: found once, really tried, run with time limits, nothing left behind."""
