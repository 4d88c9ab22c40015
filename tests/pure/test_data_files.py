# SPDX-License-Identifier: Apache-2.0
"""MNIST and CIFAR-10 files: reading, downloading, and every way in which they can be broken."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.archives import gunzip
from bitwright.base.errors import DataError
from bitwright.data import cifar, load_dataset, mnist
from bitwright.data.files import download
from bitwright.data.mnist import parse_idx

COUNTS = {"train": 60, "t10k": 20}


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    """Four small IDX files with known pixels: image n is filled with n."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, count in COUNTS.items():
        numbers = np.arange(count)
        images = np.broadcast_to(numbers[:, None, None], (count, 5, 4))
        _put(folder / f"{prefix}-images-idx3-ubyte.gz", idx_bytes(images))
        _put(folder / f"{prefix}-labels-idx1-ubyte.gz", idx_bytes(numbers % 10))
    return folder


def _put(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("inside", [True, False], ids=["direct", "sub-folder"])
def test_mnist_is_found_in_a_folder(mnist_folder: Path, inside: bool) -> None:
    splits = load_dataset("mnist", mnist_folder if inside else mnist_folder.parent)
    assert splits.image_shape == (5, 4, 1)
    assert len(splits.test) == 20
    assert len(splits.train) + len(splits.validation) == 60
    for part in (splits.train, splits.validation):
        for sample in part:
            assert sample.image.max() == sample.image.min() == sample.index
            assert sample.label == sample.index % 10
    assert splits.test[3].index == 63  # numbered after the training images


def test_mnist_is_found_through_the_environment_and_unpacked_files_do(
    mnist_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in list(mnist_folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    monkeypatch.setenv("BITWRIGHT_DATA", str(mnist_folder.parent))
    assert len(load_dataset("mnist").test) == 20


def _truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte.gz", _truncate, "no whole gzip file"),
        ("train-labels-idx1-ubyte.gz", lambda _: b"", "no whole gzip file|IDX files begin"),
        ("t10k-images-idx3-ubyte.gz", lambda _: b"<html>not found</html>", "no whole gzip file"),
        (
            "t10k-labels-idx1-ubyte.gz",
            lambda _: gzip.compress(idx_bytes(np.zeros(19))),
            "20 images but 19 labels",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            lambda _: gzip.compress(idx_bytes(np.full(20, 10))),
            "label 10 is no digit",
        ),
        (
            "train-images-idx3-ubyte.gz",
            lambda c: gzip.compress(gzip.decompress(c)[:-1]),
            "promises 1200 bytes",
        ),
        (
            "train-images-idx3-ubyte.gz",
            lambda _: gzip.compress(idx_bytes(np.zeros((60, 4, 4)))),
            r"training images are \(4, 4, 1\)",
        ),
    ],
)
def test_broken_mnist_files_are_named(mnist_folder: Path, name: str, change, message: str) -> None:
    path = mnist_folder / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load_dataset("mnist", mnist_folder)
    if "training images are" not in message:
        assert name in str(caught.value)


def test_a_flipped_bit_in_a_packed_file_is_noticed(mnist_folder: Path) -> None:
    path = mnist_folder / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(DataError, match="train-images"):
        load_dataset("mnist", mnist_folder)


def test_a_missing_mnist_file_is_named(mnist_folder: Path) -> None:
    (mnist_folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is missing"):
        load_dataset("mnist", mnist_folder)


def test_an_explicit_folder_without_mnist_is_an_error_and_no_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no mnist files here") as caught:
        load_dataset("mnist", tmp_path)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begin with 0000"),
        (b"\x1f\x8b\x08\x00", "begin with 0000"),
        (b"\0\0\x0d\x01\0\0\0\0", "unsigned bytes"),
        (b"\0\0\x08\x00", "1 to 4 axes"),
        (b"\0\0\x08\x03\0\0", "ends inside its header"),
        (b"\0\0\x08\x01\0\0\0\x02\x01", "promises 2 bytes"),
        (b"\0\0\x08\x01\0\0\0\x01\x01\x01", "promises 1 bytes"),
    ],
)
def test_what_is_no_idx_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_idx(content, "here.idx")
    assert caught.value.where == "here.idx"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "www"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/", folder
        http.shutdown()
        thread.join()


