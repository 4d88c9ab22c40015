# SPDX-License-Identifier: Apache-2.0
"""`bitwright board`: boards of this machine, bitstreams onto them, images through them."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bitwright.base.errors import MismatchError, RecipeError
from bitwright.base.folders import make_folder
from bitwright.cli.options import Force, Json
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.build.simulated import Faults
    from bitwright.pipeline.board import BoardResult

_SHOWN = 20


class _RunByDefault(TyperGroup):
    """``bitwright board digits`` is ``bitwright board run digits``."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="board",
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Run a design on a board, or on a simulated one, and compare it with the integer graph. "
    "`bitwright board RUN` is `bitwright board run RUN`, and takes its options.",
)

Subject = Annotated[
    str,
    typer.Argument(
        metavar="RUN|DESIGN",
        help="A run directory, the name of one in runs/, a folder of `import`, or a design folder.",
    ),
]


FaultShare = Annotated[
    float,
    typer.Option(
        "--faults",
        min=0.0,
        max=0.2,
        metavar="SHARE",
        help="Of the bytes on a simulated line that are lost, flipped or repeated: 0.01.",
    ),
]
FaultSeed = Annotated[int, typer.Option("--seed", min=0, help="Of which bytes.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the boards that are known, and the serial ports of this machine."""
    from bitwright.base.tools.finder import locate
    from bitwright.build.target import list_boards

    output, boards = Output(json), list_boards()
    rows = [
        (b.name, b.description, ", ".join(b.targets), f"{b.uart_baud}",
         ", ".join(name for name in b.loaders if locate(name)) or "none installed")
        for b in boards
    ]  # fmt: skip
    ports = _ports()
    if json:
        names = ("name", "description", "targets", "baud", "loaders")
        output.value(
            {
                "boards": [dict(zip(names, row, strict=True)) for row in rows],
                "ports": [{"port": p.name, "what": p.description, "board": p.board} for p in ports],
            }
        )
        return
    output.table("boards", ("name", "description", "targets", "baud", "loaders here"), rows)
    output.table(
        "serial ports",
        ("port", "what", "may be"),
        [(port.name, port.description, port.board) for port in ports],
        "" if ports else "no serial port; without a board: bitwright board RUN --simulated",
    )


@app.command()
def load(
    subject: Annotated[
        Path, typer.Argument(metavar="RUN|BITSTREAM", help="A run directory or a bitstream file.")
    ],
    board: Annotated[str, typer.Option("--board", help="A board's name or TOML file.")] = "ulx3s",
    loader: Annotated[
        str | None, typer.Option("--loader", help="Which program; else the first that is there.")
    ] = None,
    json: Json = False,
) -> None:
    """Load a bitstream into a board (until its power goes)."""
    from bitwright.build.loaders import load_bitstream
    from bitwright.build.target import load_board
    from bitwright.pipeline.board_subject import bitstream_of

    output = Output(json)
    file = bitstream_of(subject)
    with output.progress() as progress:
        progress("loading the bitstream", 0, 0)
        command = load_bitstream(file, load_board(board), loader=loader)
    if not output.answered({"bitstream": str(file), "command": command}):
        output.say(f"loaded {file}; next: bitwright board run {subject} --port PORT")


@app.command()
def run(
    subject: Subject,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[IMAGES|FOLDER|ARRAY.npy]...",
            help="What to send: image files, or arrays of levels (integers) or of the numbers that "
            "they are made of (floats); by default what the run was tested on.",
        ),
    ] = None,
    port: Annotated[
        str | None, typer.Option("--port", help="Serial port (`bitwright board list`).")
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Simulate the board's RTL; no board is needed.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="So many images at most.")
    ] = None,
    faults: FaultShare = 0.0,
    seed: FaultSeed = 0,
    json: Json = False,
) -> None:
    """Send images; print labels and scores; compare them with the integer graph."""
    from bitwright.pipeline.board import run_on_board
    from bitwright.pipeline.board_subject import find_subject

    if simulated and port is not None:
        raise RecipeError("a simulated board has a port of its own", where="--port")
    if faults and not simulated:
        raise RecipeError("only a simulated line can be made worse", where="--faults")
    output = Output(json)
    found = find_subject(subject)
    if not simulated and port is None:
        port = _only_port()
    with output.progress() as progress:
        result = run_on_board(
            found,
            list(images or ()),
            port=port,
            simulated=simulated,
            faults=_faults(faults, seed),
            count=count,
            progress=progress,
        )
    if not output.answered(_as_json(result)):
        _show(output, result)
    if result.differences:
        raise typer.Exit(MismatchError.exit_code)


