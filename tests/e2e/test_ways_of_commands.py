# SPDX-License-Identifier: Apache-2.0
"""Every command that writes where one says: not over a link of another user's to one's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hw_networks import Net

from bitwright.cli.entry import run as cli
from bitwright.ir import save_graph

COMMANDS = (
    "init {}/r.yaml --model mlp --data digits",
    "board serve {here} --host {}",
    "forecast digits --images 100 --out {}",
    "dpu compile {here}/graph.bwg --out {}",
    "kpi {here} --device none --out {}",
    "bnn train bnn-1h --out {}",
    "bnn shuffle --out {}",
    "bnn watch {here} {here} --queue {}",
    "skynet search digits --target-ms 1 --out {}",
    "study digits --out {}",
    "sweep digits --over seeds=2 --out {}",
    "search digits --budget size=60kB --out {}",
    "bench {here} --out {}",
    "formats compare digits --out {}",
    "import {here}/x.onnx --out {}/x",
    "split {here}/graph.bwg --out {}",
    "database {}/x.db --train {here}/graph.bwg --test {here}/graph.bwg",
    "train digits --run-dir {}/run",
    "export {here}/graph.bwg --out {}/x.onnx",
    "export {here}/graph.bwg --format artifact --out {}/x",
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_written_over_the_link(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seven of them asked nobody; files of the victim's were replaced where the link led."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUDO_UID", raising=False)
    here, victim, link = tmp_path / "here", tmp_path / "victim", tmp_path / "his" / "link"
    for folder in (here, victim, link.parent):
        folder.mkdir()
    os.chown(link.parent, 54_321, -1)
    link.symlink_to(victim)
    os.chown(link, 54_321, -1, follow_symlinks=False)
    save_graph(
        Net((4,), "uint4", "int4", 0, "net").dense(4, name="scores").finish(), here / "graph.bwg"
    )
    if command.startswith("import"):
        assert cli(["export", str(here / "graph.bwg"), "--out", str(here / "x.onnx")]) == 0
    words = [word.format(link, here=here) for word in command.split()]
    assert cli(words) != 0
    assert "is another user's" in capsys.readouterr().err
    assert not any(victim.iterdir()) and link.is_symlink()
