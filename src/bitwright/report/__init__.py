# SPDX-License-Identifier: Apache-2.0
"""Reports: a typed record of everything a run found (`record`) as JSON, as a table and as one HTML
page; tables of experiments; plots; statistics.
"""
