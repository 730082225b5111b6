"""The result of a run as a dataclass: read from `result.json`, checked, and written with the same keys."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from atcl.core.journal import Record
from atcl.evaluation.evaluate import Measurement
from atcl.evaluation.masking import Flag
from atcl.training.weak_validation import Estimate

Measurements = Mapping[str, Measurement]  # by attack


@dataclass(frozen=True)
class Selection:
    """Which epoch was chosen, and by which rule.

    Args:
        rule: a name from `atcl list rules`.
        stage: the number of the stage.
        epoch: the number of the epoch in it.
        attack_precision: the precision of the attack on the test set, if the rule makes one.
    """

    rule: str
    stage: int
    epoch: int
    attack_precision: str | None = None


@dataclass(frozen=True)
class EngineUse:
    """The engine that a run was trained with.

    Args:
        name: a name from `atcl list engines`.
        compiled: whether the parts of the step were compiled.
        together: how many runs shared the device.
        peak_gpu_bytes: the most memory that the process reserved on a GPU.
    """

    name: str
    compiled: bool
    together: int = 1
    peak_gpu_bytes: int | None = None


@dataclass(frozen=True)
class Result:
    """What a run ends with: the accuracies of its chosen model, and how it was made.

    Args:
        name: the name of the run.
        digest: the digest of its recipe.
        seed: its seed.
        selection: which epoch was chosen.
        metrics: a measurement for each attack.
        last_metrics: the same for the last epoch, which differs if a rule chose another one.
        last_record: the last line of the journal.
        data: fingerprints of the training, held-out and test data.
        model: sha256 and size of the weights in bytes.
        training_seconds: the time of all epochs.
        environment: machine and versions.
        recipe: all settings, as data.
        flags: signs of false robustness; None: not checked yet.
        held: estimates from held-out complementary labels.
        engine: the engine; None in results of old versions.
        published: what the paper prints for these settings; only the ledger adds it.
    """

    name: str
    digest: str
    seed: int
    selection: Selection
    metrics: Measurements
    last_metrics: Measurements
    last_record: Record | None
    data: dict[str, str | None]
    model: dict[str, Any]
    training_seconds: float
    environment: dict[str, Any]
    recipe: dict[str, Any]
    flags: tuple[Flag, ...] | None = None
    held: Mapping[str, Estimate] = field(default_factory=dict)
    engine: EngineUse | None = None
    published: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of `result.json`, described by docs/result.schema.json."""
        selection = {
            "rule": self.selection.rule,
            "stage": self.selection.stage,
            "epoch": self.selection.epoch,
        }
        if self.selection.attack_precision:
            selection["crafted"] = self.selection.attack_precision
        last = {name: asdict(one) for name, one in self.last_metrics.items()}
        return {
            "name": self.name,
            "digest": self.digest,
            "seed": self.seed,
            "selection": selection,
            "metrics": {name: asdict(one) for name, one in self.metrics.items()},
            "flags": None if self.flags is None else [asdict(flag) for flag in self.flags],
            **({} if self.published is None else {"published": self.published}),
            "held": {name: asdict(one) for name, one in self.held.items()},
            "last_epoch": {"metrics": last, "journal": self.last_record},
            "data": self.data,
            "model": self.model,
            "training_seconds": self.training_seconds,
            **({} if self.engine is None else {"engine": asdict(self.engine)}),
            "environment": self.environment,
            "recipe": self.recipe,
        }


def result_from_json(data: Any) -> Result:
    """Return the result that `to_json` turned into data.

    Args:
        data: the content of a `result.json`.

    Raises:
        ValueError: the data are not those of a result; the message says why, without the name of the file.
    """
    if not isinstance(data, dict) or not isinstance(data.get("metrics"), dict):
        raise ValueError("is not the result of a run")
    selection, last = data.get("selection"), data.get("last_epoch")
    if not isinstance(selection, dict) or not isinstance(selection.get("rule"), str):
        raise ValueError("does not say by which recipe and rule it was made")
    if not isinstance(data.get("recipe"), dict):
        raise ValueError("does not say by which recipe and rule it was made")
    if not isinstance(last, dict) or not isinstance(last.get("metrics"), dict):
        raise ValueError("has no last_epoch with its metrics")
    if not _within(data.get("training_seconds"), math.inf) or not isinstance(data.get("environment"), dict):
        raise ValueError("does not say how long it trained, and where")
    if not isinstance(data.get("data", {}), dict) or not isinstance(data.get("model", {}), dict):
        raise ValueError("does not say on which data it was made")
    flags = data.get("flags")
    try:
        return Result(
            name=str(data.get("name", "")),
            digest=str(data.get("digest", "")),
            seed=int(data.get("seed", 0)),
            selection=Selection(
                selection["rule"],
                int(selection.get("stage", 0)),
                int(selection.get("epoch", 0)),
                selection.get("crafted"),
            ),
            metrics=_measurements(data["metrics"]),
            last_metrics=_measurements(last["metrics"]),
            last_record=last.get("journal"),
            data=data.get("data", {}),
            model=data.get("model", {}),
            training_seconds=float(data["training_seconds"]),
            environment=data["environment"],
            recipe=data["recipe"],
            flags=None if flags is None else tuple(Flag(**_known(Flag, flag)) for flag in flags),
            held={name: Estimate(**_known(Estimate, one)) for name, one in data.get("held", {}).items()},
            engine=_engine(data.get("engine")),
            published=data.get("published"),
        )
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"is not the result of a run: {error}") from None


def _measurements(data: Mapping[str, Any]) -> dict[str, Measurement]:
    for name, one in data.items():
        if (
            not isinstance(one, dict)
            or not _within(one.get("accuracy"), 100)
            or not _within(one.get("seconds"), math.inf)
        ):
            raise ValueError(f"has no accuracy of {name} between 0 and 100, or no time that it took")
        if not isinstance(one.get("flags", []), list | None) or not isinstance(one.get("machine", {}), dict):
            raise ValueError(f"does not say by which machine, and with which flags, {name} was measured")
    return {name: _measurement(one) for name, one in data.items()}


def _measurement(data: Mapping[str, Any]) -> Measurement:
    flags = data.get("flags")
    plain = {"correct": 0, "images": 0, "seed": 0, "batch_size": 0, "attack": {}, **data}
    return Measurement(**_known(Measurement, {**plain, "flags": None if flags is None else tuple(flags)}))


def _engine(data: Any) -> EngineUse | None:
    if data is None:
        return None
    together = data.get("together", 1) if isinstance(data, dict) else None
    if (
        not isinstance(together, int)
        or together < 1
        or not _within(data.get("peak_gpu_bytes") or 0, math.inf)
    ):
        raise ValueError("has no valid engine")
    return EngineUse(**_known(EngineUse, {"name": "", "compiled": False, **data}))


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a dataclass; newer versions may have written others."""
    names = {part.name for part in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def _within(number: object, largest: float) -> bool:
    return isinstance(number, int | float) and 0 <= number <= largest  # False for NaN
