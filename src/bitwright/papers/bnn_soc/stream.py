# SPDX-License-Identifier: Apache-2.0
"""A stream of frames, a queue of those that the network is unsure of, and training on their labels.

The document's last idea (spec 5.9): unknown images are labelled by people, the network is trained
on, and goes back to the device. A source is anything that gives (name, image): a folder that fills
up, frames of a camera, a list.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.bounded import bounded, bounded_reader
from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, file_inside, read_text
from bitwright.base.folders import own_file
from bitwright.base.names import plain_word
from bitwright.papers.bnn_soc.course import model_of
from bitwright.papers.bnn_soc.model import Model, surest_class
from bitwright.papers.bnn_soc.trainer import Trainer

Frame = tuple[str, NDArray[np.uint8]]
LABELS = "labels.csv"
_DIGITS = 9  # of a label
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def folder_source(
    folder: Path, size: tuple[int, int], *, wait_s: float = 0.0, poll_s: float = 0.2
) -> Iterator[Frame]:
    """The pictures of a folder in order of their names, then those that come, until nothing new has
    come for ``wait_s`` seconds.

    Raises:
        DataError: there is no such folder, or a picture is damaged or of another size.
    """
    from bitwright.base.files import read_bytes
    from bitwright.data.decoding import Decoding, decode_image

    if not folder.is_dir():
        raise DataError("is no folder", where=str(folder))
    seen: set[str] = set()
    last = time.monotonic()
    while True:
        new = [p for p in sorted(folder.glob("*.png")) if p.name not in seen]
        for path in new:
            seen.add(path.name)
            levels = decode_image(read_bytes(path), Decoding(grey=True), str(path))[..., 0]
            if levels.shape != size:
                raise DataError(f"expected {size}, got {levels.shape}", where=str(path))
            yield path.name, levels
            last = time.monotonic()
        if time.monotonic() - last >= wait_s:
            return
        time.sleep(poll_s)


@dataclass(frozen=True)
class Seen:
    """A frame as the network sees it; ``sure``: its largest sum leads by enough."""

    name: str
    label: int
    margin: float
    sure: bool


def watch(
    model: Model, source: Iterable[Frame], queue: Path, *, margin: float = 0.02
) -> Iterator[Seen]:
    """Classify a stream; frames with a small lead are kept in ``queue`` to be labelled.

    Args:
        queue: folder; each unsure frame becomes a PNG file, with a row in ``labels.csv`` whose
            label is empty; a label that is there stays when the frame comes again.
        margin: least lead of the largest sum, as a share of the products in a sum.
    """
    from PIL import Image

    product, table = model.cpu(), _Table(queue)
    for name, image in source:
        labels, leads = surest_class(model.settings, model.sums(image[None], product))
        label, lead = int(labels[0]), float(leads[0])
        if lead < margin:
            content = io.BytesIO()
            Image.fromarray(image).save(content, "PNG")
            # Two names may have one plain word: the picture's digest tells the frames apart.
            digest = hashlib.sha256(image.tobytes()).hexdigest()[:12]
            stored = f"{plain_word(Path(name).stem)}-{digest}.png"
            atomic_write(queue / stored, content.getvalue())
            table.note(stored, str(label))
        yield Seen(name, label, lead, lead >= margin)


class _Table:
    """The labels of a queue while it fills: read again only where a person has written, and a new
    row is put behind the others, so that a frame costs as much in a long queue as in a short one.
    """

    def __init__(self, queue: Path) -> None:
        self._queue, self._place = queue, queue / LABELS
        self._rows: dict[str, tuple[str, str, str]] = {}
        self._seen: tuple[int, ...] | None = None  # the file as we have left it

    def note(self, name: str, guess: str) -> None:
        """Keep a frame's row; the label that a person has given stays."""
        if self._seen is not None and self._state() == self._seen:
            row = self._rows.get(name, (name, "", guess))
            if row[2] == guess and (name in self._rows or self._append(row)):
                self._rows[name] = row
                return
        self._rows = {row[0]: row for row in _rows(self._queue)}
        before = self._rows.get(name)
        self._rows[name] = name, before[1] if before else "", guess
        _write(self._queue, list(self._rows.values()))
        self._seen = self._state()

    def _append(self, row: tuple[str, str, str]) -> bool:
        """Put a row behind the others; not where whose the queue is has put another file, or a link
        to one, since it was looked at.
        """
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(row)
        try:
            handle = os.open(self._place, _APPEND)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOENT, errno.ENXIO):
                return False
            raise
        with open(handle, "ab") as file:
            found = os.fstat(handle)
            if _state_of(found) != self._seen or found.st_nlink != 1:
                return False
            file.write(text.getvalue().encode())
            file.flush()
            self._seen = _state_of(os.fstat(handle))
        return True

    def _state(self) -> tuple[int, ...] | None:
        try:
            return _state_of(self._place.lstat())
        except OSError:
            return None


