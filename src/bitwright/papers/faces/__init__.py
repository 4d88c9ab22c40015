# SPDX-License-Identifier: Apache-2.0
"""Face recognition on few bits: data, embeddings, verification, and the matrix of formats."""
