"""Pictures of one's own, end to end, without a true label.

A folder and a CSV file go in; a model, its estimated quality and a file to deploy come out.
"""

import csv
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import atcl
from atcl.cli.entry import main
from atcl.datasets.sources import digits
from atcl.runs.spec import Execution

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TRAIN, TEST = 500, 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as PNG files, with four complementary labels each, and the truth of sixty others."""
    place = tmp_path_factory.mktemp("own")
    found = digits()
    dice = np.random.default_rng(0)
    with (
        (place / "not.csv").open("w", newline="") as page,
        (place / "truth.csv").open("w", newline="") as truth,
    ):
        weak, true = csv.writer(page), csv.writer(truth)
        weak.writerow(["file", "not"])
        true.writerow(["file", "class"])
        for split, part, number in (("train", found.train, TRAIN), ("test", found.test, TEST)):
            (place / split).mkdir()
            for row in range(number):
                Image.fromarray(part.x[row, 0].numpy()).save(place / split / f"{row:03}.png")
                label = int(part.truth.labels[row])
                wrong = dice.choice([one for one in range(10) if one != label], 4, replace=False)
                if split == "train":
                    weak.writerow([f"{row:03}.png", "|".join(NAMES[one] for one in wrong)])
                else:
                    true.writerow([f"{row:03}.png", NAMES[label]])
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A model trained from the shell, by the digits' settings cut short."""
    out = folder / "run"
    short = shlex.split("""
        --stages.0.epochs 16 --stages.0.strength.after 10 --stages.0.strength.over 4
        --stages.0.gamma.after 10 --stages.0.gamma.over 4 --stages.0.supervision.last 12
        --stages.0.budget.steps 3 --stages.0.lr.value 0.003
        --stages.0.budget.epsilon 0.05 --threat.epsilon 0.05
    """)
    given = ["--images", str(folder / "train"), "--labels", str(folder / "not.csv"), "--classes", *NAMES]
    assert main(["train", "digits/warmup-pla", *given, "--out", str(out), *short]) == 0
    return out


def test_training_ends_with_a_quality_that_no_truth_was_needed_for(folder: Path, run: Path) -> None:
    done = atcl.open_run(run)
    assert done.class_names == tuple(NAMES)
    result = done.result
    assert result.name == "own/warmup-pla"
    assert result.metrics == {}
    assert result.selection.rule == atcl.recipe("own/warmup-pla").selection
    assert result.recipe["labels"]["kind"] == "Given"
    natural = result.held["accuracy_natural"]
    assert natural.error is not None
    assert natural.images == 50
    test = found_accuracy(folder, run, "natural")
    assert test > 60
    # the sixty images of the test have an error of their own
    assert abs(100 * natural.mean - test) < 4 * 100 * natural.error + 10


def found_accuracy(folder: Path, run: Path, attack: str) -> float:
    split = atcl.read_truth(folder / "test", folder / "truth.csv", (1, 8, 8), NAMES)
    return atcl.open_run(run).evaluate([attack], test=split, device="cpu")[attack].accuracy


