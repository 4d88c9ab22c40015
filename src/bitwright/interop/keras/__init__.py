# SPDX-License-Identifier: Apache-2.0
"""Models of Keras in and out."""
