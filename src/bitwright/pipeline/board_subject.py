# SPDX-License-Identifier: Apache-2.0
"""What `bitwright board` is given: a design with what is known of it, and images for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.errors import DataError, RunError
from bitwright.base.memory import shown
from bitwright.base.nouns import IMAGES, OF_AXES, Noun, noun_of
from bitwright.base.progress import Progress
from bitwright.build.implement import RESULT, read_result
from bitwright.build.pnr_tools import bitstream_in
from bitwright.data.preprocessing import HostInput, read_input
from bitwright.engine.image import EngineImage, load_image
from bitwright.host import Description, read_description
from bitwright.host.board_files import complete
from bitwright.host.description import FILE
from bitwright.host.images import image_files, levels_of
from bitwright.host.numbers import levels_of_numbers
from bitwright.ir import INTEGER, Graph, IntArray, load_graph, random_feeds
from bitwright.ir.footprint import checked_frames
from bitwright.pipeline.designs.folder import is_design, open_design
from bitwright.pipeline.designs.steps import IMPLEMENT, MAP, REPORT, SIMULATE, done_here, map_design
from bitwright.pipeline.run_files import check_run_folder, is_run, run_place
from bitwright.pipeline.steps.levels import INPUTS, LEVELS, read_levels
from bitwright.pipeline.steps.lower import GRAPH, INPUT
from bitwright.pipeline.steps.map import RTL
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.results_hardware import ENGINE_IMAGE

_DEFAULT_MHZ = 100.0
#: Folders of a design folder: of what its steps have made.
_STEPS = frozenset({MAP, SIMULATE, IMPLEMENT, REPORT})
#: Frames that are drawn where there are none.
RANDOM = 16
#: Bytes of levels that a board is sent.
MOST_BYTES = 1 << 31


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


def find_subject(place: str | Path) -> BoardSubject:
    """A run directory, the name of one in ``runs/``, a folder of `import`, or a design folder.

    Raises:
        RunError: it is none of these, or its RTL is not there yet.
        GraphError: the design or the graph is damaged.
    """
    folder = Path(place).expanduser()
    if not folder.is_dir() and folder.name == str(place):
        folder = run_place(folder.name)
    if not folder.is_dir():
        raise RunError(
            "there is no such folder",
            where=str(place),
            hint=f"build it first: bitwright build {place}; or name a run or a design folder",
        )
    if is_run(folder):
        check_run_folder(folder)
        lowered = folder / step_folder("lower")
        found = BoardSubject(folder, folder / step_folder("map") / RTL, None, lowered)
        implemented = folder / step_folder("implement")
        if (implemented / RESULT).is_file():
            found = replace(found, implemented=implemented)
    elif (folder / "design.json").is_file() and not (folder / "step.json").is_file():
        # As `map` leaves it, two levels up: of a design folder.
        above = [f for f in (folder, *folder.absolute().parents[:2]) if (f / GRAPH).is_file()]
        found = BoardSubject(folder, folder, None, above[0] if above else None)
    elif is_design(folder):
        found = BoardSubject(folder, folder / MAP / RTL, None, folder)
        if (folder / IMPLEMENT / RESULT).is_file():
            found = replace(found, implemented=folder / IMPLEMENT)
    else:  # RTL in it would be anybody's, without a graph that it could be made again from
        raise _no_rtl(folder)
    if not (found.design / "design.json").is_file():
        raise _no_rtl(folder)
    file = found.lowered / GRAPH if found.lowered else None
    if file is not None and file.is_file():
        own = is_run(folder)  # its recipe says what size images have
        return replace(found, graph=load_graph(file, {"integer": INTEGER}, chosen=own))
    return found


def _no_rtl(folder: Path) -> RunError:
    return RunError(
        "has no RTL: it is no run directory, design folder or folder of RTL, or is not mapped yet",
        where=str(folder),
        hint="run `bitwright map` (of a recipe or a design folder) first",
    )


@dataclass(frozen=True)
class Images:
    """What is sent: levels (N, ...) with a name each."""

    names: list[str]
    levels: IntArray


def choose_images(
    subject: BoardSubject, description: Description, places: list[Path], count: int | None
) -> Images:
    """Image files, ``.npy`` files (integers are levels, floats what they are made of), or what the
    run was tested on; else random levels, fewer of large frames (1 GiB at a time).

    Raises:
        DataError: a file cannot be read, or has another shape; or the levels of pictures or random
            frames take more than `MOST_BYTES`.
    """
    shape = description.input.shape
    arrays = [place for place in places if place.suffix == ".npy"]
    if places and len(arrays) == len(places):
        levels = np.concatenate([_read_levels(place, shape, subject.given) for place in arrays])
        names = [f"{subject.noun(shape).one} {number}" for number in range(len(levels))]
    elif places:
        files = image_files(places)[:count]
        _check_size(len(files), shape, places[0])
        names, levels = [str(file) for file in files], levels_of(files, description)
    elif subject.lowered is not None and (subject.lowered / LEVELS).is_file():
        levels = read_levels(subject.lowered)[INPUTS]
        one = subject.noun(shape).one
        names = [f"test {one} {number}" for number in range(len(levels))]
    elif subject.graph is not None:
        drawn = count or checked_frames(subject.graph, RANDOM)
        _check_size(drawn, shape, subject.place)
        rng = np.random.default_rng(0)
        levels = random_feeds(subject.graph, drawn, rng)[subject.graph.inputs[0]]
        names = [f"random frame {number}" for number in range(len(levels))]
    else:
        raise DataError(
            "the design has no graph, so nobody knows what its input looks like",
            where=str(subject.place),
            hint="give levels: an .npy file of integers (N, elements of a frame)",
        )
    if not names:
        raise DataError("holds no frames", where=str(places[0] if places else subject.place))
    return Images(names[:count], levels[:count])


def _check_size(count: int, shape: tuple[int, ...], where: Path) -> None:
    needed = 8 * count * prod(shape)
    if needed > MOST_BYTES:
        raise DataError(
            f"the levels of {count} frames take {shown(needed)}, at most {shown(MOST_BYTES)} are "
            "sent",
            where=str(where),
            hint=f"send fewer: --count {max(1, MOST_BYTES // (8 * prod(shape)))}",
        )


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


def own_rtl(subject: BoardSubject, progress: Progress) -> Path:
    """The RTL that is run; that of a design folder, which may be anybody's, is made here, whether
    the design folder was named or the RTL in it, and wherever its parts lead.

    Raises:
        RunError: the RTL lies where that of a design folder does, and it is none; or elsewhere in
            what its steps have made.
    """
    folder = _design_above(subject)
    return subject.design if folder is None else map_design(open_design(folder), progress) / RTL


def _design_above(subject: BoardSubject) -> Path | None:
    """The design folder whose RTL is to be run; None: it is no part of one. By its name and by
    where links lead, and whatever else makes the folder look like something that is no design.

    Raises:
        RunError: it lies in another place of what the steps of a design folder have made.
    """
    if is_design(subject.place):
        return subject.place
    if is_run(subject.place):
        return None
    for design in (subject.design.absolute(), subject.design.resolve()):
        for above in design.parents:
            inside = design.relative_to(above)
            if inside.parts[0] in _STEPS and (above / GRAPH).is_file():
                if inside == Path(MAP, RTL):
                    return above
                raise RunError(
                    f"lies in the design folder {above}, whose RTL anybody may have put there",
                    where=str(subject.place),
                    hint="name that folder: its RTL is made again; or copy your own RTL elsewhere",
                )
    return None


def program_of(rtl: Path) -> EngineImage | None:
    """The engine's program beside the RTL of a design; None: it is no engine.

    Raises:
        ProgramError: it is damaged.
    """
    path = rtl.parent / ENGINE_IMAGE
    return load_image(path) if rtl.name == RTL and path.is_file() else None


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


def with_own_bitstream(subject: BoardSubject) -> BoardSubject:
    """The same without what a design folder says of a bitstream that was not made here for its
    settings: its clock may be anything. Of a run it is taken as it is.
    """
    if subject.implemented is None or not is_design(subject.place):
        return subject
    return replace(subject, implemented=done_here(open_design(subject.place), IMPLEMENT))


def clock_of(subject: BoardSubject) -> float:
    """That the bitstream runs at, else what was aimed at, else a usual one."""
    if subject.implemented is not None:
        result = read_result(subject.implemented / RESULT)
        return result.bitstream_clock_mhz or result.clock_mhz
    return _DEFAULT_MHZ
