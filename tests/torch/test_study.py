# SPDX-License-Identifier: Apache-2.0
"""Self-study, co-study, tutor-study: roles, resuming after a kill, what is refused."""

from __future__ import annotations

import copy
import signal
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from tests.program import Program
from torch import nn
from torch.nn import functional

from bitwright.base.errors import ModelError, RecipeError
from bitwright.data import DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.train import Phases, TrainConfig, fit, study

_COMMON = {"epochs": 2, "batch_size": 32, "lr": 3e-3, "seed": 1}
PHASES = Phases.model_validate(
    {
        "self_study": {**_COMMON, "optimizer": "sgd", "lr": 0.05},
        "co_study": {**_COMMON, "peer": {"lr": 1e-3}, "distillation": {"alpha": 0.7}},
        "tutor_study": {**_COMMON, "distillation": {"alpha": 0.5, "temperature": 8}},
    }
)


@pytest.fixture(scope="module")
def few() -> DataSplits:
    splits = load_dataset("digits")
    return replace(splits, train=splits.train.take(range(200)))


def net(width: int, seed: int) -> nn.Module:
    spec = {"name": "mlp", "options": {"widths": [width]}}
    return build_model(spec, 10, (8, 8, 1), seed=seed)


def teacher_net() -> nn.Module:
    return net(48, seed=7)


def student_net(splits: DataSplits) -> nn.Module:
    images = torch.from_numpy(splits.train.take(range(64)).reals())
    model = net(16, seed=8)
    return apply(model, Policy.uniform("int4", "uint4", "uint4"), "train", images)


def same(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


def test_the_phases_run_in_order_and_only_co_study_changes_the_teacher(
    few: DataSplits, tmp_path: Path
) -> None:
    student, teacher = student_net(few), teacher_net()
    begin = copy.deepcopy(teacher)
    results = study(student, few, PHASES, run_dir=tmp_path, teacher=teacher)
    assert [entry.name for entry in results] == ["self_study", "co_study", "tutor_study"]
    after_co_study = copy.deepcopy(teacher)
    assert not same(begin, teacher)
    only = Phases(tutor_study=PHASES.tutor_study)
    study(student, few, only, run_dir=tmp_path / "again", teacher=teacher)
    assert same(after_co_study, teacher)
    assert not teacher.training
    assert not student.training


def test_co_study_is_one_update_of_both_by_the_published_losses(
    few: DataSplits, tmp_path: Path
) -> None:
    """Against an independent spelling of the two losses with plain torch."""
    config = TrainConfig(
        epochs=1, batch_size=200, lr=0.1, optimizer="sgd", momentum=0.0, schedule="constant",
        keep="last",
        distillation={"alpha": 0.7, "temperature": 5.0},
        peer={"lr": 0.2, "distillation": {"alpha": 0.4, "temperature": 3.0}},
    )  # fmt: skip
    student, teacher = teacher_net(), net(20, seed=9)
    pair = copy.deepcopy(student).train(), copy.deepcopy(teacher).train()
    fit(student, few, config, run_dir=tmp_path, peer=teacher)

    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    reals = torch.from_numpy(few.train.take(order.numpy()).reals())
    labels = torch.from_numpy(few.train.labels[order.numpy()]).long()
    scores = [net(reals) for net in pair]

    def loss(own: torch.Tensor, other: torch.Tensor, alpha: float, t: float) -> torch.Tensor:
        p, q = functional.softmax(other.detach() / t, 1), functional.log_softmax(own / t, 1)
        soft = (p * (p.log() - q)).sum(1).mean()
        return alpha * t * t * soft + (1 - alpha) * functional.cross_entropy(own, labels)

    loss(scores[0], scores[1], 0.7, 5.0).backward()
    loss(scores[1], scores[0], 0.4, 3.0).backward()
    for begin, lr, found in zip(pair, (0.1, 0.2), (student, teacher), strict=True):
        after = dict(found.named_parameters())
        for name, parameter in begin.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(after[name], parameter - lr * parameter.grad)


@pytest.mark.parametrize("phase", ["self_study", "co_study", "tutor_study"])
def test_a_study_killed_in_any_phase_goes_on_to_the_same_weights(
    few: DataSplits, tmp_path: Path, phase: str
) -> None:
    whole, teacher = student_net(few), teacher_net()
    study(whole, few, PHASES, run_dir=tmp_path / "whole", teacher=teacher)
    script = """
        import sys
        from pathlib import Path
        sys.path.insert(0, {tests!r})
        import test_study as t
        from bitwright.data import load_dataset
        from dataclasses import replace
        splits = load_dataset("digits")
        few = replace(splits, train=splits.train.take(range(200)))
        folder, phase = Path(sys.argv[1]), sys.argv[2]
        def told(now):
            if now.epoch == 2 and (folder / phase).is_dir():
                (folder / "here").touch()
                import time; time.sleep(60)
        t.study(t.student_net(few), few, t.PHASES, run_dir=folder, teacher=t.teacher_net(),
                on_progress=told)
    """
    code = textwrap.dedent(script).format(tests=str(Path(__file__).parent))
    folder = tmp_path / "parts"
    folder.mkdir()
    program = Program(code, [folder, phase], tmp_path / "program")
    program.wait_until(folder / "here")
    program.stop(signal.SIGKILL)
    again, tutor = student_net(few), teacher_net()
    study(again, few, PHASES, run_dir=folder, teacher=tutor)
    assert same(whole, again)
    assert same(teacher, tutor)


def test_a_frozen_peer_is_refused(few: DataSplits, tmp_path: Path) -> None:
    peer = teacher_net().requires_grad_(False)
    assert PHASES.co_study is not None
    with pytest.raises(ModelError, match="is frozen"):
        fit(student_net(few), few, PHASES.co_study, run_dir=tmp_path, peer=peer)


def test_a_phase_with_a_teacher_needs_one(few: DataSplits, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="need a teacher"):
        study(student_net(few), few, PHASES, run_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "names no phase"),
        ({"self_study": {"distillation": {}}}, "self_study has no teacher"),
        ({"tutor_study": {"peer": {}}}, "peer belongs to co_study"),
        ({"co_study": {"distillation": {"alpha": 1.2}}}, "less than or equal to 1"),
        ({"co_study": {"distillation": {"temperature": 0}}}, "greater than 0"),
        ({"study": {}}, "Extra inputs"),
    ],
)
def test_phases_that_make_no_sense_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Phases.model_validate(fields)
