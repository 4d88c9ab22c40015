# SPDX-License-Identifier: Apache-2.0
"""What the QONNX and the QDQ export share: a writer, and one function an operation."""