@app.command()
def serve(
    subject: Subject,
    host: Annotated[
        Path | None,
        typer.Option(
            "--host",
            metavar="FOLDER",
            help="Write board.json and the host in C there, as they lie beside a bitstream.",
        ),
    ] = None,
    faults: FaultShare = 0.0,
    seed: FaultSeed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Simulate a board for hosts of your own: say its port, and go on until Ctrl-C."""
    from bitwright.base.claims import claimed
    from bitwright.host.board_files import HOST_FILES, export_host
    from bitwright.pipeline.board import simulated_board
    from bitwright.pipeline.board_subject import find_subject

    output = Output(json)
    files = () if host is None else tuple(host / name for name in HOST_FILES)
    with ExitStack() as stack:
        with claimed(*files, force=force), output.progress() as progress:
            progress("compiling the simulated board", 0, 0)
            found = find_subject(subject)
            board, description, _ = simulated_board(found, stack, None, progress)
            if host is not None:
                make_folder(host)
                export_host(description, host)
        running = stack.enter_context(board.start(_faults(faults, seed)))
        told = {"port": running.port, "design": description.name, "digest": description.digest}
        if not output.answered(told):
            output.say(f"{description.name} on {running.port}, until Ctrl-C")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            running.wait()


def _faults(share: float, seed: int) -> Faults:
    from bitwright.build.simulated import Faults

    return Faults(share / 3, share / 3, share / 3, seed)


def _ports() -> list[Any]:
    from bitwright.build.target import list_boards
    from bitwright.host import serial_ports

    known = {usb: board.name for board in list_boards() for usb in board.usb}
    return serial_ports({(int(usb[:4], 16), int(usb[5:], 16)): name for usb, name in known.items()})


def _only_port() -> str:
    """The port of the one board that is plugged in.

    Raises:
        RecipeError: there is none, or more than one.
    """
    ports = [port for port in _ports() if port.board]
    if len(ports) != 1:
        said = ", ".join(port.name for port in ports) or "none"
        raise RecipeError(
            f"one board must be plugged in, or a port named; found: {said}",
            where="--port",
            hint="`bitwright board list` shows all ports; --simulated needs no board",
        )
    return str(ports[0].name)


def _as_json(result: BoardResult) -> dict[str, Any]:
    from dataclasses import asdict

    labels = result.labels
    return {
        "design": result.description.name,
        "digest": result.description.digest,
        "simulated": result.line is not None,
        "images": [
            {
                "name": name,
                "label": None if labels is None else int(labels[k]),
                "class": _class(result, k),
                "outputs": {key: found[k].tolist() for key, found in result.outputs.items()},
            }
            for k, name in enumerate(result.names)
        ],
        "compared": result.compared,
        "differences": result.differences,
        "images_per_second": {
            "here": result.rate,
            "line": result.line_rate,
            "core": result.core_rate,
        },
        "core_cycles": result.cycles,
        "predicted_cycles": result.description.interval,
        "link": asdict(result.statistics),
        "simulation": None if result.line is None else asdict(result.line),
    }


def _show(output: Output, result: BoardResult) -> None:
    rows, noun = [], result.noun
    for k, name in enumerate(result.names[:_SHOWN]):
        label = "" if result.labels is None else _class(result, k)
        rows.append((name, label, _best_scores(result, k)))
    more = len(result.names) - len(rows)
    note = f"and {more} more (--json has all)" if more > 0 else ""
    output.table("answers", (noun.one, "label", "highest scores"), rows, note)
    statistics, where = result.statistics, "simulated board" if result.line else "board"
    output.say(f"{len(result.names)} {noun.many} through the {where}, {statistics.seconds:.1f} s")
    if result.compared:
        output.say(
            f"{result.compared} values compared with the integer graph: {result.differences} differ"
        )
    else:
        output.say("nothing to compare with: the design has no integer graph")
    output.say(f"{noun.many} a second: {_rates(result)}")
    if result.line is not None and result.line.damaged:
        output.say(
            f"line: {result.line.damaged} of {result.line.to_board[0] + result.line.from_board[0]} "
            f"bytes lost, flipped or repeated; {statistics.repeated_frames} answers asked for "
            f"again, {statistics.repeated_bytes} bytes sent again"
        )


def _rates(result: BoardResult) -> str:
    description = result.description
    parts = []
    if result.line is None:
        parts.append(f"{result.rate:.0f} over the line, measured")
    else:
        parts.append(f"{result.line_rate:.0f} at most over a line of {result.baud:.0f} baud")
    if description.interval:
        parts.append(
            f"{result.core_rate:.0f} in the core ({description.interval} cycles "
            f"{result.noun.each} at {description.clock_mhz:g} MHz)"
        )
    if result.cycles:
        parts.append(
            f"{result.cycles} cycles for one {result.noun.one} in the core, timed by the board"
        )
    return "; ".join(parts)


def _class(result: BoardResult, k: int) -> str:
    if result.labels is None:
        return ""
    label, classes = int(result.labels[k]), result.description.classes
    return classes[label] if 0 <= label < len(classes) else str(label)


def _best_scores(result: BoardResult, k: int) -> str:
    found = next(iter(result.outputs.values()))[k]
    best = sorted(range(len(found)), key=lambda i: (-found[i], i))[:3]
    classes = result.description.classes
    named = (classes[i] if len(classes) == len(found) else str(i) for i in best)
    return ", ".join(f"{name}: {found[i]}" for name, i in zip(named, best, strict=True))