def _state_of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _rows(queue: Path) -> list[tuple[str, str, str]]:
    """(file, label, guess) of the queue.

    Raises:
        RunError: the table is a link that leads out of the queue: it is written again here.
    """
    place = own_file(queue, LABELS)
    return bounded(lambda: _table(place), place) if place.exists() else []


def _table(place: Path) -> list[tuple[str, str, str]]:
    try:
        rows = list(csv.reader(io.StringIO(read_text(place))))[1:]
    except csv.Error as error:
        raise DataError(f"is no table: {error}", where=str(place)) from error
    if any(len(row) != 3 for row in rows):
        raise DataError("expected the columns file, label, guess", where=str(place))
    return [(row[0], row[1].strip(), row[2]) for row in rows]


def _write(queue: Path, rows: Sequence[tuple[str, str, str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("file", "label", "guess"))
    writer.writerows(rows)
    atomic_write(queue / LABELS, text.getvalue())


@bounded_reader
def labelled(queue: Path, size: tuple[int, int], classes: int) -> list[tuple[Frame, int]]:
    """The frames of a queue that somebody has labelled.

    Raises:
        DataError: a label is no class, or a picture is missing, of another size, or has several
            labels.
        RunError: the table of labels is a link that leads out of the queue.
    """
    found = []
    seen: dict[Path, str] = {}  # a row of some bytes is no reason to decode a picture again
    for name, label, _ in _rows(queue):
        if not label:
            continue
        if not label.isdecimal() or len(label) > _DIGITS or int(label) >= classes:
            raise DataError(
                f"{label!r} is no class", where=f"{queue / LABELS}, {name}",
                hint=f"0 to {classes - 1}, or nothing",
            )  # fmt: skip
        place = _place(queue, name)
        if place in seen:
            raise DataError(
                f"{name!r} has a label already, as {seen[place]!r}", where=str(queue / LABELS),
                hint="one row a frame; --passes trains on each of them several times",
            )  # fmt: skip
        seen[place] = name
        found.append(((name, _picture(place, size)), int(label)))
    return found


def _place(queue: Path, name: str) -> Path:
    """Where a frame lies, links followed."""
    try:
        return file_inside(queue, name)
    except (OSError, ValueError) as error:
        raise DataError(f"no such frame: {error}", where=str(queue / LABELS)) from error


def _picture(place: Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    from bitwright.base.files import read_bytes
    from bitwright.data.decoding import Decoding, decode_image

    levels = decode_image(read_bytes(place), Decoding(grey=True), str(place))[..., 0]
    if levels.shape != size:
        raise DataError(f"expected {size}, got {levels.shape}", where=str(place))
    return levels


def retrain(
    model: Model, frames: Sequence[tuple[Frame, int]], *, passes: int = 5, rate: float | None = None
) -> Model:
    """The network trained on with labelled frames, its masters as a start.

    Args:
        rate: of all steps; by default the settings' first one.

    Raises:
        DataError: there are no frames, or the network has no float masters (a packed file).
    """
    if not frames:
        raise DataError("nobody has labelled anything", where="queue")
    if model.settings.binary and all(w.dtype == np.int8 for w in model.weights):
        raise DataError("a packed network cannot learn", hint="take its model.safetensors")
    trainer = Trainer(model.settings, [w.astype(np.float32) for w in model.weights])
    for mine, theirs in zip(trainer.biases, model.biases, strict=True):
        if mine is not None and theirs is not None:
            mine[:] = theirs
    images = np.stack([image for (_, image), _ in frames])
    labels = np.array([label for _, label in frames], dtype=np.int64)
    random = np.random.default_rng(model.settings.seed)
    order = np.concatenate([random.permutation(len(images)) for _ in range(passes)])
    steps = np.full(len(order), model.settings.rate_start if rate is None else rate)
    trainer.train(images, labels, order, steps)
    return model_of(trainer)
