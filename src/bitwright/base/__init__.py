# SPDX-License-Identifier: Apache-2.0
"""What every other room stands on: errors, figures, files, external programs, our C."""
