"""`atcl evaluate`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from atcl.cli.commands.train import PICTURES
from atcl.core.errors import AtclError
from atcl.evaluation.reported import REPORTED

if TYPE_CHECKING:
    from atcl.datasets.truth import Split
    from atcl.evaluation.evaluate import Measurement
    from atcl.runs.run import Run


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the chosen model of a run under attacks, and keep the accuracies in its result.json."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    attacks: tuple[str, ...] = REPORTED
    """names from `atcl list attacks`"""
    seed: int = 0
    """for the random starts of the attacks"""
    batch_size: int | None = None
    """images at a time; by default 500, and for AutoAttack on a GPU up to 10,000, as the memory allows"""
    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """folder of the dataset's files; not needed for digits"""
    images: Path | None = None
    """a folder of pictures to evaluate on, in place of the recipe's test set"""
    labels: Path | None = None
    """their true classes: a CSV file with the columns file and class"""
    checks: bool = True
    """check for signs of false robustness; --no-checks is faster"""
    strict_fp32: bool = False
    """full fp32 on a GPU, where convolutions otherwise use tf32"""
    json: bool = False
    """print result.json instead of a table; for your own pictures, print their accuracies as JSON"""
    report: bool = True
    """write the report.html of the run again, if it has one; --no-report leaves it as it is"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        from atcl.runs.run import open_run

        run = open_run(self.run_folder)
        test = self._pictures(run)
        measured = self._measure(run, test)
        if self.json:
            own = {"metrics": {name: asdict(measurement) for name, measurement in measured.items()}}
            print(json.dumps(run.result.to_json() if test is None else own, indent=2))
            self._write_page(Console(stderr=True), run)
            return
        self._show(console, run, measured, own=test is not None)
        self._write_page(console, run)

    def _pictures(self, run: "Run") -> "Split | None":
        from atcl.datasets.labelled_folder import read_truth

        if self.images is None and self.labels is None:
            return None
        if self.images is None or self.labels is None:
            raise AtclError(f"{PICTURES} class")
        return read_truth(self.images, self.labels, run.shape, run.class_names)

    def _measure(self, run: "Run", test: "Split | None") -> "dict[str, Measurement]":
        import torch

        from atcl.loggers.progress import EvaluationProgress

        try:
            with EvaluationProgress(Console(stderr=True)) as progress:
                return run.evaluate(
                    self.attacks,
                    device=self.device,
                    test=test,
                    seed=self.seed,
                    batch_size=self.batch_size,
                    data_dir=self.data_dir,
                    checks=self.checks,
                    strict_fp32=self.strict_fp32,
                    watch=progress,
                )
        except torch.OutOfMemoryError:
            raise AtclError(
                "the GPU's memory is too small for so many images at a time: give a smaller --batch-size; "
                "finished batches are kept"
            ) from None

    def _show(self, console: Console, run: "Run", measured: "dict[str, Measurement]", own: bool) -> None:
        from atcl.cli.views import caption, metrics_table
        from atcl.evaluation.attacks import WORST
        from atcl.loggers.progress import print_line
        from atcl.runs import layout

        print_line(console, caption(run.result))
        metrics = measured if own else run.result.metrics
        console.print(metrics_table(metrics, list(dict.fromkeys([*self.attacks, WORST]))))
        for flag in () if own else run.result.flags or ():
            print_line(console, f"{flag.name}: {flag.says} (docs/masking.md)")
        where = f"kept in {run.folder / layout.RESULT}"
        print_line(console, "measured on your pictures; nothing is kept" if own else where)

    def _write_page(self, console: Console, run: "Run") -> None:
        from atcl.cli.pages import page_after_evaluation

        if self.report and self.images is None:  # the page shows the test set alone
            page_after_evaluation(console, run, self.device, self.data_dir)
