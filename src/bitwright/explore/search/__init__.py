# SPDX-License-Identifier: Apache-2.0
"""Which format for which layer: sensitivity tables, mixed precision by layer."""
