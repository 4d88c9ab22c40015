# SPDX-License-Identifier: Apache-2.0
"""`bitwright board`: a design on a board, or on a simulated one, against its integer graph."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.errors import DataError, GraphError, RunError
from bitwright.base.nouns import IMAGES, OF_AXES, Noun, noun_of
from bitwright.base.progress import Progress, no_progress
from bitwright.build.implement import RESULT, read_result
from bitwright.build.pnr_tools import bitstream_in
from bitwright.build.shell import choose_line
from bitwright.build.simulated import Faults, LineReport, RunningBoard, SimulatedBoard
from bitwright.build.target import list_boards
from bitwright.data.preprocessing import HostInput, read_input
from bitwright.host import Description, Link, SerialLine, Statistics, read_description
from bitwright.host.board_files import complete
from bitwright.host.description import FILE
from bitwright.host.images import image_files, levels_of
from bitwright.host.numbers import levels_of_numbers
from bitwright.host.protocol import line_bytes
from bitwright.ir import INTEGER, Graph, IntArray, load_graph, random_feeds
from bitwright.pipeline.designs.folder import is_design, open_design
from bitwright.pipeline.designs.steps import IMPLEMENT, MAP, map_design
from bitwright.pipeline.run_files import RUNS, check_run_folder
from bitwright.pipeline.steps.levels import INPUTS, LABEL, LEVELS, read_levels
from bitwright.pipeline.steps.lower import GRAPH, INPUT
from bitwright.pipeline.steps.map import RTL
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.results import FILE as FOUND
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult

_DEFAULT_MHZ = 100.0
_RANDOM = 16


@dataclass(frozen=True)
class BoardSubject:
    """A design and what is known of it.

    Attributes:
        place: the folder that was named.
        design: its design folder.
        graph: the integer graph that it must equal; None: a design of one's own without one.
        lowered: the folder with its test images; None: there are none.
        implemented: the folder with the bitstream; None: not there.
    """

    place: Path
    design: Path
    graph: Graph | None
    lowered: Path | None = None
    implemented: Path | None = None

    def description(self, base: Description) -> Description:
        """What its shell says of itself, and what the graph and the recipe say besides."""
        return complete(base, self.graph, self.given)

    @property
    def given(self) -> HostInput | None:
        """What is known of its input beside the graph."""
        return read_input(self.lowered / INPUT) if self.lowered else None

    def noun(self, shape: tuple[int, ...]) -> Noun:
        """What its inputs, of this shape, are called."""
        given = self.given
        return OF_AXES.get(len(shape), IMAGES) if given is None else noun_of(given.inputs)


@dataclass(frozen=True)
class BoardResult:
    """What came back.

    Attributes:
        names: of the images.
        outputs: name -> levels (N, elements), as the graph gives them.
        labels: (N,); None where the design gives none.
        compared: values compared with the integer graph; 0 without one.
        differences: how many of them differ.
        cycles: clocks of the core for one image, as the board timed it; 0: it timed none.
        baud: of the line; of a simulated board that of the bitstream, if there is one, else that
            of the board that the target has.
        description, statistics: of the session.
        line: what a simulated board saw; None of a real one.
        noun: what the inputs are called.
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
        return self.baud / 10 / max(line_bytes(*sizes))


