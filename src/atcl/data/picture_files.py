"""Picture files as tensors of one size, grey or RGB.

Pictures are rotated as their EXIF data say, composed over white where they are transparent, and resized.
"""

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

# Formats that Pillow decodes itself. Others are stubs or, as for EPS, start a program that executes the file.
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
_DEEP = ("I", "F")  # how modes of one channel with more than 8 bits begin


def read_picture(path: Path | str, shape: Shape) -> Tensor:
    """Return the picture in a file as uint8 (C, H, W).

    Raises:
        AtclError: it cannot be read, or pictures do not have this shape.
    """
    mode_of(shape)
    with _quiet():
        return _read(Path(path), shape)


def read_pictures(paths: Sequence[Path], shape: Shape) -> tuple[Tensor, dict[int, str]]:
    """Read several pictures.

    Returns:
        uint8 (n, C, H, W), and for the position of each picture that cannot be read, which stays black, what
        is wrong with it.
    """
    mode_of(shape)
    x = torch.zeros(len(paths), *shape, dtype=torch.uint8)
    wrong: dict[int, str] = {}

    def read(position: int) -> None:
        try:
            x[position] = _read(paths[position], shape)
        except AtclError as error:
            wrong[position] = str(error)

    # Pillow releases the interpreter's lock while it decodes; one thread per core limits the memory
    with _quiet(), ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(len(paths))):
            pass
    return x, wrong


def find_pictures(paths: Iterable[Path | str]) -> list[Path]:
    """Return the named files, and all pictures below the named folders, sorted, except hidden ones.

    Raises:
        AtclError: a path does not exist, or a folder holds no pictures.
    """
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
    """Return the mode of Pillow for images of a shape.

    Raises:
        AtclError: pictures do not have this shape.
    """
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
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AtclError(f"{path} cannot be read as a picture: {reason}") from None
    return torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1).contiguous()


def _flattened(image: Image.Image) -> Image.Image:
    """Return an opaque picture of 8 bits in RGB; a grey one keeps its exact values."""
    if image.mode.startswith(_DEEP):
        return Image.fromarray(_bytes(image)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    # Pillow converts La to LA alone
    above = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above).convert("RGB")


def _bytes(image: Image.Image) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return (H, W) of 8 bits from a grey picture of integers up to 65535, or of floats in [0, 1]."""
    # not by Pillow, which would clip the values
    deep = np.asarray(image)  # (H, W)
    top = 1.0 if image.mode.startswith("F") else 65535.0
    if not ((deep >= 0) & (deep <= top)).all():
        found = f"{deep.min():g} to {deep.max():g}"
        raise AtclError(f"has pixels from {found}, not in [0, {top:g}]: save it with 8 or 16 bits")
    return np.rint(deep * (255.0 / top)).astype(np.uint8)


def _formats() -> list[str]:
    """Return the formats that this build of Pillow can read."""
    Image.init()
    return [name for name in PICTURE_FORMATS if name in Image.OPEN]


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore Pillow's warnings, except the one about very large pictures, which becomes an error."""
    # threads share the filters, so this goes around all of them and not into each
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
