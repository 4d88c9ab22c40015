# SPDX-License-Identifier: Apache-2.0
"""Reproductions of published systems; nothing else imports them."""