def find_subject(place: str | Path) -> BoardSubject:
    """A run directory, the name of one in ``runs/``, a folder of `import`, or a design folder.

    Raises:
        RunError: it is none of these, or its RTL is not there yet.
        GraphError: the design or the graph is damaged.
    """
    folder = Path(place).expanduser()
    if not folder.is_dir() and folder.name == str(place):
        folder = RUNS / folder
    if not folder.is_dir():
        raise RunError(
            "there is no such folder",
            where=str(place),
            hint=f"build it first: bitwright build {place}; or name a run or a design folder",
        )
    if (folder / "run.json").is_file():
        check_run_folder(folder)
        lowered = folder / step_folder("lower")
        found = BoardSubject(folder, folder / step_folder("map") / RTL, None, lowered)
        implemented = folder / step_folder("implement")
        if (implemented / RESULT).is_file():
            found = replace(found, implemented=implemented)
    elif (folder / "design.json").is_file():
        # As `map` leaves it, two levels up: of a design folder.
        above = [f for f in (folder, *folder.absolute().parents[:2]) if (f / GRAPH).is_file()]
        found = BoardSubject(folder, folder, None, above[0] if above else None)
    else:
        found = BoardSubject(folder, folder / MAP / RTL, None, folder)
        if is_design(folder) and (folder / IMPLEMENT / RESULT).is_file():
            found = replace(found, implemented=folder / IMPLEMENT)
    if not (found.design / "design.json").is_file():
        raise RunError(
            "has no RTL",
            where=str(folder),
            hint="run `bitwright map` (of a recipe or a design folder) first",
        )
    file = found.lowered / GRAPH if found.lowered else None
    if file is not None and file.is_file():
        own = (folder / "run.json").is_file()  # its recipe says what size images have
        return replace(found, graph=load_graph(file, {"integer": INTEGER}, chosen=own))
    return found


@dataclass(frozen=True)
class Images:
    """What is sent: levels (N, ...) with a name each."""

    names: list[str]
    levels: IntArray


def choose_images(
    subject: BoardSubject, description: Description, places: list[Path], count: int | None
) -> Images:
    """Image files, ``.npy`` files (integers are levels, floats what they are made of), or what the
    run was tested on; else random levels.

    Raises:
        DataError: a file cannot be read, or has another shape.
    """
    shape = description.input.shape
    arrays = [place for place in places if place.suffix == ".npy"]
    if places and len(arrays) == len(places):
        levels = np.concatenate([_read_levels(place, shape, subject.given) for place in arrays])
        names = [f"{subject.noun(shape).one} {number}" for number in range(len(levels))]
    elif places:
        files = image_files(places)[:count]
        names, levels = [str(file) for file in files], levels_of(files, description)
    elif subject.lowered is not None and (subject.lowered / LEVELS).is_file():
        levels = read_levels(subject.lowered)[INPUTS]
        one = subject.noun(shape).one
        names = [f"test {one} {number}" for number in range(len(levels))]
    elif subject.graph is not None:
        rng = np.random.default_rng(0)
        levels = random_feeds(subject.graph, count or _RANDOM, rng)[subject.graph.inputs[0]]
        names = [f"random frame {number}" for number in range(len(levels))]
    else:
        raise DataError(
            "the design has no graph, so nobody knows what its input looks like",
            where=str(subject.place),
            hint="give levels: an .npy file of integers (N, elements of a frame)",
        )
    return Images(names[:count], levels[:count])


def _read_levels(path: Path, shape: tuple[int, ...], given: HostInput | None) -> IntArray:
    found = read_array(path, "biuf")
    if found.dtype.kind == "f":
        if given is None:
            raise DataError(
                f"holds {found.dtype}, and the design does not say which levels these are",
                where=str(path),
                hint=f"give levels: integers (N, {', '.join(map(str, shape))})",
            )
        return levels_of_numbers(found, given, str(path)).reshape(-1, *shape)
    if found.size % prod(shape) or (found.size and int(found.max()) > np.iinfo(np.int64).max):
        raise DataError(
            f"expected integers (N, {', '.join(map(str, shape))}), "
            f"found {found.dtype} {found.shape}",
            where=str(path),
        )
    return np.asarray(found.reshape(-1, *shape), dtype=np.int64)


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
            made, description = simulated_board(subject, count, progress)
            images = choose_images(subject, description, places, count)
            board = stack.enter_context(made.start(faults))
            port = board.port
        else:
            description = board_description(subject)
            images = choose_images(subject, description, places, count)
            if port is None:
                raise RunError("no port is named", where="--port")
        line = SerialLine.open(port, description.baud)
        link = stack.enter_context(Link.open(line, description))
        answers, cycles = [], 0
        for answer in link.run(description.input.pack(images.levels)):
            answers.append(answer.payload)
            cycles = max(cycles, answer.cycles)
            progress("sending images", len(answers), len(images.names))
    outputs = description.unpack(answers)
    compared, differences = _compare(subject.graph, images.levels, outputs)
    return BoardResult(
        names=images.names,
        outputs=outputs,
        labels=outputs[LABEL][:, 0] if LABEL in outputs else None,
        compared=compared,
        differences=differences,
        cycles=cycles,
        baud=description.baud,
        description=description,
        statistics=link.statistics,
        line=board.report if board else None,
        noun=subject.noun(description.input.shape),
    )


