# SPDX-License-Identifier: Apache-2.0
"""The steps of a build: thin glue between the parts, each with a typed result."""