def test_a_download_is_checked_unpacked_and_kept_whole(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = server
    body = b"pixels" * 1000
    (folder / "good.gz").write_bytes(gzip.compress(body))
    (folder / "wrong.gz").write_bytes(gzip.compress(b"other"))
    (folder / "cut.gz").write_bytes(gzip.compress(body)[:20])
    target = tmp_path / "kept" / "file.gz"
    digest = hashlib.sha256(body).hexdigest()
    seen: list[int] = []
    mirrors = [url + name for name in ("absent.gz", "wrong.gz", "cut.gz", "good.gz")]
    download(mirrors, target, digest, unpack=gunzip, progress=lambda _, done, __: seen.append(done))
    assert gzip.decompress(target.read_bytes()) == body
    assert seen
    assert [path.name for path in target.parent.iterdir()] == ["file.gz"]

    bad = tmp_path / "kept" / "other.gz"
    with pytest.raises(DataError, match="download failed") as caught:
        download(mirrors[:3], bad, digest, unpack=gunzip)
    assert "404" in str(caught.value) and "SHA-256 is" in str(caught.value)
    assert not bad.exists()


def test_mnist_downloads_into_the_cache_once(
    server: tuple[str, Path],
    mnist_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, folder = server
    digests = {}
    for path in mnist_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
        digests[path.stem] = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
    monkeypatch.setattr(mnist, "MIRRORS", (url,))
    monkeypatch.setattr(mnist, "SHA256", digests)
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BITWRIGHT_DATA", raising=False)
    assert len(load_dataset("mnist").test) == 20
    for path in folder.iterdir():
        path.unlink()
    assert len(load_dataset("mnist").test) == 20  # from the cache: the server has nothing any more


def test_the_real_mnist_files_have_the_published_checksums(data_dir: Path) -> None:
    folder = mnist.find(data_dir)
    if folder is None:
        pytest.skip(f"no MNIST in {data_dir}")
    for name, digest in mnist.SHA256.items():
        content = gzip.decompress((folder / f"{name}.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == digest
    splits = load_dataset("mnist", data_dir)
    assert np.bincount(splits.test.labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert len(splits.train) + len(splits.validation) == 60_000


# CIFAR-10 ---------------------------------------------------------------------------------------


def _cifar_arrays(seed: int, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.RandomState(seed).randint(0, 256, (count, 3072)).astype(np.uint8)
    return rows, np.arange(count) % 10


def _python_batch(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """What Python 2's pickle writes, protocol 2: the opcodes of the official batches."""
    pixels = rows.tobytes()
    out = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03"
    out += b"U\x06labelsq\x04]q\x05("
    out += b"".join(bytes([0x4B, label]) for label in labels) + b"eU\x04dataq\x06"
    out += b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09"
    out += b"U\x01bq\x0a\x87q\x0bRq\x0c(K\x01K\x14M\x00\x0c\x86q\x0d"
    out += b"cnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03U\x01|q\x12NNNJ\xff\xff"
    out += b"\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b\x89T" + struct.pack("<i", len(pixels)) + pixels
    return out + b"q\x14tq\x15bU\x09filenamesq\x16]q\x17U\x01aau."


def _archive(path: Path, kind: str) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for number, batch in enumerate(cifar.CIFAR10.batches):
            rows, labels = _cifar_arrays(number)
            if kind == "binary":
                body = np.hstack([labels[:, None].astype(np.uint8), rows]).tobytes()
                name = f"cifar-10-batches-bin/{batch}.bin"
            else:
                body, name = _python_batch(rows, labels), f"cifar-10-batches-py/{batch}"
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar_is_read_from_the_official_archives(tmp_path: Path, kind: str, packed: bool) -> None:
    path = tmp_path / f"cifar-10-{kind}.tar.gz"
    _archive(path, kind)
    if not packed:
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path, filter="data")
        path.unlink()
    splits = load_dataset("cifar10", tmp_path)
    assert splits.image_shape == (32, 32, 3)
    assert splits.classes == cifar.CIFAR10.classes
    rows, labels = _cifar_arrays(5)
    assert np.array_equal(splits.test.labels, labels)
    planes = rows.reshape(-1, 3, 32, 32)
    assert np.array_equal(splits.test.images[:, 7, 9, 2], planes[:, 2, 7, 9])
    training, _ = _cifar_arrays(0)
    sample = splits.train[0]
    assert np.array_equal(sample.image.transpose(2, 0, 1).ravel(), training[sample.index])
    assert len(splits.train) + len(splits.validation) == 100


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_cifar_100_has_fine_labels_behind_coarse_ones(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / f"cifar-100-{kind}"
    folder.mkdir()
    for number, batch in enumerate(("train", "test")):
        rows, _ = _cifar_arrays(number, count=200)
        fine, coarse = np.arange(200) % 100, np.arange(200) % 20
        if kind == "binary":
            body = np.hstack([np.stack([coarse, fine], 1).astype(np.uint8), rows]).tobytes()
            (folder / f"{batch}.bin").write_bytes(body)
        else:
            body = _python_batch(rows, fine).replace(b"U\x06labels", b"U\x0bfine_labels")
            (folder / batch).write_bytes(body)
    splits = load_dataset("cifar100", tmp_path)
    assert splits.num_classes == 100
    assert np.array_equal(splits.test.labels, np.arange(200) % 100)
    rows, _ = _cifar_arrays(1, count=200)
    assert np.array_equal(splits.test.images[:, 7, 9, 2], rows.reshape(-1, 3, 32, 32)[:, 2, 7, 9])


def test_broken_cifar_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    _archive(path, "binary")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5000])
    with pytest.raises(DataError, match=r"no whole \.tar\.gz"):
        load_dataset("cifar10", path)
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"no whole \.tar\.gz"):
        load_dataset("cifar10", path)
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(DataError, match=r"data_batch_1.*is missing"):
        load_dataset("cifar10", path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "0 bytes"), (b"\x01" * 3000, "not a multiple"), (b"\x0a" * 3073, "label 10 is not")],
)
def test_broken_binary_batches_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        cifar.parse_binary(content, "batch")


def test_broken_python_batches_are_refused_and_never_executed() -> None:
    rows, labels = _cifar_arrays(0)
    whole = _python_batch(rows, labels)
    with pytest.raises(DataError, match="batch"):
        cifar.parse_python(whole[: len(whole) // 2], "batch")
    with pytest.raises(DataError, match="holds 0 labels"):
        cifar.parse_python(b"cos\nsystem\n(S'exit 1'\ntR.", "batch")
    negative = whole.replace(b"q\x05(K", b"q\x05(J\xff\xff\xff\xffK", 1)
    pixels = struct.pack("<i", rows.size), struct.pack("<i", rows.size + 3072) + bytes(3072)
    with pytest.raises(DataError, match="label -1 is not among the 10 classes"):
        cifar.parse_python(negative.replace(*pixels, 1), "batch")


@pytest.mark.slow
def test_the_real_cifar_images_load(data_dir: Path) -> None:
    if cifar.find(data_dir) is None:
        pytest.skip(f"no CIFAR-10 in {data_dir}")
    splits = load_dataset("cifar10", data_dir)
    assert np.bincount(splits.test.labels).tolist() == [1000] * 10
    assert len(splits.train) + len(splits.validation) == 50_000
