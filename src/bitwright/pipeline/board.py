# SPDX-License-Identifier: Apache-2.0
"""`bitwright board`: a design on a board, or on a simulated one, against its integer graph."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bitwright.base.errors import GraphError, ProgramError, RunError
from bitwright.base.nouns import IMAGES, Noun
from bitwright.base.progress import Progress, no_progress
from bitwright.build.shell import choose_line
from bitwright.build.simulated import Faults, LineReport, RunningBoard, SimulatedBoard
from bitwright.build.target import list_boards
from bitwright.engine.image import EngineImage
from bitwright.engine.sdram import ULX3S
from bitwright.host import Description, Link, SerialLine, Statistics, read_description
from bitwright.host.description import FILE
from bitwright.host.engine import EngineBoard
from bitwright.host.protocol import line_bytes
from bitwright.ir import Graph, IntArray
from bitwright.ir.footprint import checked_frames
from bitwright.pipeline.board_subject import (
    RANDOM,
    BoardSubject,
    Images,
    board_description,
    choose_images,
    clock_of,
    own_rtl,
    program_of,
    with_own_bitstream,
)
from bitwright.pipeline.designs.folder import is_design
from bitwright.pipeline.steps.implement_engine import board_cycles
from bitwright.pipeline.steps.levels import INPUTS, LABEL, LEVELS, read_levels
from bitwright.pipeline.steps.map import RTL
from bitwright.pipeline.steps.results import FILE as FOUND
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult
from bitwright.rtl.emit_engine import emit_engine_board


@dataclass(frozen=True)
class BoardResult:
    """What came back.

    Attributes:
        names: of the images.
        outputs: name -> levels (N, elements), as the graph gives them.
        labels: (N,); None where the design gives none.
        compared: values compared with the integer graph; 0 without one.
        differences: how many of them differ.
        cycles: clocks of the core for one image, as the board timed it; 0: it timed none. Of an
            engine: as its counter says; those that the model predicts are ``description.interval``.
        baud: of the line; of a simulated board that of the bitstream, if there is one, else that
            of the board that the target has.
        description, statistics: of the session.
        line: what a simulated board saw; None of a real one.
        noun: what the inputs are called.
        frames: of the line for one image: an engine is told much more than its input.
    """

    names: list[str]
    outputs: dict[str, IntArray]
    labels: IntArray | None
    compared: int
    differences: int
    cycles: int
    baud: float
    description: Description
    statistics: Statistics
    line: LineReport | None
    noun: Noun = IMAGES
    frames: int = 1

    @property
    def rate(self) -> float:
        """Images a second that came over the line."""
        return self.statistics.rate / self.frames

    @property
    def core_rate(self) -> float:
        """Images a second that the core could do: clock over interval; 0: unknown."""
        interval = self.description.interval
        return self.description.clock_mhz * 1e6 / interval if interval else 0.0

    @property
    def line_rate(self) -> float:
        """Images a second that a line of `baud` carries at most, packets and checksums included:
        both directions work at once, and the slower one counts.
        """
        sizes = self.description.input.frame_bytes, self.description.answer_bytes
        return self.baud / 10 / max(line_bytes(*sizes)) / self.frames


def run_on_board(
    subject: BoardSubject,
    places: list[Path],
    *,
    port: str | None = None,
    simulated: bool = False,
    faults: Faults | None = None,
    count: int | None = None,
    progress: Progress = no_progress,
) -> BoardResult:
    """Send images to a board and compare what comes back with the integer graph.

    Args:
        port: serial port of a board that has the bitstream.
        simulated: use the board's top in simulation instead.
        faults: what its line does to bytes.
        count: images at most.

    Raises:
        RunError: a real board is wanted, and there is no bitstream.
        ToolError: the board does not answer, or a tool is missing.
        DataError: an image cannot be read.
    """
    with ExitStack() as stack:
        board: RunningBoard | None = None
        if simulated:
            progress("compiling the simulated board", 0, 0)
            made, description, program = simulated_board(subject, stack, count, progress)
            images = choose_images(subject, description, places, count)
            board = stack.enter_context(made.start(faults))
            port = board.port
        else:
            description, program = board_description(subject), program_of(subject.design)
            if description.engine is not None:  # which knows of no network
                description = subject.description(description)
            images = choose_images(subject, description, places, count)
            if port is None:
                raise RunError("no port is named", where="--port")
        line = SerialLine.open(port, description.baud)
        link = stack.enter_context(Link.open(line, description))
        if program is None:
            sent = _through_design(link, images, progress)
        else:
            sent = _through_engine(link, program, images, progress)
    outputs = sent.outputs
    compared, differences = _compare(subject.graph, images.levels, outputs)
    return BoardResult(
        names=images.names,
        outputs=outputs,
        labels=outputs[LABEL][:, 0] if LABEL in outputs else None,
        compared=compared,
        differences=differences,
        cycles=sent.cycles,
        baud=description.baud,
        description=sent.description,
        statistics=link.statistics,
        line=board.report if board else None,
        noun=subject.noun(description.input.shape),
        frames=sent.frames,
    )


def simulated_board(
    subject: BoardSubject,
    stack: ExitStack,
    count: int | None = None,
    progress: Progress = no_progress,
) -> tuple[SimulatedBoard, Description, EngineImage | None]:
    """The board in simulation, what a host must know of the design on it, and an engine's program.

    Args:
        stack: keeps what the board needs as long as it runs.
        count: inputs that will be sent, more or less; by default those it was tested on.

    Raises:
        TargetError: the serial shell cannot carry the design.
        ToolError: Verilator or the compiler is missing, or rejects the design.
    """
    rtl, program = _simulated_rtl(subject, stack, progress)
    subject = with_own_bitstream(subject)
    clock = min(clock_of(subject), ULX3S.most_mhz) if program else clock_of(subject)
    made = SimulatedBoard.build(rtl, clock_mhz=clock, frames=count or _known_count(subject))
    # A pseudo terminal takes any rate; the board's own is one that hosts in C know.
    described = made.description.model_copy(update={"baud": _baud(subject)})
    return made, subject.description(described), program


@dataclass(frozen=True)
class _Sent:
    """What came back of all images; fields as of `BoardResult`."""

    outputs: dict[str, IntArray]
    cycles: int
    description: Description
    frames: int = 1


def _through_design(link: Link, images: Images, progress: Progress) -> _Sent:
    """A frame of the line for each image."""
    description, answers, cycles = link.description, [], 0
    for answer in link.run(description.input.pack(images.levels)):
        answers.append(answer.payload)
        cycles = max(cycles, answer.cycles)
        progress("sending images", len(answers), len(images.names))
    return _Sent(description.unpack(answers), cycles, description)


def _through_engine(link: Link, program: EngineImage, images: Images, progress: Progress) -> _Sent:
    """The program first, then image by image: written, run, read.

    Raises:
        ProgramError: the program is for another engine, or has several inputs.
        ToolError: the design on the board is no engine, or it gives no answer.
    """
    engine = EngineBoard(link)
    progress("loading the program", 0, len(images.names))
    engine.load(program)
    if len(program.inputs) != 1:
        raise ProgramError(
            f"the program has {len(program.inputs)} inputs, and images are sent to one",
            where=program.name,
            hint="run it from Python: bitwright.host.engine.EngineBoard takes levels of each",
        )
    given = program.inputs[0]
    frames, most = [], 0
    for number, levels in enumerate(images.levels):
        found, cycles = engine.run(program, {given.edge: levels})
        frames.append(found)
        most = max(most, cycles)
        progress("running images", number + 1, len(images.names))
    outputs = {
        edge: np.stack([frame[edge].reshape(-1) for frame in frames]) for edge in program.edges
    }
    predicted = board_cycles(program, link.description.clock_mhz)
    told = link.description.model_copy(update={"interval": predicted})
    return _Sent(outputs, most, told, engine.frames_of(program))


def _simulated_rtl(
    subject: BoardSubject, stack: ExitStack, progress: Progress
) -> tuple[Path, EngineImage | None]:
    """The RTL that a board would have, and an engine's program. An engine's is made here: what lies
    beside a bitstream is kept of whoever made that (`pipeline.run`).
    """
    rtl = own_rtl(subject, progress)
    program = program_of(rtl)
    if program is None:
        return rtl, None
    folder = Path(stack.enter_context(TemporaryDirectory())) / RTL
    emit_engine_board(program.config, folder)
    return folder, program


def _known_count(subject: BoardSubject) -> int:
    has_levels = subject.lowered is not None and (subject.lowered / LEVELS).is_file()
    return len(read_levels(subject.lowered)[INPUTS]) if has_levels and subject.lowered else RANDOM


def _baud(subject: BoardSubject) -> float:
    """Of the board that the design is, or would be, on; of a design without one the fastest."""
    beside = None if is_design(subject.place) else subject.place  # a design keeps none there
    for folder in (subject.implemented, beside):
        if folder is not None and (folder / FILE).is_file():
            return read_description(folder / FILE).baud
    wanted = max(board.uart_baud for board in list_boards())
    mapped = subject.design.parent
    is_mapped = subject.design.name == RTL and (mapped / FOUND).is_file()
    if is_mapped and program_of(subject.design) is None:  # an engine's circuit has no map
        link = load_result(MapResult, mapped).link
        wanted = wanted if link is None else round(link.baud)
    return choose_line(clock_of(subject), wanted).baud


def _compare(
    graph: Graph | None, levels: IntArray, outputs: dict[str, IntArray]
) -> tuple[int, int]:
    """Values compared with the graph, and how many of them differ.

    Raises:
        GraphError: the board gives other outputs, or of other sizes, than the graph.
    """
    if graph is None:
        return 0, 0
    from bitwright.ir.executor import Executor

    for name in graph.outputs:
        if name not in outputs:
            raise GraphError(f"the board gives no output {name!r}", where=graph.name)
        found, size = outputs[name].shape, graph.types[name].size
        if found != (len(levels), size):  # numpy would spread one value over all of them
            raise GraphError(
                f"the board gives {found[-1]} values of output {name!r} for an input, the graph "
                f"{size}",
                where=graph.name,
                hint=f"{FILE} is of another design: implement this one again",
            )
    executor, most, differences = Executor(graph), checked_frames(graph, len(levels)), 0
    for start in range(0, len(levels), most):
        part = slice(start, start + most)
        for name, want in executor.run({graph.inputs[0]: levels[part]}).items():
            if name in graph.outputs:
                got = outputs[name][part]
                differences += int((np.asarray(want).reshape(got.shape) != got).sum())
    return len(levels) * sum(graph.types[name].size for name in graph.outputs), differences
