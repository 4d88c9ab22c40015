# SPDX-License-Identifier: Apache-2.0
"""The same jobs on a Ray cluster; one is started for this file."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_folder import hostile_folder

from bitwright.base.errors import RecipeError, ToolError
from bitwright.jobs import Job, cluster, run_jobs
from bitwright.jobs.process import Limits
from bitwright.jobs.ray_task import Place, answer_of, request_of, run_task

ROOT = Path(__file__).resolve().parents[2]
CALLS = "tests.explore_calls"
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(240)]


def job(folder: Path, name: str, call: str, **arguments: Any) -> Job:
    return Job(name, f"{CALLS}:{call}", arguments, folder / name)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What modules of strangers write into if they run; see `hostile_folder`."""
    return hostile_folder(tmp_path_factory.mktemp("downloads"))


@pytest.fixture(scope="module")
def ray(harmed: Path) -> Iterator[str]:
    """The address of a cluster with two CPUs, started where modules of strangers lie."""
    if find_spec("ray") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("ray is not installed")
        pytest.skip("ray is not installed (pip install 'bitwright[ray]')")
    old, stood = os.environ.get("PYTHONPATH"), Path.cwd()
    os.chdir(harmed.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    try:
        with cluster._connected("local", cluster.Wish(workers=2)) as started:
            folder = _folder()
            yield started.get_runtime_context().gcs_address
        assert not folder.exists()
    finally:
        os.chdir(stood)
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old


def _folder() -> Path:
    """What holds all that the cluster writes."""
    from ray._private.worker import global_worker

    return Path(global_worker.node.get_session_dir_path()).parents[1]


def test_a_cluster_without_a_password_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reached its port put functions of his own in the place of ours (2.40 to 2.51)."""
    for version in ("2.40.0", "2.51.2", "1.9"):
        with pytest.raises(ToolError, match="asks nobody for a password"):
            cluster._check_private(version)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for version in ("2.52.0", "2.52rc1", "2.60.0", "2.100.1", "3.0.0.dev0"):
        cluster._check_private(version)
    for told in ("disabled", None):
        monkeypatch.delenv("RAY_AUTH_MODE")
        if told:
            monkeypatch.setenv("RAY_AUTH_MODE", told)
        with pytest.raises(ToolError, match="before it could be given a password"):
            cluster._check_private("2.60.0")


@pytest.mark.long
@pytest.mark.usefixtures("ray")
def test_nobody_else_enters_the_folder_of_a_cluster() -> None:
    """Ray's own, in /tmp/ray, had sockets that anybody could put others in the place of."""
    folder = _folder()
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.getuid()
    sockets = {place.name for place in folder.rglob("*") if place.is_socket()}
    assert {"raylet", "plasma_store"} <= sockets


@pytest.mark.long
@pytest.mark.usefixtures("ray")
def test_no_other_machine_reaches_a_cluster() -> None:
    """Its servers end at one request that they do not expect, before they ask for the password."""
    psutil = pytest.importorskip("psutil")
    ports = [
        found.laddr
        for process in psutil.Process().children(recursive=True)
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    ]
    assert len(ports) > 2
    assert {port.ip for port in ports} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_the_folder_of_a_cluster_has_a_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets lie in it, whose names have a length."""
    monkeypatch.setenv("RAY_TMPDIR", "/nowhere/at/all")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "much" / "too" / "long"))
    with cluster._private_folder() as name:
        outer = Path(name).parent
        assert outer.parent == Path("/tmp") and outer.stat().st_mode & 0o777 == 0o700
        (outer / "ray" / "session").mkdir(parents=True)
    assert not outer.exists()
    with pytest.raises(RecipeError), cluster._private_folder() as name:
        raise RecipeError("x", where="y")
    assert not Path(name).parent.exists()


def test_jobs_run_at_the_same_time_and_nothing_is_lost(tmp_path: Path, ray: str) -> None:
    jobs = [
        job(tmp_path, "a", "waits_for_the_other", other="b"),
        job(tmp_path, "b", "waits_for_the_other", other="a"),
        job(tmp_path, "orphan", "loses_its_watcher", times=1),
        job(tmp_path, "killed", "dies", times=1),
        job(tmp_path, "hopeless", "loses_its_watcher", times=9),
        job(tmp_path, "bad", "refused"),
        job(tmp_path, "good", "square", x=4),
    ]
    done = {r.name: r for r in run_jobs(jobs, ray=ray, workers=2, threads=1, retries=1)}
    assert list(done) == [j.name for j in jobs]
    assert done["a"].value == done["b"].value == 1.0
    assert done["orphan"].value == "after 1" and done["orphan"].attempts == 2
    assert done["killed"].value == 1 and done["killed"].attempts == 2
    assert done["good"].value["square"] == 16 and done["good"].value["threads"] == 1
    hopeless, bad = done["hopeless"].failure, done["bad"].failure
    assert hopeless is not None and hopeless.kind == "Killed" and "2 times" in hopeless.message
    assert bad is not None and bad.reason.endswith("holds no image")
    assert not list(tmp_path.glob(".sees-*"))
    again = run_jobs(jobs[:4], ray=ray)
    assert all(r.was_done for r in again)


def test_workers_import_nothing_from_where_the_caller_stands(
    tmp_path: Path, ray: str, harmed: Path
) -> None:
    (done,) = run_jobs([job(tmp_path, "j", "square", x=5)], ray=ray)
    assert done.value["square"] == 25
    assert not harmed.exists(), harmed.read_text()


def test_a_connected_process_is_not_sent_elsewhere(tmp_path: Path, ray: str) -> None:
    with pytest.raises(ToolError, match="connected to"):
        run_jobs([job(tmp_path, "j", "square", x=1)], ray="192.0.2.1:6379")


def test_a_machine_without_the_folder_sends_the_files(tmp_path: Path) -> None:
    asked = job(tmp_path / "here", "j", "square", x=3)
    place = Place(str(tmp_path / "here"), "0123456789abcdef")  # no mark: not seen
    answer = run_task(request_of(asked, Limits(1), place))
    assert not (tmp_path / "here").exists() and not (place.elsewhere / "j").exists()
    result = answer_of(asked, answer)
    assert result.value["square"] == 9 and (asked.folder / "made.txt").read_text() == "3"
    (found,) = run_jobs([asked])
    assert found.was_done
    place.elsewhere.rmdir()
    with pytest.raises(ToolError, match="sent a file"):
        answer_of(asked, (answer[0], {"../x": b""}))


def test_another_version_on_the_machine_is_told(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "0123456789abcdef")
    place.mark.touch()
    request = json.loads(request_of(job(tmp_path, "j", "square", x=3), Limits(1), place))
    text, _ = run_task(json.dumps(request | {"code": "other", "host": "far"}))
    assert "is not the caller's" in json.loads(text)["failure"]["message"]


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("nowhere", RecipeError, "is no address"),
        ("127.0.0.1:1", ToolError, "no Ray cluster answers"),
        ("ray://127.0.0.1:99999999", ToolError, "no Ray cluster answers"),
    ],
)
def test_an_address_that_does_not_answer(address: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cluster._check_answers(address)


def test_something_else_that_listens_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_ANSWER_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ToolError, match="no Ray cluster answers"):
            cluster._check_answers(address)
