# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 (Krizhevsky, 2009): 50 000 + 10 000 colour images, 32 x 32, ten classes.

Read from the official binary or Python archive (packed or unpacked), or from images in class
folders (``cifar10-jpg.zip``). Pickles of the Python archive are parsed, never executed.
"""

from __future__ import annotations

import pickletools
import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.data import folders
from bitwright.data.dataset import DataSplits
from bitwright.data.files import Progress, cache_path, download, read_bytes
from bitwright.data.splits import Labelled, Labels, split_two
from bitwright.errors import DataError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SCALE = 1 / 255
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_PLACES = (
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    "cifar10-jpg.zip",
    "cifar10-jpg",
)
_PIXELS = 3 * 32 * 32
_Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def find(place: Path) -> Path | None:
    """The CIFAR-10 archive or folder at or in ``place``, in a sub-folder ``cifar10`` too."""
    if place.is_file():
        return place
    for base in (place, place / "cifar10"):
        if (base / "data_batch_1.bin").is_file() or (base / "data_batch_1").is_file():
            return base
        if (base / "train" / CLASSES[0]).is_dir():
            return base
        for name in _PLACES:
            if (base / name).exists():
                return base / name
    return None


def fetch(progress: Progress) -> Path:
    """Download the official binary archive into the cache and give its path."""
    target = cache_path("cifar10", "cifar-10-binary.tar.gz")
    return download([URL], target, SHA256, progress=progress)


def load(path: Path, *, name: str, validation: float, seed: int, progress: Progress) -> DataSplits:
    """Read any of the known forms of CIFAR-10.

    Raises:
        DataError: a file is missing, corrupt, truncated, or holds something else.
    """
    is_official = path.name.endswith((".tar.gz", ".tgz")) or (
        (path / "data_batch_1.bin").is_file() or (path / "data_batch_1").is_file()
    )
    if not is_official:
        decoding = folders.Decoding(size=(32, 32), grey=False)
        splits = folders.load(
            path,
            decoding,
            name=name,
            validation=validation,
            test=0.2,
            seed=seed,
            progress=progress,
        )
        if splits.classes != CLASSES:
            raise DataError(f"holds the classes {splits.classes}, not CIFAR-10's", where=str(path))
        return splits
    contents = _read_folder(path) if path.is_dir() else _read_tar(path, progress)
    parts = [_parse(contents, batch, path) for batch in BATCHES]
    training = Labelled(
        np.concatenate([images for images, _ in parts[:-1]]),
        np.concatenate([labels for _, labels in parts[:-1]]),
    )
    shared = Labels(name, CLASSES, SCALE, str(path))
    return split_two(training, Labelled(*parts[-1]), shared, validation=validation, seed=seed)


def _read_folder(path: Path) -> dict[str, bytes]:
    wanted = {f"{batch}{suffix}" for batch in BATCHES for suffix in (".bin", "")}
    return {name: read_bytes(path / name) for name in wanted if (path / name).is_file()}


def _read_tar(path: Path, progress: Progress) -> dict[str, bytes]:
    wanted = {f"{batch}{suffix}" for batch in BATCHES for suffix in (".bin", "")}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                handle = archive.extractfile(member) if name in wanted else None
                if handle is not None:
                    contents[name] = handle.read()
                    progress(f"unpacking {path.name}", len(contents), len(BATCHES))
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"is no whole .tar.gz archive: {error}",
            where=str(path),
            hint="the file is corrupt or cut short; delete it and fetch it again",
        ) from error
    return contents


def _parse(contents: dict[str, bytes], batch: str, path: Path) -> _Arrays:
    where = f"{path}:{batch}"
    if f"{batch}.bin" in contents:
        return parse_binary(contents[f"{batch}.bin"], where)
    if batch in contents:
        return parse_python(contents[batch], where)
    raise DataError(
        "is missing",
        where=where,
        hint=f"expected {', '.join(BATCHES)} of the official archive; fetch it again",
    )


def parse_binary(content: bytes, where: str) -> _Arrays:
    """Records of one label byte and 3072 pixel bytes (red, green, blue planes)."""
    record = 1 + _PIXELS
    if not content or len(content) % record:
        raise DataError(
            f"has {len(content)} bytes, not a multiple of {record}",
            where=where,
            hint="the file is corrupt or cut short; fetch it again",
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return _images(records[:, 1:], records[:, 0].astype(np.int64), where)


def parse_python(content: bytes, where: str) -> _Arrays:
    """A batch of the Python archive, read as a list of opcodes: nothing in it is executed.

    Its pickle (protocol 2, written by Python 2) holds the pixels as the one long string and the
    labels as the integers that follow the key ``labels``.
    """
    pixels, labels, in_labels = b"", [], False
    filler = {"MARK", "APPENDS", "EMPTY_LIST", "BINPUT", "LONG_BINPUT"}
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if isinstance(argument, str | bytes):
                raw = argument.encode("latin-1") if isinstance(argument, str) else argument
                pixels = max(pixels, raw, key=len)
                in_labels = raw == b"labels"
            elif in_labels and opcode.name in {"BININT1", "BININT"}:
                labels.append(argument)
            elif opcode.name not in filler:
                in_labels = False
    except (ValueError, UnicodeError) as error:
        raise DataError(
            f"is no CIFAR-10 batch: {error}",
            where=where,
            hint="the file is corrupt or cut short; fetch it again",
        ) from error
    if not labels or len(pixels) != len(labels) * _PIXELS:
        raise DataError(
            f"holds {len(labels)} labels and {len(pixels)} bytes of pixels",
            where=where,
            hint=f"expected {_PIXELS} bytes an image; fetch the archive again",
        )
    rows = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, _PIXELS)
    return _images(rows, np.asarray(labels, dtype=np.int64), where)


def _images(rows: NDArray[np.uint8], labels: NDArray[np.int64], where: str) -> _Arrays:
    if int(labels.max()) >= len(CLASSES):
        raise DataError(f"label {labels.max()} is not among the ten classes", where=where)
    images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels
