# SPDX-License-Identifier: Apache-2.0
"""Whether every stage of the DPU's flow gives the same integers: torch, executor, emulator, RTL.

    python benchmarks/dpu_equality.py [densenet21 ...] [--engine e2048] [--images 10000]
        [--simulate N] [--emulate N] [--rtl N] [--workers W]

Modified DenseNets in the preset `dpu` on the test images of CIFAR-10. The executor runs
``--images`` of them; its scores (sums of 32 bits, all classes) and labels are what the others are
compared with: the converted torch model in evaluation (as many), the same as it is trained
(quantizers that round in float, torch's own convolutions: ``--simulate``), the compiled program in
the engine's emulator (``--emulate``) and on its RTL in Verilator (``--rtl``; begin and end of every
instruction are compared with the timing model, too). ``densenet21-small`` has the trained weights
that come with the package; the others have fresh ones, and batch norms of statistics of training
images, which change neither program nor cycles. Writes docs/results/dpu_equality.json and .md; a
stage that has compared images of the same graph and program already goes on behind them.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from results import command, keep, kept, machine, table
from torch import Tensor, nn

from bitwright.data.dataset import Dataset
from bitwright.data.load import load_dataset
from bitwright.engine import ENGINES, EngineConfig
from bitwright.engine.compiler import compile_graph
from bitwright.engine.image import EngineImage
from bitwright.engine.timing import simulate
from bitwright.ir import IntArray
from bitwright.ir.executor import Executor
from bitwright.models import build_model
from bitwright.models.factory import load_pretrained
from bitwright.quantize import IntegerModel, Policy, QuantizedModel, integerize
from bitwright.quantize.ptq.post_training import post_training_quantize
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim import MemoryModel, ProgramJob, Simulator, StallPattern, run_program
from bitwright.sim.engines import check_cycles

NAME = "dpu_equality"
TRAINED = "densenet21-small"
NETWORKS = (TRAINED, "densenet21", "densenet37", "densenet63")
#: Of each engine, the memory that the RTL's test bench plays; as in benchmarks/engine.py.
MEMORIES = {
    "e256": MemoryModel(latency=20, beats_per_cycle=0.45),
    "e2048": MemoryModel(latency=60),
}
_CALIBRATION, _BATCH, _CHUNK = 256, 100, 10
_SHAPE = (3, 32, 32)
_POLICY = {"preset": "dpu"}
Feeds = dict[str, IntArray]
Answers = dict[str, IntArray]


@dataclass(frozen=True)
class Subject:
    """One network: as torch has it, as integers, as a program; and the test images."""

    model: QuantizedModel
    integers: IntegerModel
    image: EngineImage
    executor: Executor
    test: Dataset

    def reals(self, start: int, end: int) -> Tensor:
        return torch.from_numpy(self.test.take(np.arange(start, end)).reals())

    def levels(self, start: int, end: int) -> Feeds:
        levels = self.integers.input_levels(self.reals(start, end))
        return {"x": levels.permute(0, 2, 3, 1).long().numpy()}

    def wanted(self, start: int, end: int) -> Answers:
        return self.executor.run(self.levels(start, end))


def float_network(name: str, images: Tensor) -> nn.Module:
    """A network in float; fresh ones get batch norms of these images' statistics."""
    if name == TRAINED:
        return load_pretrained("cifar-densenet21-small")
    torch.manual_seed(0)
    model = build_model({"name": name, "options": {"form": "convolution_first"}}, 10, (32, 32, 3))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain average
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    with torch.no_grad():
        model.train()(images)
    return model.eval()


def subject(name: str, config: EngineConfig, train: Dataset, test: Dataset) -> Subject:
    images = torch.from_numpy(train.take(np.arange(_CALIBRATION)).reals())
    policy = Policy.from_dict(_POLICY)
    network = float_network(name, images)
    model, _ = post_training_quantize(network, policy, images, policy.methods)
    integers = integerize(model.eval(), policy, _SHAPE, name)
    image = compile_graph(integers.graph, config)
    return Subject(model, integers, image, Executor(integers.graph, threads=1), test)


