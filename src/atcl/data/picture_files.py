"""Picture files as tensors: any size and mode that Pillow reads, turned upright, laid over white, resized, in grey or colour."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from atcl.core.errors import AtclError

Shape = tuple[int, int, int]  # (C, H, W)

# Pillow's readers of pictures alone: others are stubs, or, as for EPS, start a program that runs what the file says
PICTURE_FORMATS: dict[str, tuple[str, ...]] = {
    "PNG": (".png", ".apng"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "ICO": (".ico",),
    "PCX": (".pcx",),
    "TGA": (".tga",),
}
SUFFIXES = frozenset(suffix for suffixes in PICTURE_FORMATS.values() for suffix in suffixes)
MODES = {1: "L", 3: "RGB"}  # channels -> Pillow's name
_DEEP = ("I", "F")  # modes of one channel with more than 8 bits begin so


def read_picture(path: Path | str, shape: Shape) -> Tensor:
    """Return the picture in a file as uint8 (C, H, W), or say in one line why it cannot be read."""
    mode_of(shape)
    with _quiet():
        return _read(Path(path), shape)


def read_pictures(paths: Sequence[Path], shape: Shape) -> tuple[Tensor, dict[int, str]]:
    """Return all pictures as uint8 (n, C, H, W), and by position what is wrong with those that cannot be read, which stay black."""
    mode_of(shape)
    x = torch.zeros(len(paths), *shape, dtype=torch.uint8)
    wrong: dict[int, str] = {}

    def read(position: int) -> None:
        try:
            x[position] = _read(paths[position], shape)
        except AtclError as error:
            wrong[position] = str(error)

    # Pillow decodes without the interpreter's lock; as many threads as cores bound the memory of large pictures
    with _quiet(), ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(len(paths))):
            pass
    return x, wrong


def find_pictures(paths: Iterable[Path | str]) -> list[Path]:
    """Return the named files, and for each folder the pictures in it and below, sorted; hidden ones are passed over."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*")
                if file.suffix.lower() in SUFFIXES and file.is_file() and not _hidden(file, path)
            )
            if not inside:
                raise AtclError(f"{path} holds no pictures: their names end in {', '.join(sorted(SUFFIXES))}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise AtclError(f"{path} does not exist")
    return list(dict.fromkeys(found))


def mode_of(shape: Shape) -> str:
    """Return Pillow's name for images of a shape, or refuse one that pictures do not have."""
    if len(shape) != 3 or shape[0] not in MODES or min(shape) < 1:
        raise AtclError(f"pictures are read as (1, H, W), grey, or (3, H, W), colour; not as {tuple(shape)}")
    return MODES[shape[0]]


def _read(path: Path, shape: Shape) -> Tensor:
    _, height, width = shape
    try:
        with Image.open(path, formats=_formats()) as image:
            image.load()
            flat = _flattened(ImageOps.exif_transpose(image)).convert(mode_of(shape))
        pixels = np.array(flat.resize((width, height), Image.Resampling.LANCZOS))  # (H, W) or (H, W, 3)
    except AtclError as error:
        raise AtclError(f"{path} {error}") from None
    except FileNotFoundError:
        raise AtclError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise AtclError(f"{path} is a folder, not a picture") from None
    except UnidentifiedImageError:
        raise AtclError(
            f"{path} is not a picture, or of a format that is not read: save it as PNG or JPEG"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise AtclError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller first"
        ) from None
    except Exception as error:  # a damaged or hostile picture can raise anything
        raise AtclError(
            f"{path} cannot be read as a picture: {' '.join(str(error).split()) or type(error).__name__}"
        ) from None
    return torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1).contiguous()


def _flattened(image: Image.Image) -> Image.Image:
    """Return an opaque picture of 8 bits in RGB, from which a grey one comes back bit by bit."""
    if image.mode.startswith(_DEEP):
        return Image.fromarray(_bytes(image)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    # La has a way to LA alone
    above = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above).convert("RGB")


def _bytes(image: Image.Image) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return (H, W) of 8 bits from a deep grey picture: whole numbers up to 65535, or floats in [0, 1]; Pillow would clip them."""
    deep = np.asarray(image)  # (H, W)
    top = 1.0 if image.mode.startswith("F") else 65535.0
    if not ((deep >= 0) & (deep <= top)).all():
        raise AtclError(
            f"has pixels from {deep.min():g} to {deep.max():g}, not in [0, {top:g}]: save it with 8 or 16 bits"
        )
    return np.rint(deep * (255.0 / top)).astype(np.uint8)


def _formats() -> list[str]:
    """Return those of the formats that this build of Pillow can read."""
    Image.init()
    return [name for name in PICTURE_FORMATS if name in Image.OPEN]


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Pillow's warnings in, and take the one about size as a refusal; threads share the filters, so this is set around all of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
