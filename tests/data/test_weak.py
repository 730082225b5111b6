from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator
from torch.utils.data import Dataset, IterableDataset

from atcl.core.errors import AtclError
from atcl.data.augment import Augmentation
from atcl.data.images import as_float
from atcl.data.weak import WeakData, from_torch_dataset, rule_out, shuffled


def test_an_epoch_visits_every_image_once_in_an_order_of_its_own() -> None:
    order = [torch.cat(list(shuffled(10, 4, Generator().manual_seed(seed)))) for seed in (1, 1, 2)]
    assert sorted(order[0].tolist()) == list(range(10))
    assert torch.equal(order[0], order[1])
    assert not torch.equal(order[0], order[2])
    assert [len(batch) for batch in shuffled(10, 4, Generator())] == [4, 4, 2]


def test_a_crop_is_a_shifted_window_of_the_padded_image(rng: Generator) -> None:
    x = torch.rand(200, 3, 5, 7, generator=rng)
    cropped = Augmentation(padding=2)(x, rng)
    padded = torch.nn.functional.pad(x, [2] * 4)
    offsets = set()
    for image, window in zip(padded, cropped, strict=True):
        places = [
            (i, j) for i in range(5) for j in range(5) if torch.equal(image[:, i : i + 5, j : j + 7], window)
        ]
        assert len(places) == 1
        offsets.add(places[0])
    assert len(offsets) == 25  # every shift occurs


def test_a_flip_mirrors_about_half_of_the_images(rng: Generator) -> None:
    x = torch.rand(400, 1, 2, 3, generator=rng)
    flipped = Augmentation(flip=True)(x, rng)
    mirrored = (flipped == x.flip(3)).flatten(1).all(1)
    assert torch.equal(flipped[~mirrored], x[~mirrored])
    assert 150 < int(mirrored.sum()) < 250


def test_no_augmentation_draws_nothing_and_changes_nothing(rng: Generator) -> None:
    x, state = torch.rand(3, 1, 2, 2), rng.get_state()
    assert Augmentation()(x, rng) is x
    assert torch.equal(state, rng.get_state())


def test_bytes_become_floats_in_the_unit_interval(rng: Generator) -> None:
    x = torch.tensor([0, 51, 255, 102], dtype=torch.uint8).view(4, 1, 1, 1)
    data = WeakData(x, rule_out(4, 2, [0, 1, 0, 1]))
    batch = data.batch(torch.tensor([2, 1]), Augmentation(), rng)
    torch.testing.assert_close(batch.x.flatten(), torch.tensor([1.0, 0.2]))
    assert torch.equal(batch.candidates, data.candidates[[2, 1]])
    assert torch.equal(as_float(torch.tensor([0.5])), torch.tensor([0.5]))


def test_parts_and_batches_in_order_keep_images_and_candidates_together() -> None:
    x = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    data = WeakData(x, rule_out(6, 3, [0, 1, 2, 0, 1, 2]))
    part = data.take(torch.tensor([5, 0]))
    assert part.x.flatten().tolist() == [5, 0]
    assert torch.equal(part.candidates, data.candidates[[5, 0]])
    assert data.images(torch.tensor([3, 1])).flatten().tolist() == [3, 1]
    assert [len(one) for one in data.in_order(4)] == [4, 2]
    assert torch.equal(torch.cat(list(data.in_order(4))), as_float(x))
    assert data.to(torch.device("cpu"), room=0).x.device.type == "cpu"  # there is no other memory


class Indexed(Dataset[Any]):
    """PyTorch's kind with an index, which raises no IndexError at its end."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        return self.items[position % len(self.items)]


class Streamed(IterableDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


BYTES = np.random.default_rng(0).integers(0, 256, (2, 5, 4), np.uint8)
COLOURS = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), np.uint8)


@pytest.mark.parametrize("kind", [Indexed, Streamed, list])
def test_any_dataset_of_pairs_becomes_weak_data(kind: Callable[[list[Any]], Any]) -> None:
    x = torch.from_numpy(BYTES)[:, None]
    data = from_torch_dataset(kind([(x[0], 2), (x[1], [0, 1])]), classes=4)
    assert torch.equal(data.x, x)
    assert torch.equal(data.candidates, rule_out(2, 4, [[2], [0, 1]]))


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (list(torch.from_numpy(BYTES)), BYTES[:, None]),
        (list(BYTES), BYTES[:, None]),
        ([Image.fromarray(one) for one in BYTES], BYTES[:, None]),
        ([Image.fromarray(one) for one in COLOURS], COLOURS.transpose(0, 3, 1, 2)),
        (list(COLOURS), COLOURS.transpose(0, 3, 1, 2)),
        ([Image.fromarray(one > 127) for one in BYTES], (BYTES[:, None] > 127) * np.uint8(255)),
        (list(torch.from_numpy(BYTES)[:, None].double() / 255), (BYTES[:, None] / 255).astype(np.float32)),
        (list(BYTES / 255), (BYTES[:, None] / 255).astype(np.float32)),
    ],
    ids=[
        "tensors",
        "arrays",
        "grey pictures",
        "pictures",
        "arrays of colours",
        "black and white",
        "floats",
        "arrays of floats",
    ],
)
def test_images_of_every_type_mean_the_same(images: list[Any], expected: np.ndarray[Any, Any]) -> None:
    data = from_torch_dataset(list(zip(images, [torch.tensor(1), np.int64(0)], strict=True)), classes=2)
    assert torch.equal(data.x, torch.from_numpy(expected))
    assert data.candidates.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.zeros(1, 5, 4), 3), "image 1 has complementary label 3"),
        ((torch.zeros(1, 5, 4), True), "image 1 has complementary label True"),
        ((torch.zeros(1, 5, 4), "cat"), "image 1 has complementary label 'cat'"),
        ((torch.zeros(1, 5, 4), []), "image 1 has no class ruled out"),
        ((torch.zeros(1, 5, 4), [0, 1, 2]), "image 1 has every class ruled out"),
        ((torch.zeros(1, 4, 5), 0), r"image 1: \(1, 4, 5\) torch.float32, but image 0 is \(1, 5, 4\)"),
        (
            (torch.zeros(1, 5, 4, dtype=torch.uint8), 0),
            r"image 1: .* torch.uint8, but image 0 is .* torch.float32",
        ),
        ((torch.full((1, 5, 4), 2.0), 0), r"image 1: images must be uint8, or floats in \[0, 1\]"),
        ((np.zeros((3, 5, 4)), 0), r"image 1: an array is \(H, W\), or \(H, W, channels\)"),
        ((Image.new("P", (4, 5)), 0), "image 1: an image of Pillow's mode P must be converted"),
        ((None, 0), "image 1: an array is"),
        (torch.zeros(1, 5, 4), "image 1: a Tensor is not a pair"),
        ((torch.zeros(1, 5, 4), 0, 0), "image 1: a tuple is not a pair"),
    ],
)
def test_a_wrong_item_is_named_in_one_line(item: Any, message: str) -> None:
    with pytest.raises(AtclError, match=message) as error:
        from_torch_dataset([(torch.zeros(1, 5, 4), 0), item], classes=3)
    assert "\n" not in str(error.value)


def test_what_is_no_dataset_or_an_empty_one_is_refused() -> None:
    with pytest.raises(AtclError, match="the dataset is empty"):
        from_torch_dataset([], classes=3)
    with pytest.raises(AtclError, match="can be iterated over; got a int"):
        from_torch_dataset(5, classes=3)