def simulated_board(
    subject: BoardSubject, count: int | None = None, progress: Progress = no_progress
) -> tuple[SimulatedBoard, Description]:
    """The board in simulation, and what a host must know of the design on it.

    Args:
        count: inputs that will be sent, more or less; by default those it was tested on.

    Raises:
        TargetError: the serial shell cannot carry the design.
        ToolError: Verilator or the compiler is missing, or rejects the design.
    """
    expected = count or _known_count(subject)
    rtl = _own_rtl(subject, progress)
    made = SimulatedBoard.build(rtl, clock_mhz=_clock(subject), frames=expected)
    # A pseudo terminal takes any rate; the board's own is one that hosts in C know.
    described = made.description.model_copy(update={"baud": _baud(subject)})
    return made, subject.description(described)


def _own_rtl(subject: BoardSubject, progress: Progress) -> Path:
    """The RTL that is run; that of a design folder, which may be anybody's, is made here."""
    if not is_design(subject.place):
        return subject.design
    return map_design(open_design(subject.place), progress) / RTL


def board_description(subject: BoardSubject) -> Description:
    """The description that lies beside the bitstream.

    Raises:
        RunError: there is none.
    """
    for folder in (subject.implemented, subject.place):
        if folder is not None and (folder / FILE).is_file():
            return read_description(folder / FILE)
    raise RunError(
        f"has no {FILE}, which is written beside a bitstream",
        where=str(subject.implemented or subject.place),
        hint="implement it for a target with a board, or use --simulated",
    )


def _known_count(subject: BoardSubject) -> int:
    has_levels = subject.lowered is not None and (subject.lowered / LEVELS).is_file()
    return len(read_levels(subject.lowered)[INPUTS]) if has_levels and subject.lowered else _RANDOM


def _clock(subject: BoardSubject) -> float:
    """That the bitstream runs at, else what was aimed at, else a usual one."""
    if subject.implemented is not None:
        result = read_result(subject.implemented / RESULT)
        return result.bitstream_clock_mhz or result.clock_mhz
    return _DEFAULT_MHZ


def _baud(subject: BoardSubject) -> float:
    """Of the board that the design is, or would be, on; of a design without one the fastest."""
    for folder in (subject.implemented, subject.place):
        if folder is not None and (folder / FILE).is_file():
            return read_description(folder / FILE).baud
    wanted = max(board.uart_baud for board in list_boards())
    mapped = subject.design.parent
    if subject.design.name == RTL and (mapped / FOUND).is_file():
        link = load_result(MapResult, mapped).link
        wanted = wanted if link is None else round(link.baud)
    return choose_line(_clock(subject), wanted).baud


def bitstream_of(place: Path) -> Path:
    """The bitstream of a run, or a bitstream itself.

    Raises:
        RunError: there is none.
    """
    if place.is_file():
        return place
    found = find_subject(place)
    folders = [folder for folder in (found.implemented, found.place) if folder is not None]
    for path in map(bitstream_in, folders):
        if path is not None:
            return path
    raise RunError(
        "has no bitstream",
        where=str(place),
        hint="implement it for a target with a board: `bitwright implement`",
    )


def _compare(
    graph: Graph | None, levels: IntArray, outputs: dict[str, IntArray]
) -> tuple[int, int]:
    """Values compared with the graph, and how many of them differ."""
    if graph is None:
        return 0, 0
    from bitwright.ir.executor import Executor

    expected = Executor(graph).run({graph.inputs[0]: levels})
    compared = differences = 0
    for name in graph.outputs:
        if name not in outputs:
            raise GraphError(f"the board gives no output {name!r}", where=graph.name)
        want = np.asarray(expected[name]).reshape(len(levels), -1)
        compared += want.size
        differences += int((want != outputs[name]).sum())
    return compared, differences
