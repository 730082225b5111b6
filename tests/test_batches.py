import torch
from torch import Generator

from atcl.batches import Augmentation, WeakData, as_float, rule_out, shuffled


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
        places = [(i, j) for i in range(5) for j in range(5) if torch.equal(image[:, i : i + 5, j : j + 7], window)]
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
    data = WeakData(torch.tensor([0, 51, 255, 102], dtype=torch.uint8).view(4, 1, 1, 1), rule_out(4, 2, [0, 1, 0, 1]))
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
    assert data.to(torch.device("cpu"), room=0).x.device.type == "cpu"  # without a GPU there is nowhere else to lie
