# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 50 000 + 10 000 colour images, 32 x 32.

Read from the official binary or Python archives (packed or unpacked), or from images in class
folders (such as ``cifar10-jpg.zip``). Pickles of the Python archives are parsed, never executed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.archives import read_tar
from bitwright.base.errors import DataError
from bitwright.base.files import read_bytes
from bitwright.base.pickles import opcodes
from bitwright.base.progress import Progress
from bitwright.data import folders
from bitwright.data.dataset import DataSplits
from bitwright.data.files import cache_path, download
from bitwright.data.splits import Labelled, Labels, split_two

SCALE = 1 / 255
_MOST_LABELS = 200_000
_PIXELS = 3 * 32 * 32
_Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Edition:
    """One of the two data sets.

    Attributes:
        url, sha256: of the official binary archive.
        classes: names in the order of the labels.
        training, test: names of the files inside.
        label_bytes: bytes in front of each image in the binary files; the last one is the label.
        label_key: of the labels in the Python files.
        most_bytes: of a batch that is read: all of them are held at a time.
        places: names of archives and folders under which it is found.
    """

    name: str
    url: str
    sha256: str
    classes: tuple[str, ...]
    training: tuple[str, ...]
    test: str
    label_bytes: int
    label_key: bytes
    most_bytes: int
    places: tuple[str, ...]

    @property
    def batches(self) -> tuple[str, ...]:
        return (*self.training, self.test)


CIFAR10 = Edition(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    classes=tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
    training=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    label_bytes=1,
    label_key=b"labels",
    most_bytes=64 << 20,  # they have 31 MB
    places=(
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "cifar10-jpg.zip",
        "cifar10-jpg",
    ),
)
CIFAR100 = Edition(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    classes=tuple(
        "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
        "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach "
        "couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster "
        "house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree "
        "motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
        "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket "
        "rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
        "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip "
        "turtle wardrobe whale willow_tree wolf woman worm".split()
    ),
    training=("train",),
    test="test",
    label_bytes=2,
    label_key=b"fine_labels",
    most_bytes=256 << 20,  # the training images, all in one, have 154 MB
    places=(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        "cifar100-jpg.zip",
        "cifar100-jpg",
    ),
)
EDITIONS = {edition.name: edition for edition in (CIFAR10, CIFAR100)}


def find(place: Path, edition: Edition = CIFAR10) -> Path | None:
    """The archive or folder at or in ``place``, in a sub-folder of the data set's name too."""
    if place.is_file():
        return place
    for base in (place, place / edition.name):
        if _is_official(base, edition) or (base / "train" / edition.classes[0]).is_dir():
            return base
        for name in edition.places:
            if (base / name).exists():
                return base / name
    return None


def _is_official(folder: Path, edition: Edition) -> bool:
    first = edition.training[0]
    return (folder / f"{first}.bin").is_file() or (folder / first).is_file()


def fetch(progress: Progress, edition: Edition = CIFAR10) -> Path:
    """Download the official binary archive into the cache and give its path."""
    target = cache_path(edition.name, Path(edition.url).name)
    return download([edition.url], target, edition.sha256, progress=progress)


def load(
    path: Path,
    *,
    name: str,
    validation: float,
    seed: int,
    progress: Progress,
    edition: Edition = CIFAR10,
) -> DataSplits:
    """Read any of the known forms.

    Raises:
        DataError: a file is missing, corrupt, truncated, or holds something else.
    """
    packed = path.name.endswith((".tar.gz", ".tgz"))
    if not packed and not _is_official(path, edition):
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
        if splits.classes != edition.classes:
            raise DataError(
                f"holds the classes {splits.classes}, not those of {name}", where=str(path)
            )
        return splits
    read = _read_folder(path, edition) if path.is_dir() else _read_tar(path, edition, progress)
    parts = [_parse(read, batch, path, edition) for batch in edition.batches]
    training = Labelled(
        np.concatenate([images for images, _ in parts[:-1]]),
        np.concatenate([labels for _, labels in parts[:-1]]),
    )
    shared = Labels(name, edition.classes, SCALE, str(path))
    return split_two(training, Labelled(*parts[-1]), shared, validation=validation, seed=seed)


def _read_folder(path: Path, edition: Edition) -> dict[str, bytes]:
    wanted = {f"{batch}{suffix}" for batch in edition.batches for suffix in (".bin", "")}
    return {
        name: read_bytes(path / name, most=edition.most_bytes)
        for name in wanted
        if (path / name).is_file()
    }


def _read_tar(path: Path, edition: Edition, progress: Progress) -> dict[str, bytes]:
    most = edition.most_bytes
    wanted = {f"{batch}{suffix}": most for batch in edition.batches for suffix in (".bin", "")}
    contents: dict[str, bytes] = {}
    for name, content in read_tar(path, wanted):
        contents[name] = content
        progress(f"unpacking {path.name}", len(contents), len(edition.batches))
    return contents


def _parse(contents: dict[str, bytes], batch: str, path: Path, edition: Edition) -> _Arrays:
    where = f"{path}:{batch}"
    if f"{batch}.bin" in contents:
        return parse_binary(contents[f"{batch}.bin"], where, edition)
    if batch in contents:
        return parse_python(contents[batch], where, edition)
    raise DataError(
        "is missing",
        where=where,
        hint=f"expected {', '.join(edition.batches)} of the official archive; fetch it again",
    )


def parse_binary(content: bytes, where: str, edition: Edition = CIFAR10) -> _Arrays:
    """Records of one or two label bytes and 3072 pixel bytes (red, green, blue planes)."""
    front = edition.label_bytes
    record = front + _PIXELS
    if not content or len(content) % record:
        raise DataError(
            f"has {len(content)} bytes, not a multiple of {record}",
            where=where,
            hint="the file is corrupt or cut short; fetch it again",
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return _images(records[:, front:], records[:, front - 1].astype(np.int64), where, edition)


def parse_python(content: bytes, where: str, edition: Edition = CIFAR10) -> _Arrays:
    """A batch of the Python archive, read as a list of opcodes: nothing in it is executed.

    Its pickle (protocol 2, written by Python 2) holds the pixels as the one long string and the
    labels as the integers that follow the key of the edition.
    """
    pixels, labels, in_labels = b"", [], False
    filler = {"MARK", "APPENDS", "EMPTY_LIST", "BINPUT", "LONG_BINPUT"}
    try:
        for name, argument in opcodes(io.BytesIO(content)):
            if isinstance(argument, str | bytes):
                raw = argument.encode("latin-1") if isinstance(argument, str) else argument
                pixels = max(pixels, raw, key=len)
                in_labels = raw == edition.label_key
            elif in_labels and name in {"BININT1", "BININT"}:
                labels.append(argument)
                if len(labels) > _MOST_LABELS:
                    raise ValueError(f"it has more than {_MOST_LABELS} labels")
            elif name not in filler:
                in_labels = False
    except (ValueError, UnicodeError) as error:
        raise DataError(
            f"is no batch of {edition.name}: {error}",
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
    return _images(rows, np.asarray(labels, dtype=np.int64), where, edition)


def _images(
    rows: NDArray[np.uint8], labels: NDArray[np.int64], where: str, edition: Edition
) -> _Arrays:
    count = len(edition.classes)
    for label in (int(labels.min()), int(labels.max())):
        if not 0 <= label < count:
            raise DataError(f"label {label} is not among the {count} classes", where=where)
    images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels
