# SPDX-License-Identifier: Apache-2.0
"""Many variants of one network: searches, sweeps, studies, comparisons of formats, forecasts."""
