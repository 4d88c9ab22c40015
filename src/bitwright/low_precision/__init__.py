# SPDX-License-Identifier: Apache-2.0
"""Policies that choose the precision of every product while training runs."""
