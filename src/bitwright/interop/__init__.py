# SPDX-License-Identifier: Apache-2.0
"""Networks in and out of other frameworks' files: Caffe, Keras, safetensors. No torch here."""
