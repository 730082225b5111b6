"""Pictures with their true classes, from a folder and a CSV file: for evaluation, never for training."""

from collections.abc import Sequence
from pathlib import Path

import torch

from atcl.data.image_folder import CsvColumn, read_table
from atcl.data.picture_files import Shape
from atcl.datasets.truth import Split, Truth

CLASS = CsvColumn("class")


def read_truth(images: Path | str, labels: Path | str, shape: Shape, classes: Sequence[str]) -> Split:
    """Read a test set from a folder of pictures and a CSV file of their true classes.

    Args:
        images: the folder of pictures.
        labels: the CSV file: the column `file` has paths inside the folder, the column `class` true classes.
        shape: (C, H, W) of the images; pictures are resized to it.
        classes: the names of all classes, in the order of the run that is evaluated.

    Raises:
        AtclError: a file cannot be read, or the table has problems; the message lists them by line.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (4, 4)).save(Path(folder, "a.png"))
        ...     _ = Path(folder, "truth.csv").write_text("file,class\\na.png,dog\\n")
        ...     read_truth(folder, Path(folder, "truth.csv"), (1, 4, 4), ["cat", "dog"]).truth.labels
        tensor([1])
    """
    table = read_table(Path(images), Path(labels), shape, CLASS, classes)
    true = torch.tensor([number for (number,) in table.marked])  # (n,)
    return Split(table.x, Truth(true, len(table.names)))
