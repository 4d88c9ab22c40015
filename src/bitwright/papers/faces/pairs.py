# SPDX-License-Identifier: Apache-2.0
"""Pairs of faces: the files of LFW, pairs made from any faces, and a protocol ready to run.

The protocol is that of Labeled Faces in the Wild (Huang et al. 2007): on view 1 a threshold is
chosen, on the ten folds of view 2 it is measured; half of the pairs of every fold show one person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.files import read_text
from bitwright.papers.faces.images import FaceKey, FaceSet

_SHOWN = 5
_MOST_DIGITS = 9


@dataclass(frozen=True)
class Pair:
    """Two faces by name; ``matched`` if they show one person."""

    first: FaceKey
    second: FaceKey

    @property
    def matched(self) -> bool:
        return self.first[0] == self.second[0]


@dataclass(frozen=True, eq=False)
class PairRows:
    """Pairs as rows of a table of faces.

    Attributes:
        first, second: (P,) rows.
        matched: (P,) whether both show one person.
        fold: (P,) number of the fold, 0 for all pairs of view 1.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    matched: NDArray[np.bool_]
    fold: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.fold.max()) + 1 if len(self.fold) else 0


@dataclass(frozen=True, eq=False)
class FaceProtocol:
    """Everything that a verification test needs.

    Attributes:
        faces: of both views.
        view1: pairs that choose the threshold.
        view2: pairs that are measured, in folds.
        dropped: what was left out because pictures are missing; empty if nothing.
    """

    name: str
    faces: FaceSet
    view1: PairRows
    view2: PairRows
    dropped: str = ""


