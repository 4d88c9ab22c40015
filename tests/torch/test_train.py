# SPDX-License-Identifier: Apache-2.0
"""The training loop: it learns, it repeats, it resumes to the bit, and it says what is wrong."""

from __future__ import annotations

import json
import signal
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.program import Program
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError, RunError
from bitwright.data import Dataset, DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.quantize import Policy, apply, quantizer
from bitwright.train import (
    Augmentation,
    Distillation,
    TrainConfig,
    TrainProgress,
    evaluate,
    fit,
    load_checkpoint,
    load_weights,
    read_metrics,
    save_weights,
)

CONFIG = TrainConfig(
    epochs=4, batch_size=32, lr=5e-3, weight_decay=1e-3, augmentation=Augmentation(rotate=10.0)
)


@pytest.fixture(scope="module")
def digits() -> DataSplits:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def few(digits: DataSplits) -> DataSplits:
    """A quarter of the training images: enough to see differences, quick to train on."""
    return replace(digits, train=digits.train.take(range(0, len(digits.train), 4)))


def fresh(dropout: float = 0.0) -> nn.Module:
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=1)
    return nn.Sequential(model, nn.Dropout(dropout)) if dropout else model


def same(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


def student_weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoint.pt")["learners"][
        "student"
    ]["model"]
    return state


