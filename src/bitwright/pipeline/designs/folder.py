# SPDX-License-Identifier: Apache-2.0
"""A design folder: what a file's import and a model of one's own loop have in common with a run.

graph.bwg       the integer graph: the definition of the network
hardware.json   what to build it for: the sections hardware, simulate and implement of a recipe
levels.npz      levels of real inputs and outputs, if there are any; else random ones prove it
input.json      how a host makes levels of what there is in the world, if that is known
map/ simulate/ implement/ report/    what `Design`'s steps have made, each with its key
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError, RecipeError, RunError
from bitwright.base.files import MOST_TEXT, atomic_write, parse_json, read_text
from bitwright.base.folders import clear_place, make_folder, own_file
from bitwright.base.locks import exclusive
from bitwright.base.made import is_own, remember
from bitwright.base.memory import LARGE, is_chosen, shown
from bitwright.base.ownership import check_owner, check_way
from bitwright.base.version import __version__
from bitwright.data.preprocessing import HostInput, read_input
from bitwright.ir import INTEGER, Graph, IntArray, load_graph, random_feeds, save_graph
from bitwright.ir.footprint import checked_frames
from bitwright.pipeline.designs.named import (
    absolute,
    check_named,
    from_folder,
    named_files,
    remember_named,
    rename_files,
)
from bitwright.pipeline.recipe_errors import explain_mistakes
from bitwright.pipeline.recipe_hardware import HardwareSection, Section, hardware_facts
from bitwright.pipeline.recipe_schema import ImplementSection, SimulateSection
from bitwright.pipeline.recipe_yaml import Document
from bitwright.pipeline.steps.levels import LEVELS, read_inputs, require_defined, save_levels

GRAPH, SETTINGS, INPUT = "graph.bwg", "hardware.json", "input.json"
_KEY, LOCK = "key.json", ".lock"
_RANDOM, _DEFINED = 20, 8
_HELD: set[Path] = set()  # folders that this process works in
#: Of frames, in and out, that a design is proven on: their simulation holds them some times over,
#: and a stranger may say how many there are. Where the user answers for his files: four times.
_MOST_BYTES, _MOST_OWN_BYTES = 1 << 29, 1 << 31
_AGAIN = "delete it, or make the design again"


class DesignSettings(Section):
    """What a design is built for: sections of a recipe, with the same keys and defaults.

    Attributes:
        seed: of random inputs and stalls.
    """

    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    hardware: HardwareSection = HardwareSection()
    simulate: SimulateSection = SimulateSection()
    implement: ImplementSection = ImplementSection()

    @property
    def files(self) -> dict[str, Path]:
        """What they name on the disk; see `designs.named`."""
        return named_files(self.hardware, self.implement)

    def with_files(self, change: Callable[[Path], Path]) -> DesignSettings:
        """The same with the name of each file changed."""
        hardware, implement = rename_files(self.hardware, self.implement, change)
        return self.model_copy(update={"hardware": hardware, "implement": implement})

    @model_validator(mode="after")
    def _names_no_code(self) -> DesignSettings:
        """The folder may be a stranger's."""
        if self.hardware.blocks:
            raise ValueError("hardware.blocks: blocks of your own need a recipe")
        return self


