# SPDX-License-Identifier: Apache-2.0
"""Jobs in processes of their own: none is lost, none is done twice, a bad one stops no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bitwright
from bitwright.base.errors import RecipeError
from bitwright.base.processors import available_threads
from bitwright.jobs import Job, JobResult, forks, run_jobs, runner
from bitwright.jobs.process import environment

ROOT = Path(__file__).resolve().parents[2]
CALLS = "tests.explore_calls"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def job(folder: Path, name: str, call: str, **arguments: Any) -> Job:
    return Job(name, f"{CALLS}:{call}", arguments, folder / name)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_in_order_and_a_second_call_does_nothing(tmp_path: Path) -> None:
    jobs = [job(tmp_path, f"j{x}", "square", x=x) for x in (3, 1, 2)]
    told: list[tuple[int, int]] = []
    first = run_jobs(jobs, workers=2, on_progress=lambda _, done, total: told.append((done, total)))
    assert [r.value["square"] for r in first] == [9, 1, 4]
    assert len({r.value["process"] for r in first} | {os.getpid()}) == 4  # each its own
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert all(r.threads == r.value["threads"] == max(1, available_threads() // 2) for r in first)
    second = run_jobs(jobs)
    assert all(r.was_done and r.attempts == 0 for r in second)
    assert [r.value for r in second] == [r.value for r in first]


def test_other_arguments_or_another_version_are_another_job(tmp_path: Path) -> None:
    old = job(tmp_path, "j", "square", x=2)
    run_jobs([old])
    for changed, value in (
        (Job("j", old.call, {"x": 3}, old.folder), 9),
        (Job("j", old.call, {"x": 3}, old.folder, "2"), 9),
    ):
        (result,) = run_jobs([changed])
        assert not result.was_done and result.value["square"] == value
    (tmp_path / "j" / "result.json").write_text("{")  # half of a file is no result
    (result,) = run_jobs([changed])
    assert not result.was_done and result.value["square"] == 9


def test_a_failing_job_says_why_and_stops_no_other(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "bad", "refused"),
        job(tmp_path, "bug", "broken", zero=0),
        job(tmp_path, "gone", "no_such_function"),
        job(tmp_path, "slow", "sleeps", seconds=60),
        job(tmp_path, "good", "square", x=2),
    ]
    bad, bug, gone, slow, good = run_jobs(jobs, workers=2, timeout_s=3, threads=1)
    assert good.value["square"] == 4
    assert bad.failure is not None and bad.failure.kind == "DataError"
    assert bad.failure.reason.endswith("holds no image") and bad.failure.hint == "fill it"
    assert bug.failure is not None and "ZeroDivisionError" in bug.failure.message
    assert "Traceback" in bug.log.read_text()
    assert gone.failure is not None and "no_such_function" in gone.failure.message
    assert slow.failure is not None and "within 3 s" in slow.failure.message
    assert not alive(int((tmp_path / "slow" / "pid").read_text()))
    assert all(r.value is None and r.attempts == 1 for r in (bad, bug, gone, slow))


def test_a_killed_job_is_redone_and_at_last_given_up(tmp_path: Path) -> None:
    once, always = run_jobs(
        [job(tmp_path, "once", "dies", times=1), job(tmp_path, "always", "dies", times=9)],
        workers=2,
        retries=1,
    )
    assert once.value == 1 and once.attempts == 2
    assert always.failure is not None and always.attempts == 2
    assert "killed 2 times" in always.failure.message and "memory" in always.failure.message


def test_workers_run_at_the_same_time(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "a", "waits_for_the_other", other="b"),
        job(tmp_path, "b", "waits_for_the_other", other="a"),
    ]
    assert [r.value for r in run_jobs(jobs, workers=2)] == [1.0, 1.0]


def test_each_job_has_a_log_and_a_session_of_its_own(tmp_path: Path) -> None:
    found = run_jobs([job(tmp_path, name, "says", word=name) for name in "abc"], workers=2)
    for result in found:
        assert result.log.read_text().splitlines()[-1] == f"said by {result.name}"
        assert result.value[0] == result.value[1] == result.value[2]


def test_what_is_lost_with_the_server_is_done_again(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "one", "loses_the_server"),
        *(job(tmp_path, f"s{x}", "square", x=x) for x in range(3)),
    ]
    found = run_jobs(jobs, workers=1)
    assert [r.attempts for r in found] == [2, 1, 1, 1] and all(r.failure is None for r in found)
    assert found[0].value != os.getpid()


@pytest.mark.parametrize("forked", [False, True])
def test_a_job_that_somebody_has_changed_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    """What it says names a function: whoever may exchange the file would run code."""
    honest = Job.prepare

    def exchanged(self: Job, threads: int) -> str:
        asked = honest(self, threads)
        place = self.folder / "job.json"
        place.write_text(place.read_text().replace('"x": 3', '"x": 4'))
        return asked

    monkeypatch.setattr(Job, "prepare", exchanged)
    monkeypatch.setattr(forks, "AVAILABLE", forked and forks.AVAILABLE)
    (found,) = run_jobs([job(tmp_path, "one", "square", x=3)], workers=1)
    assert found.failure is not None and "was changed since it was written" in found.failure.reason


@pytest.mark.skipif(not forks.AVAILABLE, reason="jobs are new processes here")
def test_a_job_that_was_given_up_before_it_began_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server still imports, which then does other jobs."""
    monkeypatch.setattr(forks, "_GRACE_S", 0.1)
    module = f"{CALLS}_slowly"
    one, other = Job("one", f"{module}:sleeps", {"seconds": 60}, tmp_path / "one"), tmp_path / "two"
    two = Job("two", f"{module}:sleeps", {"seconds": 0}, other)
    asked = [each.prepare(1) for each in (one, two)]
    server = forks.Forks([module], environment(1))

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.run(one.folder, asked[0], stop)
    assert server.run(two.folder, asked[1], lambda _: None).returncode == 0
    assert two.finished() is not None
    pid = one.folder / "pid"
    assert not pid.exists() or not alive(int(pid.read_text()))
    assert one.finished() is None
    server.close()


