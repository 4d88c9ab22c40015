# SPDX-License-Identifier: Apache-2.0
"""What would become of a model, before anything is done."""
