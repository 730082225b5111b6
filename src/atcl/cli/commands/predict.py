"""`atcl predict`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Predict:
    """Predict the class of pictures, with its probability, and whether it withstands PGD20."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """pictures, and folders of pictures"""
    json: bool = False
    """print a JSON list of objects instead of CSV; --out FILE.json implies it"""
    out: Path | None = None
    """write to this file instead of to the terminal"""
    attack: bool = True
    """attack each prediction with PGD20 at the recipe's epsilon; --no-attack is faster"""
    seed: int = 0
    """for the random starts of the attack"""
    batch_size: int = 500
    """images at a time"""
    device: str = "auto"
    """auto, cpu or cuda"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        from atcl.loggers.progress import print_line
        from atcl.runs.predict import predict, predictions_as_csv, predictions_as_json
        from atcl.runs.run import open_run

        run = open_run(self.run_folder)
        if self.out is not None and (self.out.is_dir() or not self.out.parent.is_dir()):
            obstacle = "it is a folder" if self.out.is_dir() else f"{self.out.parent} is no folder"
            raise AtclError(f"{self.out} cannot be written: {obstacle}; give --out another file")
        predictions = predict(
            run,
            self.images,
            attack=self.attack,
            device=self.device,
            seed=self.seed,
            batch_size=self.batch_size,
        )
        as_json = self.json or (self.out is not None and self.out.suffix == ".json")
        text = predictions_as_json(predictions) if as_json else predictions_as_csv(predictions)
        if self.out is None:
            print(text, end="")
            return
        _write(self.out, text)
        print_line(console, f"{len(predictions)} predictions written to {self.out}")


def _write(path: Path, text: str) -> None:
    from atcl.core.files import write_whole

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise AtclError(f"{path} cannot be written: {error.strerror}; give --out another file") from None
