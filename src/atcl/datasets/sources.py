"""Datasets with true labels: the digits of scikit-learn, others from official files; `DATASETS` names them.

They are read from a folder, from official files or from `NAME.npz`, and downloaded where they are missing.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pooch
import torch
from torch import Tensor

from atcl.core.errors import AtclError, one_line
from atcl.datasets import readers
from atcl.datasets.downloads import Remote, download
from atcl.datasets.readers import NumpyArray
from atcl.datasets.truth import Split, Truth


@dataclass(frozen=True)
class Dataset:
    """A training and a test set of images, with their true labels."""

    train: Split
    test: Split

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return self.train.truth.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class Source:
    """A dataset with official files: their names, digests and reader."""

    name: str
    npz: str  # the name, without .npz, of a file that holds all four arrays
    remotes: tuple[Remote, ...]
    read: Callable[[Sequence[Path]], dict[str, NumpyArray]]
    sizes: tuple[int, int]  # images of the official training and test set
    classes: int = 10

    def __call__(self, folder: Path | None = None) -> Dataset:
        """Read the dataset from the folder of datasets, and download it first if it is not there.

        Raises:
            AtclError: a file is missing, damaged or not the official one.
        """
        place = data_folder(folder)
        if (file := place / f"{self.npz}.npz").is_file():
            return _dataset(readers.npz(file), self.classes, file)
        found = [remote.find(place) for remote in self.remotes]
        return self._official(found if any(found) else self._downloaded(place), place)

    def _official(self, found: Sequence[Path | None], place: Path) -> Dataset:
        paths = []
        for remote, path in zip(self.remotes, found, strict=True):
            if path is None:
                raise AtclError(
                    f"{remote.path(place)} is missing, while other files of {self.name} are there: "
                    "add it, or remove them"
                )
            remote.verify(path)
            paths.append(path)
        arrays = self.read(paths)
        sizes = len(arrays["x_train"]), len(arrays["x_test"])
        if sizes != self.sizes:
            raise AtclError(
                f"{self.name} in {place} has {sizes} training and test images; "
                f"the official files have {self.sizes}"
            )
        return _dataset(arrays, self.classes, place)

    def _downloaded(self, place: Path) -> list[Path]:
        try:
            if os.environ.get("ATCL_OFFLINE"):
                raise AtclError("$ATCL_OFFLINE forbids a download")
            return [download(remote, place, say=partial(print, file=sys.stderr)) for remote in self.remotes]
        except AtclError as error:
            files = ", ".join(str(remote.path(Path())) for remote in self.remotes)
            raise AtclError(
                f"{self.name} was not found: {place} has neither {self.npz}.npz nor {files}; {error}; "
                "put the files there, or name another folder with --data-dir or $ATCL_DATA"
            ) from None


@dataclass(frozen=True)
class Release:
    """A dataset that was released with complementary labels, with its images in an order of its own."""

    file: str
    images: int  # in the official training set
    classes: int
    test: Callable[[Path], tuple[NumpyArray, NumpyArray]]  # reads the test set from the folder of datasets

    def __call__(self, folder: Path | None = None) -> Dataset:
        """Read the images and their true labels; `FromFile` reads the complementary labels of the file.

        Raises:
            AtclError: a file is missing or damaged.
        """
        place = data_folder(folder)
        if not (path := place / self.file).is_file():
            raise AtclError(
                f"{path} is not there: get {self.file} from its authors (docs/labels.md), "
                "and put it there or name a folder with --data-dir"
            )
        (x, y), (x_test, y_test) = readers.climage(path), self.test(place)
        if len(x) != self.images:
            raise AtclError(f"{path} has {len(x)} images; the released file has {self.images}")
        return _dataset({"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}, self.classes, path)


def data_folder(folder: Path | None = None) -> Path:
    """Return the folder of datasets: the given one, else $ATCL_DATA, else the user's cache."""
    named = folder or os.environ.get("ATCL_DATA")
    return Path(named).expanduser() if named else Path(pooch.os_cache("atcl"))


