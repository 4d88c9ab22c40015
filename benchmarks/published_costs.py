# SPDX-License-Identifier: Apache-2.0
"""Files of costs from printed training times: MuPPET's on ImageNet (Vink 2023, table 3.2).

    python benchmarks/published_costs.py          # writes benchmarks/published_costs/*.toml

The table prints hours of whole runs on an RTX 2080 Ti. What the model takes (seconds of an epoch by
level) is not printed, so most of it is solved for here. Every number in the files says whether it
is given, assumed or solved.

Given: hours F (float32), X (mixed precision), C and I (MuPPET, `current` and `ideal`); 150 epochs
of the baseline, 45 of the float32 phase. Assumed: mixed precision has 150 epochs too; a product in
8 or 16 bits is faster than in float32 by the quotient of the peak rates of the device; 12 and 14
bits run as 16 (the document says so); deciding costs nothing. Solved, with s16 and s8 the quotients
and per epoch f = F/150, x = X/150::

    products(float32) = (f - x) / (1 - 1/s16)        rest = f - products(float32)
    epochs            n8 and n16, whole, that come nearest to I = 45 f + n8 (..) + n16 (..); no
                      level shorter than the switching rule allows (6, 3, 3 and 3 epochs)
    quantizing        = (C - modelled I) / (n8 + n16)

So `mixed` and `current` are identities. `ideal` is a weak check: the printed hours admit whole
numbers of epochs that the rule allows, at the speeds of a data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bitwright.low_precision.config import MuppetSettings
from bitwright.low_precision.costs.cases import shortest_stays
from bitwright.low_precision.costs.devices import load_device
from bitwright.low_precision.ladder import parse_level

FOLDER = Path(__file__).resolve().parent / "published_costs"
BASELINE, FLOAT_EPOCHS = 150, 45
MINUTE = 60.0


@dataclass(frozen=True)
class Printed:
    """One row of the table, in minutes, and its ratios as printed."""

    network: str
    name: str
    float32: int
    mixed: int
    current: int
    ideal: int
    ratios: tuple[float, float, float]


def minutes(text: str) -> int:
    """Of hours:minutes."""
    hours, rest = text.split(":")
    return 60 * int(hours) + int(rest)


def printed(network: str, name: str, times: tuple[str, ...], *ratios: float) -> Printed:
    f, x, c, i = map(minutes, times)
    return Printed(network, name, f, x, c, i, (ratios[0], ratios[1], ratios[2]))


#: Ratios against float32: mixed precision, MuPPET current, MuPPET ideal. AlexNet's 29:20 is printed
#: as 29.20.
TABLE = (
    printed("alexnet", "AlexNet", ("30:13", "29:20", "23:52", "20:25"), 1.03, 1.27, 1.48),
    printed("resnet18", "ResNet-18", ("132:46", "97:25", "100:19", "92:43"), 1.36, 1.32, 1.43),
    printed("googlenet", "GoogLeNet", ("152:28", "122:51", "122:13", "82:38"), 1.24, 1.25, 1.84),
)


@dataclass(frozen=True)
class Solved:
    """Seconds of an epoch, and epochs."""

    rest: float
    products: dict[str, float]
    quantize: float
    eight: int
    sixteen: int


def solve(row: Printed) -> Solved:
    """The equations of the module."""
    device = load_device("rtx-2080-ti")
    rate = {name: device.choice(parse_level(name)).rate for name in ("int8", "float16", "float32")}
    s16, s8 = rate["float16"] / rate["float32"], rate["int8"] / rate["float32"]
    f, x = (MINUTE * each / BASELINE for each in (row.float32, row.mixed))
    products = (f - x) / (1 - 1 / s16)
    rest = f - products
    p16, p8 = products / s16, products / s8
    first, *later = shortest_stays(MuppetSettings(), 5)

    def ideal(eight: int, sixteen: int) -> float:
        return FLOAT_EPOCHS * f + eight * (rest + p8) + sixteen * (rest + p16)

    allowed = product(range(first, BASELINE), range(sum(later), BASELINE))
    eight, sixteen = min(allowed, key=lambda n: abs(ideal(*n) - MINUTE * row.ideal))
    return Solved(
        rest,
        {"float32": products, "float16": p16, "int8": p8},
        (MINUTE * row.current - ideal(eight, sixteen)) / (eight + sixteen),
        eight,
        sixteen,
    )


def document(row: Printed) -> str:
    """The file of one network."""
    found = solve(row)
    few = [found.sixteen // 3, (found.sixteen + 1) // 3, (found.sixteen + 2) // 3]
    names = ("int12", "int14", "int16")
    phases = ",".join(
        f"{level}:{epochs}"
        for level, epochs in zip(
            ("int8", *names, "float32"), (found.eight, *few, FLOAT_EPOCHS), strict=True
        )
    )
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Made by `python benchmarks/published_costs.py`; the equations stand there.",
        f'name = "{row.name}, ImageNet, RTX 2080 Ti (Vink 2023, table 3.2)"',
        'source = "given"',
        "steps = 1  # all times are seconds of an epoch",
        number("rest", found.rest, "solved", "float32 epoch less its products"),
        number("policy", 0.0, "assumed", "not printed"),
        "",
    ]
    for level in ("float32", "float16", "int8", *names):
        kind = level if level in found.products else "float16"
        lines += ["[[level]]", f'name = "{level}"']
        notes = {
            "float32": "from the difference to mixed precision",
            "float16": "float32 by the quotient of peak rates, 4.007",
            "int8": "float32 by the quotient of peak rates, 16.04",
        }
        lines.append(number("products", found.products[kind], "solved", notes[kind]))
        if level.startswith("int"):
            note = "from the difference of current and ideal; weights and gradients included"
            lines.append(number("activations", found.quantize, "solved", note))
        lines.append("")
    lines += [
        "[[schedule]]",
        'name = "MuPPET"',
        f'phases = "{phases}"',
        'note = "45 epochs given, the others solved"',
        "",
        "[facts]  # as printed: minutes of a run, and ratios to float32",
        f"float32 = {row.float32}",
        f"mixed = {row.mixed}",
        f"current = {row.current}",
        f"ideal = {row.ideal}",
        f"ratios = {{mixed = {row.ratios[0]}, current = {row.ratios[1]}, ideal = {row.ratios[2]}}}",
        f"baseline_epochs = {BASELINE}",
    ]
    return "\n".join(lines) + "\n"


def number(name: str, value: float, origin: str, note: str) -> str:
    return f'{name} = {{value = {value:.6g}, origin = "{origin}", note = "{note}"}}'


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for row in TABLE:
        (FOLDER / f"muppet-{row.network}.toml").write_text(document(row))
        print(row.name, solve(row))


if __name__ == "__main__":
    main()
