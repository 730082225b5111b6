"""Pictures of every kind that Pillow reads, written by the tests; what is no whole picture gives one line."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from atcl.core.errors import AtclError
from atcl.data.picture_files import PICTURE_FORMATS, find_pictures, read_picture, read_pictures

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (8, 8), np.uint8)
COLOUR = RNG.integers(0, 256, (8, 8, 3), np.uint8)
DIGITS = np.rint(load_digits().images[:10] * (255 / 16)).astype(np.uint8)

Array = np.ndarray[Any, Any]


def pixels(path: Path, shape: tuple[int, int, int]) -> Array:
    x = read_picture(path, shape)
    assert (x.dtype, tuple(x.shape)) == (torch.uint8, shape)
    assert x.is_contiguous()
    return x.numpy()


def stored(image: Image.Image, path: Path, **options: Any) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("digit", range(10))
def test_a_grey_picture_of_the_right_size_keeps_every_bit(digit: int, tmp_path: Path) -> None:
    path = stored(Image.fromarray(DIGITS[digit]), tmp_path / "digit.png")
    assert np.array_equal(pixels(path, (1, 8, 8))[0], DIGITS[digit])


def test_a_coloured_picture_of_the_right_size_keeps_every_bit(tmp_path: Path) -> None:
    path = stored(Image.fromarray(COLOUR), tmp_path / "a.png")
    assert np.array_equal(pixels(path, (3, 8, 8)), COLOUR.transpose(2, 0, 1))
    assert np.array_equal(read_picture(str(path), (3, 8, 8)).numpy(), COLOUR.transpose(2, 0, 1))


def test_grey_becomes_equal_channels_and_colour_its_luma(tmp_path: Path) -> None:
    grey = stored(Image.fromarray(GREY), tmp_path / "g.png")
    colour = stored(Image.fromarray(COLOUR), tmp_path / "c.png")
    assert np.array_equal(pixels(grey, (3, 8, 8)), np.stack([GREY] * 3))
    luma = COLOUR @ np.array([0.299, 0.587, 0.114])
    assert np.abs(pixels(colour, (1, 8, 8))[0] - luma).max() <= 1


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_read_at_any_size(mode: str, channels: int, tmp_path: Path) -> None:
    black = Image.new("L", (20, 30), 0)
    if mode == "LAB":
        image = Image.new("LAB", (20, 30), (0, 128, 128))
    else:
        image = (black if mode[0] in "IF" else black.convert("RGB")).convert(mode)
    path = stored(image, tmp_path / ("a.gif" if mode == "P" else "a.tif"))
    with Image.open(path) as again:
        assert again.mode == mode
    assert pixels(path, (channels, 7, 9)).max() <= 1


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_sixteen_bits_are_scaled_and_not_clipped(suffix: str, tmp_path: Path) -> None:
    deep = np.array([[0, 257], [32768, 65535]], np.uint16)
    path = stored(Image.fromarray(deep), tmp_path / f"a{suffix}")
    assert pixels(path, (1, 2, 2))[0].tolist() == [[0, 1], [128, 255]]
    assert pixels(path, (3, 2, 2))[2].tolist() == [[0, 1], [128, 255]]


def test_floats_are_read_from_the_unit_interval(tmp_path: Path) -> None:
    path = stored(Image.fromarray(np.array([[0.0, 0.2], [0.5, 1.0]], np.float32)), tmp_path / "a.tif")
    assert pixels(path, (1, 2, 2))[0].tolist() == [[0, 51], [128, 255]]


@pytest.mark.parametrize(
    ("deep", "message"),
    [
        (np.array([[0.0, 255.0]], np.float32), r"pixels from 0 to 255, not in \[0, 1\]"),
        (np.array([[np.nan, 0.5]], np.float32), r"not in \[0, 1\]"),
        (np.array([[-1, 5]], np.int32), r"pixels from -1 to 5, not in \[0, 65535\]"),
        (np.array([[0, 70000]], np.int32), r"not in \[0, 65535\]"),
    ],
)
def test_deep_pixels_of_unknown_scale_are_refused(deep: Array, message: str, tmp_path: Path) -> None:
    refused(stored(Image.fromarray(deep), tmp_path / "a.tif"), message)


def test_what_is_transparent_shows_white(tmp_path: Path) -> None:
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 128]]], np.uint8)
    path = stored(Image.fromarray(rgba), tmp_path / "rgba.png")
    assert pixels(path, (3, 1, 3)).transpose(1, 2, 0).tolist() == [
        [[255, 0, 0], [255, 255, 255], [127, 127, 127]]
    ]
    grey = stored(Image.fromarray(rgba[:, :, [1, 3]]), tmp_path / "la.png")
    assert pixels(grey, (1, 1, 3))[0].tolist() == [[0, 255, 127]]


def test_a_transparent_colour_of_a_palette_shows_white(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((1, 0), 1)
    path = stored(image, tmp_path / "a.png", transparency=0)
    assert pixels(path, (3, 1, 2)).transpose(1, 2, 0).tolist() == [[[255, 255, 255], [10, 20, 30]]]
    several = stored(image, tmp_path / "b.png", transparency=bytes([255, 0]))
    assert pixels(several, (3, 1, 2)).transpose(1, 2, 0).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_cmyk_becomes_the_colours_that_it_prints(tmp_path: Path) -> None:
    path = stored(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), tmp_path / "a.tif")
    assert pixels(path, (3, 4, 4))[:, 0, 0].tolist() == [255, 0, 0]


def test_a_picture_that_a_camera_turned_stands_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    path = stored(Image.fromarray(GREY[:4]), tmp_path / "a.png", exif=exif)
    assert np.array_equal(pixels(path, (1, 8, 4))[0], np.rot90(GREY[:4], -1))


def test_shrinking_averages_instead_of_picking(tmp_path: Path) -> None:
    board = np.indices((64, 64)).sum(0) % 2 * 255
    small = pixels(stored(Image.fromarray(board.astype(np.uint8)), tmp_path / "a.png"), (1, 8, 8))[0]
    assert np.abs(small[2:-2, 2:-2].astype(float) - 127.5).max() < 4


def test_a_picture_is_stretched_to_height_and_width_in_this_order(tmp_path: Path) -> None:
    image = np.zeros((10, 40), np.uint8)
    image[:, 20:] = 255
    found = pixels(stored(Image.fromarray(image), tmp_path / "a.png"), (1, 6, 4))[0]
    assert (found[:, 0] == found[0, 0]).all()
    assert found[0, 0] < 30
    assert found[0, 3] > 225


def test_the_first_picture_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (pixels(tmp_path / "a.gif", (1, 4, 4)) == 10).all()


@pytest.mark.parametrize("suffix", [".jpg", ".bmp", ".webp", ".ppm", ".ico", ".pcx", ".tga", ".jp2"])
def test_common_formats_are_read(suffix: str, tmp_path: Path) -> None:
    path = stored(Image.new("RGB", (16, 16), (200, 100, 50)), tmp_path / f"a{suffix}")
    assert np.abs(pixels(path, (3, 16, 16))[:, 8, 8].astype(int) - [200, 100, 50]).max() <= 3


def refused(path: Path, message: str, shape: tuple[int, int, int] = (1, 8, 8)) -> None:
    with pytest.raises(AtclError, match=message) as error:
        read_picture(path, shape)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("hello, I am a text\n" * 20, encoding="utf-8")
    (tmp_path / "b.png").write_bytes(b"")
    refused(tmp_path / "a.png", "is not a picture")
    refused(tmp_path / "b.png", "is not a picture")
    refused(tmp_path / "c.png", "does not exist")
    refused(tmp_path, "is a folder, not a picture")


def test_a_program_with_the_name_of_a_picture_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n", encoding="utf-8"
    )
    refused(tmp_path / "a.png", "is not a picture")
    assert "EPS" not in PICTURE_FORMATS


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".tif", ".bmp"])
def test_a_truncated_picture_is_refused(suffix: str, tmp_path: Path) -> None:
    noise = RNG.integers(0, 256, (64, 64), np.uint8)
    path = stored(Image.fromarray(noise), tmp_path / f"a{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(path, "cannot be read as a picture|is not a picture")


def test_a_flipped_byte_never_escapes_as_another_error(tmp_path: Path) -> None:
    whole = stored(Image.fromarray(GREY), tmp_path / "a.png").read_bytes()
    for position in range(len(whole)):
        flipped = bytes([whole[position] ^ 0x55])
        (tmp_path / "b.png").write_bytes(whole[:position] + flipped + whole[position + 1 :])
        try:
            assert read_picture(tmp_path / "b.png", (1, 8, 8)).shape == (1, 8, 8)
        except AtclError as error:
            assert "\n" not in str(error)  # noqa: PT017  either outcome is right, a third is not


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize("side", [10_000, 30_000])  # where Pillow warns, and where it raises
def test_a_picture_that_would_fill_the_memory_is_refused(side: int, tmp_path: Path) -> None:
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(100))), chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    refused(tmp_path / "a.png", "has more than .* pixels")


@pytest.mark.parametrize("shape", [(2, 8, 8), (4, 8, 8), (1, 0, 8), (8, 8)])
def test_a_shape_that_pictures_do_not_have_is_refused(shape: Any, tmp_path: Path) -> None:
    with pytest.raises(AtclError, match=r"\(1, H, W\), grey, or \(3, H, W\), colour; not as"):
        read_picture(stored(Image.fromarray(GREY), tmp_path / "a.png"), shape)


def test_many_pictures_keep_their_order_and_the_broken_ones_are_named(tmp_path: Path) -> None:
    pictures = [Image.fromarray(digit) for digit in DIGITS]
    paths = [stored(picture, tmp_path / f"{number}.png") for number, picture in enumerate(pictures)]
    x, wrong = read_pictures([*paths[:5], tmp_path / "none.png", *paths[5:]], (1, 8, 8))
    assert wrong == {5: f"{tmp_path / 'none.png'} does not exist"}
    expected = np.concatenate([DIGITS[:5], np.zeros((1, 8, 8), np.uint8), DIGITS[5:]])
    assert np.array_equal(x[:, 0].numpy(), expected)


def test_folders_give_their_pictures_sorted_and_named_files_are_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "sub/c.webp", "sub/notes.txt", ".hidden/d.png", "._b.png", "named.dat"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    inside = [tmp_path / name for name in ("a.jpg", "b.PNG", "sub/c.webp")]
    assert find_pictures([tmp_path]) == inside
    assert find_pictures([str(tmp_path / "named.dat"), tmp_path, tmp_path / "a.jpg"]) == [
        tmp_path / "named.dat",
        *inside,
    ]


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match=r"holds no pictures: their names end in .*\.png"):
        find_pictures([tmp_path])
    with pytest.raises(AtclError, match=r"nowhere does not exist"):
        find_pictures([tmp_path / "nowhere"])
