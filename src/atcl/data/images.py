"""Images as tensors: checks, conversion to floats, and conversion from arrays and images of Pillow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atcl.core.errors import AtclError


def checked_images(x: Tensor) -> Tensor:
    """Return images as a tensor.

    Raises:
        AtclError: they are not (n, C, H, W), of type uint8 or floats in [0, 1].
    """
    try:
        x = torch.as_tensor(x)
    except (TypeError, ValueError) as error:
        raise AtclError(f"images must be a tensor or an array of numbers: {error}") from None
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise AtclError(f"images have the shape (n, C, H, W), not {tuple(x.shape)}")
    if x.dtype != torch.uint8 and not (x.is_floating_point() and bool(((x >= 0) & (x <= 1)).all())):
        outside = " outside of it" if x.is_floating_point() else ""
        raise AtclError(f"images must be uint8, or floats in [0, 1]; got {x.dtype}{outside}")
    return x


def as_float(x: Tensor) -> Tensor:
    """Return images, uint8 or floats, as fp32 in [0, 1]."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def _pair(item: Any) -> tuple[Tensor, Any]:
    """Return the image (C, H, W) and the labels of an item of a dataset."""
    if not (isinstance(item, Sequence) and len(item) == 2):
        raise AtclError(f"a {type(item).__name__} is not a pair of an image and its complementary labels")
    image, labels = item
    x = image if isinstance(image, Tensor) else _channels_first(image)
    x = checked_images(x[None, None] if x.ndim == 2 else x[None])[0]
    plain = labels.tolist() if hasattr(labels, "tolist") else labels
    return x if x.dtype == torch.uint8 else x.float(), plain


def _channels_first(image: Any) -> Any:
    """Return an array (C, H, W) from an array, or an image of Pillow, that is (H, W) or (H, W, C)."""
    # the bytes of other modes are indices into a palette, opacities or other colour spaces
    if getattr(image, "mode", "L") not in ("1", "L", "RGB"):
        raise AtclError(f"an image of Pillow's mode {image.mode} must be converted to L or RGB first")
    array = np.array(image)  # a copy: PyTorch warns of arrays that Pillow owns
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3))):
        raise AtclError(
            "an array is (H, W), or (H, W, channels) with 1 or 3 of them, "
            f"not {array.shape}; a tensor is (C, H, W)"
        )
    return np.atleast_3d(array * np.uint8(255) if array.dtype == bool else array).transpose(2, 0, 1)
