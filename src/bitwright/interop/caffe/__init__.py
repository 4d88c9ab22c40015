# SPDX-License-Identifier: Apache-2.0
"""Models of Caffe in and out."""