def digits(folder: Path | None = None) -> Dataset:
    """The 1,797 handwritten digits of 8x8 pixels in scikit-learn: 1,400 to train on, 397 to test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = np.rint(found.images[order] * (255 / 16)).astype(np.uint8)
    y = found.target[order]
    arrays = {"x_train": x[:1400], "y_train": y[:1400], "x_test": x[1400:], "y_test": y[1400:]}
    return _dataset(arrays, 10, Path("digits"))


def _read_idx(paths: Sequence[Path]) -> dict[str, NumpyArray]:
    return {
        name: readers.idx(path)
        for name, path in zip(("x_train", "y_train", "x_test", "y_test"), paths, strict=True)
    }


def _read_cifar(paths: Sequence[Path], train: Sequence[str], test: str, labels: str) -> dict[str, NumpyArray]:
    (path,) = paths
    batches = [readers.cifar(path, name, labels) for name in (*train, test)]
    x, y = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
    return {"x_train": x, "y_train": y, "x_test": batches[-1][0], "y_test": batches[-1][1]}


def _read_svhn(paths: Sequence[Path]) -> dict[str, NumpyArray]:
    train, test = (readers.svhn(path) for path in paths)
    return {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}


IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _idx_source(name: str, npz: str, addresses: tuple[str, ...], packed: str, content: str) -> Source:
    # the files of all sets of this family have the same names, so each set has a folder
    digests = zip(IDX, packed.split(), content.split(), strict=True)
    remotes = tuple(
        Remote(f"{file}.gz", md5, addresses, under=name, unpacked=file, content=inside)
        for file, md5, inside in digests
    )
    return Source(name, npz, remotes, _read_idx, (60_000, 10_000))


def _cifar_source(
    name: str, file: str, folder: str, md5: str, train: Sequence[str], test: str, labels: str, classes: int
) -> Source:
    addresses = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
    read = partial(_read_cifar, train=train, test=test, labels=labels)
    remote = Remote(file, md5, addresses, unpacked=folder)
    return Source(name, name, (remote,), read, (50_000, 10_000), classes)


_HOUSE_NUMBERS = ("http://ufldl.stanford.edu/housenumbers/",)

SOURCES: dict[str, Source] = {
    "mnist": _idx_source(
        "mnist",
        "mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
        "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
        "6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624 "
        "2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637",
    ),
    "kuzushiji": _idx_source(
        "kuzushiji",
        "kmnist",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        "bdb82020997e1d708af4cf47b453dcf7 e144d726b3acfaa3e44228e80efcd344 "
        "5c965bf0a639b31b8f53240b1b52f4d7 7320c461ea6c1c855c0b718fb2a4b134",
        "92be26ec9822e900ac425d0a0aa84ced 949e75301f8813e0dc5800dcc320fc52 "
        "bf305b8cd328700fbc17f5acbc2856d2 9f55f451c0988b028eccdf7d5cc265ab",
    ),
    "fashion": _idx_source(
        "fashion",
        "fashion",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
        "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
        "f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9 "
        "8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965",
    ),
    "cifar10": _cifar_source(
        "cifar10",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        "c58f30108f718f92721af3b95e74349a",
        train=[f"data_batch_{number}" for number in range(1, 6)],
        test="test_batch",
        labels="labels",
        classes=10,
    ),
    "cifar100": _cifar_source(
        "cifar100",
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        "eb9058c3a382ffc7106e4002c42a8d85",
        train=["train"],
        test="test",
        labels="fine_labels",
        classes=100,
    ),
    "svhn": Source(
        "svhn",
        "svhn",
        (
            Remote("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", _HOUSE_NUMBERS, under="svhn"),
            Remote("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", _HOUSE_NUMBERS, under="svhn"),
        ),
        _read_svhn,
        (73_257, 26_032),
    ),
}


def _cifar_test(place: Path, name: str, member: str, labels: str) -> tuple[NumpyArray, NumpyArray]:
    (remote,) = SOURCES[name].remotes
    if (path := remote.find(place)) is None:
        raise AtclError(
            f"{remote.path(place)} is missing, whose test images belong to this release: put it there"
        )
    remote.verify(path)
    return readers.cifar(path, member, labels)


def _released_test(place: Path, file: str) -> tuple[NumpyArray, NumpyArray]:
    return readers.climage(place / file)


_CIFAR10_TEST = partial(_cifar_test, name="cifar10", member="test_batch", labels="labels")
# the 20 superclasses, as CIFAR-100 numbers them
_CIFAR20_TEST = partial(_cifar_test, name="cifar100", member="test", labels="coarse_labels")
_MICRO10_TEST = partial(_released_test, file="clmicro_imagenet10_test.pkl")
_MICRO20_TEST = partial(_released_test, file="clmicro_imagenet20_test.pkl")

RELEASES: dict[str, Release] = {
    "clcifar10": Release("clcifar10.pkl", 50_000, 10, _CIFAR10_TEST),
    "aclcifar10": Release("aclcifar10.pkl", 50_000, 10, _CIFAR10_TEST),
    "clcifar20": Release("clcifar20.pkl", 50_000, 20, _CIFAR20_TEST),
    "aclcifar20": Release("aclcifar20.pkl", 50_000, 20, _CIFAR20_TEST),
    "clmicro_imagenet10": Release("clmicro_imagenet10_train.pkl", 5_000, 10, _MICRO10_TEST),
    "clmicro_imagenet20": Release("clmicro_imagenet20_train.pkl", 10_000, 20, _MICRO20_TEST),
}

DATASETS: dict[str, Callable[[Path | None], Dataset]] = {"digits": digits, **SOURCES, **RELEASES}


def _dataset(arrays: dict[str, NumpyArray], classes: int, place: Path) -> Dataset:
    """Return arrays as a dataset, after checks.

    Raises:
        AtclError: they do not fit; the message begins with `place`, where they come from.
    """
    try:
        for name, array in arrays.items():
            if name.startswith("y") and not (array.ndim == 1 and array.dtype.kind in "iu"):
                raise AtclError(
                    f"{name} holds one whole number for each image; got {array.dtype} of shape {array.shape}"
                )
            pictures = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
            if name.startswith("x") and not pictures:
                raise AtclError(f"{name} has the shape (n, H, W) or (n, H, W, channels); got {array.shape}")
            if array.size == 0:
                raise AtclError(f"{name} is empty: its shape is {array.shape}")
        shapes = [arrays[f"x_{part}"].shape[1:] for part in ("train", "test")]
        if shapes[0] != shapes[1]:
            raise AtclError(f"training and test images differ in shape: {shapes[0]} and {shapes[1]}")
        train, test = (
            Split(
                _images(arrays[f"x_{part}"]),
                Truth(torch.from_numpy(arrays[f"y_{part}"].astype(np.int64)), classes),
            )
            for part in ("train", "test")
        )
    except AtclError as error:
        raise AtclError(f"{place}: {error}") from None
    return Dataset(train, test)


def _images(x: NumpyArray) -> Tensor:
    """Return (n, C, H, W) from (n, H, W) or (n, H, W, C)."""
    try:
        images = torch.from_numpy(np.ascontiguousarray(x))
    except TypeError:
        raise AtclError(f"images must be numbers, not {one_line(x.dtype, 60)}") from None
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
