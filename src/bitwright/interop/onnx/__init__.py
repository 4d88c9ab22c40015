# SPDX-License-Identifier: Apache-2.0
"""ONNX files in and out: plain, QDQ and QONNX."""
