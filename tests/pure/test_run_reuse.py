# SPDX-License-Identifier: Apache-2.0
"""Run directories side by side: what one has finished the others take, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bitwright
from bitwright.base.errors import RunError
from bitwright.base.locks import exclusive
from bitwright.base.store import content_key
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.run import Outcome, open_run

FAKE = Path(__file__).with_name("fake_pipeline.py")
_spec = importlib.util.spec_from_file_location("fake_pipeline_reuse", FAKE)
assert _spec is not None and _spec.loader is not None
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


def run(folder: Path, **changes: Any) -> list[Outcome]:
    """Every step, in a run directory among those of its parent."""
    steps = fake.make_steps(folder.parent / "log.txt")
    facts = {**fake.FACTS, **changes}
    with open_run(folder, steps, facts, files={}, notes={}, reuse=folder.parent) as opened:
        return opened.execute(fake.NAMES)


def log_of(tmp_path: Path) -> list[str]:
    path = tmp_path / "log.txt"
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_a_twin_takes_everything_over(tmp_path: Path) -> None:
    run(tmp_path / "a")
    assert log_of(tmp_path) == ["first", "second", "third"]
    found = run(tmp_path / "b")
    assert log_of(tmp_path) == []
    assert all(o.was_done and o.taken_from == tmp_path / "a" for o in found)
    for step in ("01-first/more/data.bin", "02-second/value.txt", "03-third/step.json"):
        assert (tmp_path / "b" / step).read_bytes() == (tmp_path / "a" / step).read_bytes()
    assert all(o.taken_from is None for o in run(tmp_path / "b"))  # now its own
    assert not list((tmp_path / ".shared" / "steps" / ".locks").iterdir())


def test_a_run_that_shared_nothing_serves_as_well(tmp_path: Path) -> None:
    with fake.opened(tmp_path / "a") as alone:
        alone.execute(fake.NAMES)
    log_of(tmp_path)
    assert all(o.taken_from == tmp_path / "a" for o in run(tmp_path / "b"))
    assert log_of(tmp_path) == []


def test_only_what_is_the_same_is_taken_over(tmp_path: Path) -> None:
    run(tmp_path / "a")
    log_of(tmp_path)
    first, second, third = run(tmp_path / "b", factor=7)
    assert log_of(tmp_path) == ["second", "third"]
    assert first.taken_from == tmp_path / "a"
    assert second.taken_from is None and third.taken_from is None


def test_a_damaged_neighbour_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path / "a")
    (tmp_path / "a" / "02-second" / "value.txt").write_text("16")
    log_of(tmp_path)
    outcomes = run(tmp_path / "b")
    assert log_of(tmp_path) == ["second"]  # the third is that of a: it read the same
    assert [o.taken_from is None for o in outcomes] == [False, True, False]
    assert (tmp_path / "b" / "02-second" / "value.txt").read_text() == "15"


def test_a_kept_step_of_a_strange_kind_is_no_hit(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b")
    for index in tmp_path.glob(".shared/steps/*/entry.json"):
        content = {**json.loads(index.read_text())["content"], "value": {"other": 1}}
        index.write_text(json.dumps({"content": content, "sha256": content_key(content)}))
    log_of(tmp_path)
    assert all(o.taken_from is None for o in run(tmp_path / "c"))
    assert log_of(tmp_path) == ["first", "second", "third"]


def test_a_link_in_a_neighbour_is_not_followed(tmp_path: Path) -> None:
    run(tmp_path / "a")
    shutil.rmtree(tmp_path / ".shared")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a" / "01-first" / "link").symlink_to(tmp_path / "secret")
    first, *_ = run(tmp_path / "b")
    assert first.taken_from is None
    assert not (tmp_path / "b" / "01-first" / "link").exists()


def test_what_is_taken_over_is_not_tied_to_its_origin(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b")
    run(tmp_path / "a", factor=2)  # replaced in a; b keeps its own
    log_of(tmp_path)
    assert all(o.taken_from is None for o in run(tmp_path / "b"))
    assert log_of(tmp_path) == []


def test_of_two_at_the_same_time_one_waits(tmp_path: Path) -> None:
    entered, release, told = threading.Event(), threading.Event(), threading.Event()
    results: dict[str, list[Outcome]] = {}

    def slow(original: Any) -> Any:
        def function(context: StepContext) -> None:
            entered.set()
            assert release.wait(20)
            original(context)

        return function

    def work(name: str) -> None:
        steps = fake.make_steps(tmp_path / "log.txt")
        steps = (replace(steps[0], function=slow(steps[0].function)), *steps[1:])

        def progress(what: str, done: int, total: int) -> None:
            del done, total
            if "waiting for process" in what and "first" in what:
                told.set()

        with open_run(
            tmp_path / name, steps, fake.FACTS, files={}, notes={}, progress=progress,
            reuse=tmp_path,
        ) as opened:  # fmt: skip
            results[name] = opened.execute(("first",))

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    assert entered.wait(20) and told.wait(20)
    release.set()
    for thread in threads:
        thread.join(30)
    assert log_of(tmp_path) == ["first"]
    assert sorted(o.taken_from is None for (o,) in results.values()) == [False, True]


HOLD = """
import sys, time
from pathlib import Path
from bitwright.base.locks import exclusive
from bitwright.base.store import content_key
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)],
        env={**os.environ, "PYTHONPATH": str(Path(bitwright.__file__).parents[1])},
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match=f"in use by process {holder.pid}"), exclusive(lock):
        pass
    owners: list[str] = []

    def waiting(owner: str) -> None:
        owners.append(owner)
        holder.send_signal(signal.SIGKILL)

    with exclusive(lock, wait_s=math.inf, waiting=waiting, remove=True):
        assert owners and str(holder.pid) in owners[0] and str(os.getpid()) in lock.read_text()
    assert not lock.exists()
    holder.wait(10)
    holder.stdout.close()
