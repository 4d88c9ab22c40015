# SPDX-License-Identifier: Apache-2.0
"""The report: one typed record of everything a run found, as JSON, as a table and as one HTML page.

NOTE to the author of `steps`: the lead is writing this package (record.py, plots.py, page.py,
template.html, summary.py). `steps/report.py` only gathers the steps' results and fills `Report`.
"""