@dataclass(frozen=True)
class Design:
    """A design folder at work.

    Attributes:
        folder: where results go.
        graph: the integer graph.
        settings: what it is built for; names of files are absolute, or from where the user stands.
        levels: of each input of the graph, frames of real data; None: there are none.
        host: how a host makes them, and what labels are called; None: unknown.
    """

    folder: Path
    graph: Graph = field(repr=False)
    settings: DesignSettings
    levels: Mapping[str, IntArray] | None = field(default=None, repr=False)
    host: HostInput | None = None

    @property
    def kept_settings(self) -> DesignSettings:
        """The settings as the folder keeps them: files inside of it are named from there."""
        return self.settings.with_files(lambda path: from_folder(path, self.folder))

    def frames(self) -> dict[str, IntArray]:
        """Input levels that the design is proven on: the real ones, as many as ``simulate.images``
        says; or else random ones, fewer of large frames (1 GiB at a time).

        Raises:
            DataError: with what the graph gives for them they take more than 512 MiB (2 GiB where
                the user answers for the size of frames, see `base.memory.LARGE`).
        """
        wanted = self.settings.simulate.images
        if self.levels is None:
            count = checked_frames(self.graph, _RANDOM if wanted == "all" else wanted)
            return random_feeds(self.graph, count, np.random.default_rng(self.settings.seed))
        found = {e: v if wanted == "all" else v[:wanted] for e, v in self.levels.items()}
        self._check_size(len(next(iter(found.values()))))
        return found

    def _check_size(self, count: int) -> None:
        ends = (*self.graph.inputs, *self.graph.outputs)
        needed = 8 * count * sum(self.graph.types[edge].size for edge in ends)
        most = _MOST_OWN_BYTES if is_chosen() else _MOST_BYTES
        if needed > most:
            fit = max(1, most * count // needed)
            raise DataError(
                f"{count} frames with their outputs take {shown(needed)}, at most {shown(most)} "
                "are compared",
                where=str(self.folder / LEVELS),
                hint=f"compare fewer: --set simulate.images={fit}"
                + ("" if is_chosen() else f"; for a folder of your own: {LARGE}=1"),
            )

    def frames_digest(self) -> str:
        """Hash of the real levels; empty where there are none."""
        digest = hashlib.sha256()
        for edge, levels in sorted((self.levels or {}).items()):
            digest.update(f"{edge} {levels.shape}".encode())
            digest.update(np.ascontiguousarray(levels, dtype="<i8").tobytes())
        return digest.hexdigest() if self.levels else ""

    def hardware_facts(self) -> dict[str, Any]:
        """The section ``hardware``, and what the files say that it names."""
        return hardware_facts(self.settings.hardware)

    def save(self) -> None:
        """Write the folder: graph, settings, levels."""
        make_folder(self.folder)
        save_graph(self.graph, self.folder / GRAPH)
        self.save_settings()
        remember_named(self.settings.files)
        for name in (LEVELS, INPUT):
            (self.folder / name).unlink(missing_ok=True)
        if self.levels is not None:
            edge = self.graph.only_input
            save_levels(self.folder, self.levels[edge], expected_outputs(self.graph, self.levels))
        if self.host is not None:
            atomic_write(self.folder / INPUT, self.host.model_dump_json(indent=1) + "\n")

    def save_settings(self) -> None:
        """Write the settings, which later calls start from."""
        atomic_write(self.folder / SETTINGS, self.kept_settings.model_dump_json(indent=1) + "\n")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes off the folder; who holds it already may come in again.

        Raises:
            RunError: another one is at work in it.
            OSError: it cannot be written.
        """
        with alone_in(self.folder):
            yield

    def step(self, name: str, facts: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """The folder of a step, made if it was not made here for these facts and this graph.

        It is made beside its place and renamed into it: what is there is whole.

        Args:
            facts: what the result depends on, besides the graph, as JSON.
            make: fills a folder.

        Raises:
            RunError: the folder's lock is no file of its own, the folder is another user's, or
                somebody has put something in the step's place meanwhile.
        """
        with self.alone():
            if (place := self.done(name, facts)) is not None:
                return place
            place, partial = self.folder / name, self.folder / f".{name}.partial"
            clear_place(partial)
            partial.mkdir(parents=True)
            try:
                make(partial)
            except BaseException:
                with suppress(OSError):  # what a step has written before it failed stays to look at
                    partial.rmdir()
                raise
            atomic_write(partial / _KEY, json.dumps(self._key(name, facts)) + "\n")
            clear_place(place)
            try:
                partial.rename(place)
            except OSError as error:
                raise RunError(
                    f"cannot take the place of what is there ({error.strerror or error})",
                    where=str(place),
                    hint="does another program write into the folder? Call it again",
                ) from error
            remember(place, self._key(name, facts))
            return place

    def done(self, name: str, facts: Mapping[str, Any]) -> Path | None:
        """The folder of a step, if this user has made it for these facts and this graph; None: not
        yet, or somebody else did, in which case it may hold anything (RTL is run).

        Raises:
            RunError: the folder is another user's.
        """
        place = self.folder / name
        if place.exists():
            check_owner(self.folder)
        return place if is_own(place, self._key(name, facts)) else None

    def _key(self, name: str, facts: Mapping[str, Any]) -> str:
        text = json.dumps([__version__, self.graph.digest, facts], sort_keys=True, default=str)
        return hashlib.sha256(f"{name} {text}".encode()).hexdigest()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """As `Design.alone`, of a folder that is there, whether it is a design by now or not."""
    place = folder.resolve()
    if place in _HELD:
        yield
        return
    check_way(folder)
    check_owner(folder)
    with exclusive(folder / LOCK, remove=True):
        _HELD.add(place)
        try:
            yield
        finally:
            _HELD.discard(place)


def is_design(folder: Path) -> bool:
    """Whether a folder is one: it has a graph, and is no run directory, nor one of its steps."""
    return (folder / GRAPH).is_file() and not (folder / "step.json").is_file()


@bounded_reader
def open_design(folder: Path, assignments: Sequence[str] = ()) -> Design:
    """A design folder, with settings that are changed as ``--set`` says; these are kept.

    Raises:
        RunError: it is none, or a file is a link that leads out of it, or its settings name one
            that its user has not; or settings change while another process works in it.
        RecipeError: a setting is wrong.
        DataError, GraphError: a file in it is damaged.
    """
    if not is_design(folder):
        raise RunError(
            "is no design folder: it has no graph.bwg",
            where=str(folder),
            hint="`bitwright import` and bitwright.build_model make one",
        )
    for name in (GRAPH, SETTINGS, LEVELS, INPUT):
        own_file(folder, name)
    graph = load_graph(folder / GRAPH, {"integer": INTEGER})
    place = folder / SETTINGS
    given = (
        parse_settings(read_text(place, most=MOST_TEXT), str(place), folder)
        if place.is_file()
        else DesignSettings()
    )
    settings = changed(given, assignments)
    remember_named(settings.files, assignments)
    check_named(folder, settings.files)
    levels = read_inputs(folder, graph, hint=_AGAIN) if (folder / LEVELS).is_file() else None
    design = Design(folder, graph, settings, levels, read_input(folder / INPUT))
    if settings != given:
        with design.alone():  # a step that works in the folder read them
            design.save_settings()
    return design


def expected_outputs(graph: Graph, feeds: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """Outputs of many frames, by the executor; of the first ones by the definition, too.

    Raises:
        GraphError: an array is no levels of its input.
        MismatchError: the two disagree: a bug.
    """
    from bitwright.ir.executor import Executor

    found = Executor(graph).run(dict(feeds))
    outputs = {edge: found[edge] for edge in graph.outputs}
    count = checked_frames(graph, _DEFINED)
    first = {edge: levels[:count] for edge, levels in feeds.items()}
    require_defined(graph, first, outputs)
    return outputs


def changed(settings: DesignSettings, assignments: Sequence[str]) -> DesignSettings:
    """Settings with some of them replaced, ``hardware.fill=0.8``; a new goal takes the place of
    another.

    Raises:
        RecipeError: there is no such setting, or it breaks the schema.
    """
    document = Document(settings.model_dump(mode="json", by_alias=True), SETTINGS, {})
    for assignment in assignments:
        path = assignment.partition("=")[0].strip().split(".")
        if path[0] == "hardware" and path[1:2] and path[1] in _GOALS:
            for other in (_GOALS | {"rate_clock_mhz"}) - {path[1]}:
                document = document.assign(("hardware", other), None, "--set")
        document = document.override(assignment)
    return parse_settings(document.value, "--set" if assignments else SETTINGS)


_GOALS = {"target_fps", "fill", "budget", "folding_config_file"}


def parse_settings(
    values: str | Mapping[str, Any], where: str, folder: Path = Path()
) -> DesignSettings:
    """Settings from JSON or from plain values.

    Args:
        folder: where relative names of files in them start; default where the user stands.

    Raises:
        RecipeError: they break the schema.
    """
    try:
        found = parse_json(values) if isinstance(values, str) else values
        return DesignSettings.model_validate(found).with_files(lambda p: absolute(folder / p))
    except ValidationError as error:
        given = found if isinstance(found, Mapping) else {}
        raise explain_mistakes(error, Document(dict(given), where, {}), DesignSettings) from error
    except ValueError as error:
        raise RecipeError(f"is no JSON: {error}", where=where) from error