@pytest.mark.skipif(not forks.AVAILABLE, reason="jobs are new processes here")
def test_jobs_need_not_import_what_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(tmp_path, f"j{x}", "square", x=x) for x in range(4)]
    run_jobs(jobs, workers=2)
    logs = [result.log.read_text() for result in run_jobs(jobs)]
    assert not any("an import says this" in log for log in logs)
    monkeypatch.setattr(runner, "AVAILABLE", False)  # as on other systems: the same, but slower
    (alone,) = run_jobs([job(tmp_path, "alone", "square", x=5)], threads=1)
    assert alone.value["square"] == 25 and alone.value["threads"] == 1
    assert "an import says this" in alone.log.read_text()


def test_whatever_an_import_does_the_jobs_are_done(tmp_path: Path) -> None:
    module = f"{CALLS}_slowly"
    jobs = [Job(f"j{x}", f"{module}:square", {"x": x}, tmp_path / f"j{x}") for x in range(3)]
    found = run_jobs(jobs, workers=2)
    assert [r.value["square"] for r in found if r.value] == [0, 1, 4]
    assert all(r.attempts == 1 for r in found)


def test_an_import_that_ends_the_process_is_told(tmp_path: Path) -> None:
    call = f"{CALLS}_refusing:square"
    (refused,) = run_jobs([Job("j", call, {"x": 1}, tmp_path / "j")])
    assert refused.failure is not None and "no licence" in refused.failure.message
    assert refused.attempts == 1


def test_one_folder_by_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    first = job(tmp_path, "a", "square", x=1)
    second = Job("b", first.call, {"x": 2}, tmp_path / "x" / ".." / "a")
    with pytest.raises(RecipeError, match="two jobs have one folder"):
        run_jobs([first, second])


FORKING = """
import os, sys, time, threading
from pathlib import Path
from bitwright.jobs import Job, run_jobs
folder, call = Path(sys.argv[1]), "tests.explore_calls:sleeps"
def fork():
    while not (folder / "a" / "pid").exists():
        time.sleep(0.02)
    if not os.fork():
        time.sleep(8)
        os._exit(0)
    os.kill(os.getpid(), 9)
threading.Thread(target=fork).start()
run_jobs([Job("a", call, {"seconds": 60}, folder / "a")], workers=1)
"""


def test_no_job_outlives_a_caller_that_has_forked(tmp_path: Path) -> None:
    """What it has forked holds its handles, too."""
    path = os.pathsep.join([str(Path(bitwright.__file__).parents[1]), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", FORKING, tmp_path], env=env, timeout=60, check=False)
    pid, deadline = int((tmp_path / "a" / "pid").read_text()), time.monotonic() + 6
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


@pytest.mark.parametrize("handles", ["2", "1, 2", "0, 1, 2"])
def test_a_caller_without_standard_files(handles: str, tmp_path: Path) -> None:
    code = SQUARES.replace("HANDLES", handles)
    path = os.pathsep.join([str(Path(bitwright.__file__).parents[1]), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code, tmp_path], env=env, timeout=60, check=True)
    assert (tmp_path / "a" / "result.json").is_file()


SQUARES = """
import os, sys
from pathlib import Path
from bitwright.jobs import Job, run_jobs
for handle in (HANDLES,):
    os.close(handle)
folder = Path(sys.argv[1])
(found,) = run_jobs([Job("a", "tests.explore_calls:square", {"x": 3}, folder / "a")])
os._exit(0 if found.value else 1)
"""
SCRIPT = """
import sys
from pathlib import Path
from bitwright.jobs import Job, run_jobs
folder, call = Path(sys.argv[1]), "tests.explore_calls:sleeps"
run_jobs([Job(name, call, {"seconds": 60}, folder / name) for name in "ab"], workers=2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_caller(tmp_path: Path, number: signal.Signals) -> None:
    path = os.pathsep.join([str(Path(bitwright.__file__).parents[1]), str(ROOT)])
    caller = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    files = [tmp_path / name / "pid" for name in "ab"]
    deadline = time.monotonic() + 30
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline and caller.poll() is None
        time.sleep(0.05)
    caller.send_signal(number)
    assert caller.wait(timeout=15) != 0
    children = [int(file.read_text()) for file in files]
    deadline = time.monotonic() + 10
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline, "a job goes on without its caller"
        time.sleep(0.05)


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    results: list[JobResult] = []
    run_jobs([job(tmp_path, "j", "square", x=5)], threads=1, on_result=results.append)
    record = json.loads((tmp_path / "j" / "result.json").read_text())
    assert record["schema"] == 1 and record["arguments"] == {"x": 5} and record["threads"] == 1
    assert json.loads(json.dumps(results[0].to_json()))["value"]["square"] == 25


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    good = job(tmp_path, "j", "square", x=1)
    for options in ({"workers": 0}, {"threads": 0}, {"retries": -1}, {"timeout_s": 0.0}):
        with pytest.raises(RecipeError):
            run_jobs([good], **options)
    with pytest.raises(RecipeError, match="two jobs have one name"):
        run_jobs([good, Job("j", good.call, {}, tmp_path / "k")])
    with pytest.raises(RecipeError, match="two jobs have one folder"):
        run_jobs([good, Job("k", good.call, {}, good.folder)])
    assert run_jobs([]) == ()
