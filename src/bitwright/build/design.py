# SPDX-License-Identifier: Apache-2.0
"""A folder of RTL with its ``design.json``, as the flows see it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bitwright.base.errors import GraphError

_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


class Port(BaseModel):
    """One AXI-Stream port of the top module.

    ``width`` is the width of tdata in bits, ``beats`` the number of transfers in a frame, ``codes``
    the format whose codes the lanes carry, if they carry no numbers.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(pattern=_NAME)
    tensor: str
    width: int = Field(gt=0, multiple_of=8)
    lane_bits: int = Field(gt=0)
    lanes: int = Field(gt=0)
    beats: int = Field(gt=0)
    signed: bool = False
    bipolar: bool = False
    codes: str | None = None


class MemoryPort(BaseModel):
    """An AXI4 port that reads weights from a memory outside; the rest of its entry is left."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(pattern=_NAME)
    image: str


class Design(BaseModel):
    """What ``design.json`` says; paths are relative to its folder."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    top: str = Field(pattern=_NAME)
    clock: str = Field(pattern=_NAME)
    reset: str = Field(pattern=_NAME)
    files: tuple[str, ...] = Field(min_length=1)
    memories: tuple[str, ...] = ()
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    memory_ports: tuple[MemoryPort, ...] = ()
    frame_error: str | None = Field(default=None, pattern=_NAME)

    @property
    def beyond_shell(self) -> str | None:
        """Why the serial shell cannot carry the design; None if it can."""
        if self.memory_ports:
            return "its weights come from a memory outside, which the serial shell does not have"
        if len(self.inputs) != 1 or not self.outputs:
            return (
                "the serial shell carries one input and at least one output, and the design has "
                f"{len(self.inputs)} and {len(self.outputs)}"
            )
        return None


def load_design(folder: Path) -> Design:
    """Read ``design.json`` and make sure that every file that it names is there.

    Raises:
        GraphError: it is missing, malformed, or names a file that is missing or lies outside the
            folder.
    """
    path = folder / "design.json"
    try:
        design = Design.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GraphError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            hint="generate the RTL first (step `map`)",
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(file)"
        raise GraphError(f"{field}: {first['msg']}", where=str(path)) from error
    root = folder.resolve()
    images = (port.image for port in design.memory_ports)
    for name in (*design.files, *design.memories, *images):
        file = (folder / name).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            raise GraphError(
                f"names the file {name!r}, which is not in the folder",
                where=str(path),
                hint="generate the RTL again (step `map`)",
            )
    return design


def design_content(folder: Path, design: Design) -> list[str | bytes]:
    """Everything that a synthesis result depends on, for a cache key."""
    parts: list[str | bytes] = [design.top]
    for name in (*design.files, *design.memories):
        parts += [name, (folder / name).read_bytes()]
    return parts