def test_evaluate_on_pictures_whose_class_is_known(
    folder: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--images", str(folder / "test"), "--labels", str(folder / "truth.csv")]
    words = ["evaluate", str(run), *data, "--attacks", "natural", "pgd20"]
    assert main([*words, "--json", "--device", "cpu"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["natural"]["images"] == TEST
    accuracy = metrics["natural"]["accuracy"]
    assert accuracy == found_accuracy(folder, run, "natural") > metrics["pgd20"]["accuracy"]
    assert main(words) == 0
    assert "PGD20" in capsys.readouterr().out
    assert atcl.open_run(run).result.metrics == {}  # numbers on other pictures are not the run's
    assert main(["evaluate", str(run)]) == 2
    assert "--images FOLDER --labels FILE.csv" in capsys.readouterr().err


def test_predict_as_csv_and_as_json(folder: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), str(folder / "test"), "--device", "cpu"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == TEST
    assert list(rows[0]) == ["file", "class", "probability", "withstands"]
    assert {row["withstands"] for row in rows} == {"True", "False"}
    lines = (folder / "truth.csv").read_text(encoding="utf-8").splitlines()
    truth = {row["file"]: row["class"] for row in csv.DictReader(lines)}
    right = sum(truth[Path(row["file"]).name] == row["class"] for row in rows)
    assert 100 * right / TEST == pytest.approx(found_accuracy(folder, run, "natural"))
    out = folder / "answers.json"
    assert main(["predict", str(run), str(folder / "test"), "--json", "--out", str(out), "--no-attack"]) == 0
    answers = json.loads(out.read_text(encoding="utf-8"))
    assert [answer["class"] for answer in answers] == [row["class"] for row in rows]
    assert all(set(answer) == {"file", "class", "probability"} for answer in answers)


def test_pictures_that_cannot_be_read_are_all_named_and_nothing_is_written(
    folder: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("broken-1.png", "broken-2.png"):
        (folder / name).write_bytes(b"not a picture")
    out = folder / "none.csv"
    words = [str(folder / name) for name in ("broken-1.png", "test/000.png", "broken-2.png")]
    assert main(["predict", str(run), *words, "--out", str(out)]) == 2
    errors = capsys.readouterr().err
    assert "2 of 3 pictures cannot be read; nothing was predicted" in errors
    assert "broken-1.png" in errors
    assert "broken-2.png" in errors
    assert not out.exists()


def test_the_exported_model_gives_the_same_logits_in_onnxruntime(
    folder: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = folder / "model.onnx"
    assert main(["export", str(run), "--format", "onnx", "--out", str(path)]) == 0
    assert str(path) in capsys.readouterr().out.splitlines()[-1]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    split = atcl.read_truth(folder / "test", folder / "truth.csv", (1, 8, 8), NAMES)
    x = split.x.float() / 255
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        ours = atcl.open_run(run).model()(x)
    assert np.array_equal(logits.argmax(1), ours.argmax(1).numpy())
    assert np.allclose(logits, ours.numpy(), atol=1e-4)


@pytest.mark.parametrize("format", ["torchscript", "safetensors"])
def test_other_formats_lie_beside_the_run_by_default(run: Path, format: str) -> None:
    before = (run / "model.safetensors").read_bytes()
    assert main(["export", str(run), "--format", format]) == 0
    assert (run / f"exported.{format}").stat().st_size > 1000
    assert (run / "model.safetensors").read_bytes() == before


def test_the_named_recipe_for_own_pictures_resizes_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--images", str(folder / "train"), "--labels", str(folder / "not.csv")]
    small = shlex.split("""
        --model mlp --shape 3 9 7 --stages.0.epochs 1 --stages.0.budget.steps 1
        --stages.0.strength.after 0 --stages.0.strength.over 0
    """)
    assert main(["train", "own/warmup-pla", *data, "--out", str(folder / "colour"), *small]) == 0
    assert "held-out images, without true labels" in capsys.readouterr().out
    assert atcl.open_run(folder / "colour").shape == (3, 9, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "own/warmup-pla"], "--images FOLDER and --labels FILE.csv"),
        (["train", "own/warmup-pla", "--images", "."], "--images FOLDER and --labels FILE.csv"),
        (["train", "own/oracle", "--images", ".", "--labels", "x.csv"], "unknown recipe"),
        (["train", "own/warmup-pla", "--images", ".", "--labels", "missing.csv"], "missing.csv"),
        (["export", "nowhere"], "not the folder of a run"),
        (["predict", "nowhere", "x.png"], "not the folder of a run"),
    ],
)
def test_mistakes_give_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_from_python_arrays_choose_their_epoch_without_truth(tmp_path: Path) -> None:
    plain = atcl.recipe("own/warmup-pla")
    (stage,) = plain.stages
    constant = atcl.replace(stage, epochs=2, strength=atcl.Constant(1.0), gamma=atcl.Constant(1.0))
    data = atcl.WeakData(torch.rand(40, 1, 5, 5), atcl.rule_out(40, 4, [row % 4 for row in range(40)]))
    run = atcl.train(
        atcl.replace(plain, stages=(constant,), model="mlp"),
        problem=atcl.Problem(data),
        out=tmp_path / "run",
        execution=Execution(device="cpu"),
    )
    assert run.result.held["robust"].images == 4
    with pytest.raises(atcl.AtclError, match="data of your own: give them as `problem`"):
        atcl.train("own/warmup-pla", out=tmp_path / "none")
