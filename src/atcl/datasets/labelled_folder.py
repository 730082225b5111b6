"""Pictures with their true classes, from a folder and a CSV file: for evaluation, never for training."""

from collections.abc import Sequence
from pathlib import Path

import torch

from atcl.data.image_folder import CsvColumn, read_table
from atcl.data.picture_files import Shape
from atcl.datasets.truth import Split, Truth

CLASS = CsvColumn("class")


def read_truth(images: Path | str, labels: Path | str, shape: Shape, classes: Sequence[str]) -> Split:
    """Read pictures and their true classes from the column `class`; `classes` are those of the run, in its order."""
    table = read_table(Path(images), Path(labels), shape, CLASS, classes)
    true = torch.tensor([number for (number,) in table.marked])  # (n,)
    return Split(table.x, Truth(true, len(table.names)))