def parse_pairs(text: str, where: str = "pairs") -> tuple[tuple[Pair, ...], ...]:
    """Read a pairs file of LFW.

    Its first line is ``FOLDS COUNT`` (as in ``pairs.txt``) or ``COUNT`` (one fold, as in
    ``pairsDevTrain.txt``). Every fold has COUNT lines ``NAME N M``, then COUNT lines
    ``NAME N OTHER M``; fields are separated by tabs.

    Raises:
        DataError: a line is malformed or missing, or names a person as no folder is called.
    """
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    head = lines[0].split() if lines else []
    if not 1 <= len(head) <= 2 or not all(
        word.isdecimal() and len(word) <= _MOST_DIGITS for word in head
    ):
        raise DataError(
            f"expected FOLDS and COUNT, or COUNT, found {' '.join(head)[:40]!r}",
            where=f"{where}:1",
            hint="give a file such as pairs.txt or pairsDevTrain.txt of LFW",
        )
    folds, count = (int(word) for word in (head if len(head) > 1 else ["1", *head]))
    if folds < 1 or count < 1 or len(lines) != 1 + 2 * folds * count:
        raise DataError(
            f"{folds} folds of {count} + {count} pairs need {1 + 2 * folds * count} lines, "
            f"found {len(lines)}",
            where=where,
            hint="the file is cut short or its first line is wrong",
        )
    pairs = [
        _parse_line(line, (number // count) % 2 == 0, f"{where}:{number + 2}")
        for number, line in enumerate(lines[1:])
    ]
    size = 2 * count
    return tuple(tuple(pairs[fold * size : (fold + 1) * size]) for fold in range(folds))


def _parse_line(line: str, matched: bool, where: str) -> Pair:
    words = line.split("\t") if "\t" in line else line.split()
    words = [word.strip() for word in words]
    try:
        if matched:
            name, first, second = words
            pair = Pair((name, int(first)), (name, int(second)))
        else:
            name, first, other, second = words
            pair = Pair((name, int(first)), (other, int(second)))
    except ValueError as error:
        form = "NAME N M" if matched else "NAME N OTHER M"
        raise DataError(f"expected {form}, found {line[:60]!r}", where=where) from error
    if pair.matched != matched or pair.first == pair.second:
        found = "one picture twice" if pair.first == pair.second else f"two pictures of {name}"
        raise DataError(f"{found} where {'a' if matched else 'no'} match belongs", where=where)
    for person in {pair.first[0], pair.second[0]}:
        if person in (".", "..") or set("/\\\0") & set(person):  # it becomes one of a folder
            raise DataError(f"{person[:60]!r} is the name of no folder", where=where)
    return pair


def read_pairs(path: str | Path) -> tuple[tuple[Pair, ...], ...]:
    """Read a pairs file; see `parse_pairs`.

    Raises:
        DataError: it cannot be read or is malformed.
    """
    hint = "fetch pairs.txt and pairsDevTrain.txt from the web page of LFW"
    return parse_pairs(read_text(Path(path), hint=hint), str(path))


def make_pairs(
    keys: Iterable[FaceKey], folds: int, count: int | None = None, *, seed: int = 0
) -> tuple[tuple[Pair, ...], ...]:
    """Make folds of pairs from the faces that there are, the same for the same arguments.

    People are dealt to the folds, so that no matched pair of a person is in two of them; the first
    face of every mismatched pair is of the fold's own people, the second of anybody else. No pair
    occurs twice.

    Args:
        keys: names of the faces.
        folds: how many.
        count: matched pairs of a fold, and mismatched ones; by default as many as every fold can
            have.

    Raises:
        DataError: too few people or faces.
    """
    faces: dict[str, list[FaceKey]] = {}
    for key in sorted(set(keys)):
        faces.setdefault(key[0], []).append(key)
    if folds < 1 or len(faces) < max(folds, 2):
        raise DataError(f"{folds} folds need as many people, found {len(faces)}", where="pairs")
    generator = np.random.default_rng(seed)
    people = [list(faces)[i] for i in generator.permutation(len(faces))]
    groups = [people[fold::folds] for fold in range(folds)]
    matched = [[Pair(*two) for p in group for two in combinations(faces[p], 2)] for group in groups]
    most = min(len(pairs) for pairs in matched)
    wanted = most if count is None else count
    if not 1 <= wanted <= most:
        raise DataError(
            f"{wanted} matched pairs a fold are asked for, there are {most}",
            where="pairs",
            hint="a person with n pictures gives n (n - 1) / 2 matched pairs",
        )
    used: set[frozenset[FaceKey]] = set()
    result = []
    for group, pairs in zip(groups, matched, strict=True):
        chosen = sorted(generator.permutation(len(pairs))[:wanted])
        own = [key for person in group for key in faces[person]]
        others = _mismatched(own, faces, wanted, used, generator)
        result.append((*(pairs[i] for i in chosen), *others))
    return tuple(result)


def _mismatched(
    own: Sequence[FaceKey],
    faces: Mapping[str, Sequence[FaceKey]],
    count: int,
    used: set[frozenset[FaceKey]],
    generator: np.random.Generator,
) -> list[Pair]:
    """Pairs of two people, every other person about as often as any."""
    possible = [
        Pair(first, second)
        for first in own
        for person in faces
        if person != first[0]
        for second in faces[person]
        if frozenset((first, second)) not in used
    ]
    if len(possible) < count:
        raise DataError(f"only {len(possible)} pairs of two people are left", where="pairs")
    chosen: list[Pair] = []
    for i in generator.permutation(len(possible)):
        names = frozenset((possible[i].first, possible[i].second))
        if len(chosen) < count and names not in used:
            used.add(names)
            chosen.append(possible[i])
    if len(chosen) < count:
        raise DataError(f"only {len(chosen)} pairs of two people are left", where="pairs")
    return chosen


def resolve_pairs(
    folds: Sequence[Sequence[Pair]], faces: FaceSet, *, where: str, drop_missing: bool = False
) -> tuple[PairRows, str]:
    """Names to rows.

    Args:
        drop_missing: leave out pairs with missing pictures, as long as every fold keeps pairs of
            both kinds.

    Returns:
        The pairs, and a sentence about those left out (empty if none).

    Raises:
        DataError: pictures are missing, and dropping was not asked for or leaves a fold empty.
    """
    rows = faces.index()
    named = (key for fold in folds for pair in fold for key in (pair.first, pair.second))
    missing = [key for key in dict.fromkeys(named) if key not in rows]
    note = _missing_note(missing, faces.people) if missing else ""
    if missing and not drop_missing:
        raise DataError(
            note, where=where, hint="complete the pictures, or drop the pairs that name them"
        )
    table = []
    left_out = 0
    for number, fold in enumerate(folds):
        kept = [pair for pair in fold if pair.first in rows and pair.second in rows]
        left_out += len(fold) - len(kept)
        if len({pair.matched for pair in kept}) < 2:
            raise DataError(
                f"fold {number + 1} has not both matched and mismatched pairs. {note}".strip(),
                where=where,
            )
        table += [(rows[p.first], rows[p.second], p.matched, number) for p in kept]
    first, second, matched, fold_of = (np.array(column) for column in zip(*table, strict=True))
    pairs = PairRows(first, second, matched.astype(np.bool_), fold_of)
    return pairs, f"{left_out} pairs left out: {note}" if left_out else ""


def _missing_note(missing: Sequence[FaceKey], people: Sequence[str]) -> str:
    strangers = list(dict.fromkeys(person for person, _ in missing if person not in set(people)))
    shown = ", ".join(f"{person} {number}" for person, number in missing[:_SHOWN])
    note = (
        f"{len(missing)} pictures are missing ({shown}{', ...' if len(missing) > _SHOWN else ''})"
    )
    if strangers:
        names = ", ".join(strangers[:_SHOWN]) + (", ..." if len(strangers) > _SHOWN else "")
        note += f"; of {len(strangers)} people there is none at all ({names})"
    return note
