# SPDX-License-Identifier: Apache-2.0
"""From a folder of RTL to resources, Fmax and a bitstream: tools, targets, flows and parsers.

This package file stays empty of imports, so that ``bitwright.base.tools`` is cheap to reach.
"""