def batches(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    return ((at, min(at + size, end)) for at in range(start, end, size))


def differences(got: Answers, wanted: Answers) -> int:
    """Values that differ; an output that is missing, or of another shape, is an error."""
    assert got.keys() == wanted.keys()
    assert all(got[edge].shape == wanted[edge].shape for edge in wanted)
    return sum(int((got[edge] != wanted[edge]).sum()) for edge in wanted)


def torch_differences(
    found: Subject, start: int, wanted: Answers, run: Callable[[Tensor], Tensor]
) -> int:
    """Scores of a torch model for images from ``start`` on that are not the wanted ones."""
    with torch.no_grad():
        real = run(found.reals(start, start + len(wanted["scores"]))).double()
    scores = torch.round(real / found.integers.score_scale).long().numpy()
    return differences({"scores": scores}, {"scores": wanted["scores"]})


_IMAGE: list[EngineImage] = []


def _open(data: bytes) -> None:
    _IMAGE[:] = [EngineImage.from_bytes(data)]


def _emulated(feeds: Feeds) -> Answers:
    return _IMAGE[0].run(feeds)


def emulate(found: Subject, start: int, end: int, workers: int) -> Iterator[tuple[int, int]]:
    """(images, values that differ) of each chunk, in order."""
    places = list(batches(start, end, _CHUNK))
    context = multiprocessing.get_context("spawn")
    data = found.image.to_bytes()
    with ProcessPoolExecutor(workers, context, _open, (data,)) as pool:
        answers = pool.map(_emulated, (found.levels(*place) for place in places))
        for (low, high), got in zip(places, answers, strict=True):
            yield high - low, differences(got, found.wanted(low, high))


def on_rtl(found: Subject, engine: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(images, values that differ, cycles of the first) of each chunk on the simulated RTL.

    Raises:
        MismatchError: an instruction begins or ends in another cycle than predicted.
    """
    image, config = found.image, found.image.config
    stalls = StallPattern("", memory=MEMORIES[engine])
    size = image.words * config.word_bytes
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(config, Path(folder) / "rtl")
        simulator = Simulator.build(Path(folder) / "rtl")
        for low, high in batches(start, end, _CHUNK):
            feeds = found.levels(low, high)["x"]
            writes = [image.writes({"x": levels}) for levels in feeds]
            runs = run_program(simulator, ProgramJob(image.data.tobytes(), size, writes), stalls)
            timing = simulate(
                image.program, config, stalls.memory, size, runs=len(runs), seed=stalls.seed
            )
            for number, run in enumerate(runs):
                check_cycles(image.program, run, timing, number)
            answers = [image.read(run.memory) for run in runs]
            got = {edge: np.stack([one[edge] for one in answers]) for edge in answers[0]}
            yield high - low, differences(got, found.wanted(low, high)), runs[0].cycles


def digest(found: Subject) -> str:
    """Of graph, program and constants: what is compared depends on nothing else."""
    return hashlib.sha256(found.image.to_bytes()).hexdigest()[:16]


def whole(found: Subject, images: int) -> dict[str, Any]:
    """What the executor gives for the images, and whether torch gives the same in evaluation."""
    labels: list[NDArray[np.int64]] = []
    differ = 0
    for low, high in batches(0, images, _BATCH):
        wanted = found.wanted(low, high)
        labels.append(wanted["label"].ravel())
        differ += torch_differences(found, low, wanted, found.model)
    right = np.concatenate(labels) == found.test.labels[:images]
    return {
        "images": images,
        "accuracy": float(right.mean()),
        "evaluated": {"images": images, "differ": differ},
    }


def measure(
    name: str, engine: str, asked: argparse.Namespace, data: tuple[Dataset, Dataset]
) -> None:
    found = subject(name, ENGINES[engine], *data)
    figures = kept(NAME)
    key = f"{name}@{engine}"
    row = figures.get("rows", {}).get(key, {})
    if row.get("digest") != digest(found):
        row = {
            "digest": digest(found), "instructions": len(found.image.program),
            "methods": list(Policy.from_dict(_POLICY).methods),
        }  # fmt: skip
    if row.get("images", 0) < asked.images:
        row |= whole(found, asked.images)

    def write() -> None:
        now = kept(NAME)
        rows = now.get("rows", {}) | {key: row}
        keep(NAME, {"machine": machine("torch", "numpy"), "rows": rows}, page)

    def note(stage: str, images: int, differ: int, **more: Any) -> None:
        old = row.get(stage, {"images": 0, "differ": 0})
        row[stage] = {
            "images": old["images"] + images, "differ": old["differ"] + differ, **more
        }  # fmt: skip
        row["command"] = command()
        write()
        print(f"{key} {stage}: {row[stage]} ({time.process_time():.0f} s)", flush=True)

    def done(stage: str) -> int:
        return int(row.get(stage, {}).get("images", 0))

    write()
    for low, high in batches(done("simulated"), asked.simulate, 10 * _BATCH):
        differ = [
            torch_differences(found, at, found.wanted(at, end), found.model.simulate)
            for at, end in batches(low, high, _BATCH)
        ]
        note("simulated", high - low, sum(differ))
    for images, values, cycles in on_rtl(found, engine, done("rtl"), asked.rtl):
        note("rtl", images, values, cycles=cycles)
    for images, values in emulate(found, done("emulated"), asked.emulate, asked.workers):
        note("emulated", images, values)


def page(figures: dict[str, Any]) -> str:
    def stage(row: dict[str, Any], name: str) -> str:
        if name not in row:
            return "not run"
        told = row[name]
        return f"{told['images']:,}, {told['differ']} differ"

    rows = [
        [
            *key.split("@"), "yes" if key.startswith(TRAINED) else "no", ", ".join(row["methods"]),
            f"{row['instructions']:,}",
            f"{row['images']:,}", f"{100 * row['accuracy']:.2f} %", stage(row, "evaluated"),
            stage(row, "simulated"), stage(row, "emulated"), stage(row, "rtl"),
            f"{row['rtl']['cycles']:,}" if "rtl" in row else "",
        ]
        for key, row in figures["rows"].items()
    ]  # fmt: skip
    heads = (
        "network", "engine", "trained", "methods", "instructions", "executor: images", "right",
        "torch, evaluation", "torch, training's view", "emulator", "RTL", "cycles",
    )  # fmt: skip
    engines = ", ".join(f"{name} {ENGINES[name].name}" for name in MEMORIES)
    lines = [
        "# The DPU's flow: one network, the same integers at every stage",
        "",
        "`python benchmarks/dpu_equality.py` (docstring: what is compared). Modified DenseNets in "
        "the preset `dpu` on the test images of CIFAR-10 (a copy whose files are JPEG), all scores "
        "(sums of 32 bits) and the label of every image, compared by `==` with the executor's. "
        "Columns: images, and how many of their values differ. *Training's view*: quantizers that "
        "round in float32 and torch's own convolutions; it shares nothing with the integer graph "
        "but weights and scales. *Emulator*, *RTL*: the compiled program, on RTL with begin and "
        "end of every instruction beside the timing model (one that differs would end the run). "
        f"Engines: {engines}; e2048 is of the size of one B4096. `trained`: no means fresh weights "
        "and batch norms of statistics of training images, so what is right there says nothing. "
        "*Methods*: those of the preset when the row was measured; a later run with others begins "
        "anew.",
        "",
        *table(heads, rows),
        "",
        f"{figures['machine']}. What is compared does not depend on the machine; scales that "
        "calibration finds may.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--engine", default="e2048", choices=[*MEMORIES])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--simulate", type=int, default=10_000)
    parser.add_argument("--emulate", type=int, default=10_000)
    parser.add_argument("--rtl", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    unknown = sorted({*asked.networks} - {*NETWORKS})
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    torch.set_num_threads(1)
    splits = load_dataset("cifar10")
    for name in asked.networks:
        measure(name, asked.engine, asked, (splits.train, splits.test))


if __name__ == "__main__":
    main()