def test_a_short_run_learns_digits(digits: DataSplits, tmp_path: Path) -> None:
    model = fresh()
    config = TrainConfig(epochs=12, batch_size=32, lr=1e-2)
    result = fit(model, digits, config, run_dir=tmp_path)
    measured = evaluate(model, digits.test)
    assert measured.accuracy > 0.95
    assert result.validation_accuracy == evaluate(model, digits.validation).accuracy
    assert result.validation_accuracy == max(e.validation_accuracy for e in result.history)
    assert not model.training
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 13))
    assert read_metrics(tmp_path / "metrics.jsonl") == result.history
    assert list((tmp_path / "tensorboard").glob("events*"))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_resumed_run_ends_with_the_same_weights(
    few: DataSplits, tmp_path: Path, optimizer: str, stop_after: int
) -> None:
    config = CONFIG.model_copy(update={"optimizer": optimizer})
    whole, parts = fresh(dropout=0.3), fresh(dropout=0.3)
    straight = fit(whole, few, config, run_dir=tmp_path / "whole")

    def interrupt(now: TrainProgress) -> None:
        if now.epoch == stop_after + 1 and now.batch > 2:
            raise KeyboardInterrupt

    slow = pytest.MonkeyPatch()
    slow.setattr("bitwright.train.loop._PROGRESS_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, few, config, run_dir=tmp_path / "parts", on_progress=interrupt)
    slow.undo()
    assert not same(whole, parts)
    torch.manual_seed(99)  # what the caller did in between must not matter
    resumed = fit(fresh_one := fresh(dropout=0.3), few, config, run_dir=tmp_path / "parts")
    assert resumed.resumed_from == stop_after
    assert same(whole, fresh_one)
    kept = student_weights(tmp_path / "parts")
    wanted = student_weights(tmp_path / "whole")
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    figures = [(e.epoch, e.lr, e.train_loss, e.validation_loss) for e in straight.history]
    assert figures == [(e.epoch, e.lr, e.train_loss, e.validation_loss) for e in resumed.history]
    assert len(read_metrics(tmp_path / "parts" / "metrics.jsonl")) == config.epochs


@pytest.mark.parametrize("formats", [("int4", "uint4", "uint4"), ("bipolar", "bipolar", "uint1")])
def test_a_quantized_model_resumes_to_the_bit_too(
    few: DataSplits, tmp_path: Path, formats: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> None:
        pytest.fail("a state of the run's own does not say its formats")

    monkeypatch.setattr(quantizer, "_tell_unknown", unknown)
    policy = Policy.uniform(*formats)
    images = torch.from_numpy(few.train.take(range(64)).reals())

    def quantized() -> nn.Module:
        return apply(build_model("mlp", 10, (8, 8, 1)), policy, "train", images)

    whole, resumed = quantized(), quantized()
    fit(whole, few, CONFIG, run_dir=tmp_path / "whole")

    def stop(now: TrainProgress) -> None:
        if now.last is not None and now.last.epoch == 2:  # its checkpoint is written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(quantized(), few, CONFIG, run_dir=tmp_path / "parts", on_progress=stop)
    assert fit(resumed, few, CONFIG, run_dir=tmp_path / "parts").resumed_from == 2
    assert same(whole, resumed)


def test_a_finished_run_is_not_trained_again(few: DataSplits, tmp_path: Path) -> None:
    first, second = fresh(), fresh()
    fit(first, few, CONFIG, run_dir=tmp_path)
    calls: list[TrainProgress] = []
    result = fit(second, few, CONFIG, run_dir=tmp_path, on_progress=calls.append)
    assert same(first, second)
    assert result.resumed_from == CONFIG.epochs and not calls


def test_a_killed_process_resumes_to_the_same_weights(few: DataSplits, tmp_path: Path) -> None:
    """SIGKILL in mid-epoch: nothing can be tidied up, and nothing needs to be."""
    script = textwrap.dedent("""
        import sys
        from dataclasses import replace
        from bitwright.data import load_dataset
        from bitwright.models import build_model
        from bitwright.train import Augmentation, TrainConfig, fit
        digits = load_dataset("digits")
        few = replace(digits, train=digits.train.take(range(0, len(digits.train), 4)))
        fit(build_model("digits_cnn", 10, (8, 8, 1), seed=1), few,
            TrainConfig.model_validate_json(sys.argv[1]), run_dir=sys.argv[2])
    """)
    config = CONFIG.model_copy(update={"epochs": 40})
    checkpoint = tmp_path / "killed" / "checkpoint.pt"
    arguments = [config.model_dump_json(), checkpoint.parent]
    program = Program(script, arguments, tmp_path / "program")
    program.wait_until(checkpoint)
    program.stop(signal.SIGKILL)
    resumed, straight = fresh(), fresh()
    result = fit(resumed, few, config, run_dir=checkpoint.parent)
    assert 1 <= result.resumed_from < config.epochs
    fit(straight, few, config, run_dir=tmp_path / "straight")
    assert same(resumed, straight)


def test_runs_repeat_and_leave_the_callers_generator_alone(few: DataSplits, tmp_path: Path) -> None:
    models = []
    for number in range(2):
        torch.manual_seed(number)
        state = torch.get_rng_state()
        models.append(fresh(dropout=0.2))
        fit(models[-1], few, CONFIG, run_dir=tmp_path / str(number))
        assert torch.equal(torch.get_rng_state(), state)
    assert same(*models)
    other = fresh(dropout=0.2)
    fit(other, few, CONFIG.model_copy(update={"seed": 1}), run_dir=tmp_path / "other")
    assert not same(models[0], other)


def test_the_test_images_are_never_touched(few: DataSplits, tmp_path: Path) -> None:
    class Forbidden:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"training looked at test.{name}")

    splits = replace(few, test=Forbidden())
    fit(fresh(), splits, CONFIG.model_copy(update={"epochs": 1}), run_dir=tmp_path)


def test_best_keeps_the_best_epoch_and_last_the_last(few: DataSplits, tmp_path: Path) -> None:
    wild = TrainConfig(epochs=6, batch_size=32, lr=0.1, optimizer="adam", schedule="constant")
    best, last = fresh(), fresh()
    kept = fit(best, few, wild, run_dir=tmp_path / "best")
    end = fit(last, few, wild.model_copy(update={"keep": "last"}), run_dir=tmp_path / "last")
    assert end.kept_epoch == 6
    assert kept.validation_accuracy == max(e.validation_accuracy for e in kept.history)
    assert evaluate(best, few.validation).accuracy == kept.validation_accuracy
    assert evaluate(last, few.validation).accuracy == end.history[-1].validation_accuracy


def test_no_epochs_train_nothing(few: DataSplits, tmp_path: Path) -> None:
    model = fresh()
    result = fit(model, few, TrainConfig(epochs=0), run_dir=tmp_path)
    assert same(model, fresh()) and result.kept_epoch == 0
    assert result.validation_accuracy == evaluate(model, few.validation).accuracy


def test_progress_runs_from_start_to_end(few: DataSplits, tmp_path: Path, capsys) -> None:
    seen: list[TrainProgress] = []
    fit(fresh(), few, CONFIG, run_dir=tmp_path, on_progress=seen.append)
    shares = [now.done for now in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0
    ends = [now.last.epoch for now in seen if now.batch == now.batches and now.last is not None]
    assert ends[-1] == CONFIG.epochs
    assert capsys.readouterr().out == ""


def test_a_teacher_pulls_the_student_towards_itself(few: DataSplits, tmp_path: Path) -> None:
    teacher = fresh()
    fit(teacher, few, TrainConfig(epochs=10, lr=1e-2, batch_size=32), run_dir=tmp_path / "t")
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    gaps = []
    for alpha in (0.0, 1.0):
        student = build_model({"name": "mlp", "options": {"widths": [64]}}, 10, (8, 8, 1))
        config = TrainConfig(
            epochs=25,
            batch_size=32,
            lr=1e-2,
            keep="last",
            distillation=Distillation(alpha=alpha, temperature=2.0),
        )
        fit(student, few, config, run_dir=tmp_path / str(alpha), teacher=teacher)
        scores = [torch.tensor(evaluate(m, few.train).scores) for m in (student, teacher)]
        shares = [nn.functional.softmax(s / 2, dim=1) for s in scores]
        gaps.append(float((shares[0] - shares[1]).abs().mean()))
    assert gaps[1] < 0.7 * gaps[0]
    assert all(torch.equal(before[n], v) for n, v in teacher.state_dict().items())


def test_distillation_without_a_teacher_is_refused(few: DataSplits, tmp_path: Path) -> None:
    config = TrainConfig(epochs=1, distillation=Distillation())
    with pytest.raises(RecipeError, match="no teacher"):
        fit(fresh(), few, config, run_dir=tmp_path)


def test_a_run_that_diverges_is_stopped(few: DataSplits, tmp_path: Path) -> None:
    config = TrainConfig(epochs=3, lr=100.0, optimizer="sgd", schedule="constant")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
    with pytest.raises(ModelError, match="training diverged") as caught:
        fit(model, few, config, run_dir=tmp_path)
    assert "learning rate" in str(caught.value)


def test_a_device_that_is_not_there_is_refused(few: DataSplits, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(RecipeError, match="device 'cuda' is not usable"):
        fit(fresh(), few, TrainConfig(epochs=1, device="cuda"), run_dir=tmp_path)


def test_a_checkpoint_of_other_images_is_not_resumed(few: DataSplits, tmp_path: Path) -> None:
    fit(fresh(), few, CONFIG, run_dir=tmp_path)
    others = replace(few, train=few.train.take(range(1, len(few.train))))
    with pytest.raises(RunError, match="other training images"):
        fit(fresh(), others, CONFIG, run_dir=tmp_path)


def test_a_checkpoint_of_other_settings_is_not_resumed(few: DataSplits, tmp_path: Path) -> None:
    fit(fresh(), few, CONFIG, run_dir=tmp_path)
    with pytest.raises(RunError, match=r"lr = 0\.005, but now lr = 0\.5"):
        fit(fresh(), few, CONFIG.model_copy(update={"lr": 0.5}), run_dir=tmp_path)
    with pytest.raises(ModelError, match="another model"):
        fit(build_model("mlp", 10, (8, 8, 1)), few, CONFIG, run_dir=tmp_path)
    fit(fresh(), few, CONFIG.model_copy(update={"lr": 0.5, "epochs": 1}), run_dir=tmp_path,
        resume=False)  # fmt: skip


@pytest.mark.parametrize("kind", ["empty", "cut", "flipped", "text", "pickle", "other", "forged"])
def test_a_broken_checkpoint_is_named_and_never_executed(
    few: DataSplits, tmp_path: Path, kind: str
) -> None:
    fit(fresh(), few, CONFIG.model_copy(update={"epochs": 1}), run_dir=tmp_path)
    path = tmp_path / "checkpoint.pt"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"data/0") + 200] ^= 0x20
    proof = tmp_path / "executed"
    contents = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
        "text": b"not a checkpoint",
        "pickle": f"cos\nsystem\n(S'touch {proof}'\ntR.".encode(),
        "other": None,
    }
    if kind == "other":
        torch.save({"weights": torch.zeros(3)}, path)
    elif kind == "forged":
        torch.save({**load_checkpoint(path), "history": [{"epoch": 1}]}, path)
    else:
        path.write_bytes(contents[kind])
    with pytest.raises(DataError, match=r"checkpoint|has no|unexpected") as caught:
        fit(fresh(), few, CONFIG.model_copy(update={"epochs": 1}), run_dir=tmp_path)
    assert caught.value.where == str(path) and caught.value.hint is not None
    assert not proof.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": float("inf")}, {"epoch": -1}, {"epoch": 0}, {"best": {"epoch": "2"}},
        {"best": {"goodness": "0.9"}}, {"best": {"loss": torch.zeros(2)}},
        {"best": {"state": torch.zeros(2)}}, {"best": {"state": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_checkpoint_says_is_of_its_kind(
    few: DataSplits, tmp_path: Path, change: dict[str, Any]
) -> None:
    config = CONFIG.model_copy(update={"epochs": 1})
    fit(fresh(), few, config, run_dir=tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = load_checkpoint(path)
    inner = {"best": content["best"] | change["best"]} if "best" in change else change
    torch.save({**content, **inner}, path)
    with pytest.raises(DataError, match=r"holds something unexpected: .* is ") as caught:
        fit(fresh(), few, config, run_dir=tmp_path)
    assert caught.value.where == str(path)


def test_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    first, second = fresh(), build_model("digits_cnn", 10, (8, 8, 1), seed=2)
    save_weights(tmp_path / "w.pt", first)
    load_weights(tmp_path / "w.pt", second)
    assert same(first, second)
    with pytest.raises(ModelError, match="another model"):
        load_weights(tmp_path / "w.pt", build_model("mlp", 10, (8, 8, 1)))
    with pytest.raises(DataError, match="no such checkpoint"):
        load_weights(tmp_path / "absent.pt", first)


def test_a_full_disk_keeps_the_last_checkpoint(
    few: DataSplits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitwright.train import checkpoint as module

    real, count = module.atomic_write, 0

    def full(path: Path, body: bytes | str) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")
        real(path, body)

    monkeypatch.setattr(module, "atomic_write", full)
    with pytest.raises(DataError, match="No space left on device") as caught:
        fit(fresh(), few, CONFIG, run_dir=tmp_path)
    assert "finished epochs are kept" in str(caught.value)
    monkeypatch.undo()
    model, straight = fresh(), fresh()
    assert fit(model, few, CONFIG, run_dir=tmp_path).resumed_from == 2
    fit(straight, few, CONFIG, run_dir=tmp_path / "straight")
    assert same(model, straight)


def test_evaluation_counts() -> None:
    """A model that answers with the brightest of three pixels, on images with known pixels."""
    images = np.zeros((6, 1, 3, 1), dtype=np.uint8)
    for number, bright in enumerate((0, 1, 2, 2, 1, 0)):
        images[number, 0, bright, 0] = 9
    labels = np.array([0, 1, 2, 0, 0, 1])
    data = Dataset("d", images, labels, ("a", "b", "c"), 1 / 9, np.arange(6))
    measured = evaluate(nn.Flatten(), data, batch_size=4)
    assert measured.predictions.tolist() == [0, 1, 2, 2, 1, 0]
    assert measured.accuracy == 0.5
    assert measured.confusion.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 1]]
    assert measured.scores.shape == (6, 3) and measured.scores.max() == 1.0
    with pytest.raises(DataError, match="holds no image"):
        evaluate(nn.Flatten(), data.take([]))


def test_threads_are_set_for_the_run_alone(few: DataSplits, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    config = CONFIG.model_copy(update={"epochs": 1, "threads": before + 1})
    fit(
        fresh(),
        few,
        config,
        run_dir=tmp_path,
        on_progress=lambda _: seen.append(torch.get_num_threads()),
    )
    assert set(seen) == {before + 1} and torch.get_num_threads() == before


def test_without_validation_images_the_last_epoch_is_kept_and_said(
    few: DataSplits, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    none = replace(few, validation=few.validation.take([]))
    config = TrainConfig(epochs=2, batch_size=32, lr=0.01, threads=1)
    found = fit(fresh(), none, config, run_dir=tmp_path / "run")
    assert "the weights of the last one are kept" in caplog.text
    assert found.kept_epoch == 2 and found.validation_accuracy is None
    assert [entry.validation_loss for entry in found.history] == [None, None]
    again = fit(fresh(), none, config, run_dir=tmp_path / "run")
    assert again.resumed_from == 2 and again.kept_epoch == 2
    plateau = TrainConfig(epochs=2, batch_size=32, lr=0.01, schedule="plateau")
    with pytest.raises(RecipeError, match=r"(?s)plateau.*data\.validation above 0"):
        fit(fresh(), none, plateau, run_dir=tmp_path / "other")
