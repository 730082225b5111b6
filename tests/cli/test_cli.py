"""The command line: what it prints, and one clear line for each mistake."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from atcl.cli.catalogue import LISTED
from atcl.cli.commands import COMMANDS
from atcl.cli.entry import main
from atcl.core.settings import option_names, parse
from atcl.reproduce.experiments import EXPERIMENTS
from atcl.reproduce.ledger import jobs_of

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs signals, or a shell, of POSIX")
SMALL = shlex.split("""
    --model mlp --stages.0.epochs 2 --stages.0.strength.after 1 --stages.0.strength.over 1
    --stages.0.batch-size 350 --stages.0.budget.steps 2
""")


def atcl(*words: str, **more: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "atcl", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload, no-any-return]


def test_train_then_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert main(["train", "--out", out, *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "epoch   2/2  epsilon 0.150" in printed
    assert "digits/warmup-pla with changed settings, seed 1" in printed
    assert "agreement" in printed
    assert "left" in printed
    assert "PGD20" in printed
    assert printed.strip().splitlines()[-1] == f"recipe, journal, model and result are in {out}"
    assert main(["evaluate", out, "--attacks", "natural", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"]["model"] == "mlp"
    assert main(["evaluate", out, "--attacks", "natural", "cw30"]) == 0
    assert "CW30" in capsys.readouterr().out


def test_default_folder_keeps_variants_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--seed", "7", *SMALL]) == 0
    (run,) = (tmp_path / "runs/digits").iterdir()
    assert run.name.startswith("warmup-pla-")
    assert (run / "seed-7/result.json").exists()


def test_several_seeds_each_in_a_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path), "--seeds", "3", "5", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "seed-3", "seed-5"]
    assert "seed 3: engine eager on cpu" in printed
    assert "seed 5: epoch   2/2" in printed
    results = [
        json.loads((tmp_path / f"seed-{seed}/result.json").read_text(encoding="utf-8")) for seed in (3, 5)
    ]
    assert [result["seed"] for result in results] == [3, 5]


def test_engines_that_cannot_be_had_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    for name, message in (
        ("captured", "records CUDA graphs, and the device is cpu"),
        ("rapid", "unknown engine 'rapid'"),
    ):
        assert main(["train", "--device", "cpu", "--engine", name, "--out", str(out), *SMALL]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()


def test_show_prints_settings_that_can_be_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "kuzushiji/warmup-pla"]) == 0
    printed = capsys.readouterr().out
    given = [word for line in printed.splitlines() if line.startswith("--") for word in line.split()]
    assert main(["show", "kuzushiji/warmup-pla", *given]) == 0
    assert capsys.readouterr().out == printed
    assert "0.1500" in printed
    assert main(["show", "--stages.0.epochs", "3"]) == 0
    assert "--stages.0.epochs 3" in capsys.readouterr().out


@pytest.mark.parametrize("what", LISTED)
def test_list(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(LISTED[what])
    assert all(LISTED[what].values()), "each has a description"


@pytest.mark.parametrize("words", [[], ["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(words) == 0
    assert "atcl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tarin"], "unknown command 'tarin'; did you mean 'train'?"),
        (
            ["train", "digits/warmup-pal"],
            "unknown recipe 'digits/warmup-pal'; did you mean 'digits/warmup-pla'?",
        ),
        (["train", "kuzushiji/warmup_pla"], "did you mean 'kuzushiji/warmup-pla'?"),
        (["train", "kuzushiji-warmup-pla"], "did you mean 'kuzushiji/warmup-pla'?"),
        (["train", "digit/oracle"], "did you mean 'digits/oracle'?"),
        (["train", "oracle"], "a recipe is named dataset/method, such as digits/oracle, not 'oracle'"),
        (["train", "digits"], "such as digits/warmup-pla, not 'digits'"),
        (["train", "--stages.0.epoch", "3"], "did you mean '--stages.0.epochs'?"),
        (["train", "--sed", "3"], "unknown option --sed; did you mean '--seed'?"),
        (["train", "--seed", "x"], "--seed takes a whole number, not 'x'"),
        (["train", "--stages.0.epochs", "three"], "--stages.0.epochs takes a whole number, not 'three'"),
        (["train", "--threat.epsilon", "wide"], "--threat.epsilon takes a number, not 'wide'"),
        (["train", "--seeds", "1", "b"], "--seeds does not take '1 b'"),
        (["list"], "`atcl list` needs one more word: recipes, losses"),
        (["evaluate"], "`atcl evaluate` needs one more word: folder of a run"),
        (["train", "--no-reprt"], "did you mean '--no-report'?"),
        (
            ["evaluate", "/nowhere", "--atacks=natural"],
            "does not know --atacks=natural; did you mean '--attacks'?",
        ),
        (["train", "--stages.0.epochs", "three"], "--stages.0.epochs"),
        (["train", "--stages.0.budget.epsilon", "-0.1"], "epsilon -0.1"),
        (["train", "--stages.0.budget.steps", "0"], "the attack takes 0 steps"),
        (
            ["train", "--labels.number", "10"],
            "10 complementary labels cannot be drawn among 10 classes: give 1 to 9",
        ),
        (["train", "--model", "tiny-cnn"], "did you mean 'tiny_cnn'?"),
        (["train", "--dataset", "digit"], "did you mean 'digits'?"),
        (["train", "--device", "gpu"], "unknown device 'gpu'"),
        (["train", "--seed", "one"], "--seed"),
        (
            ["train", "kuzushiji/oracle", "--data-dir", "/nowhere"],
            "/nowhere has neither kmnist.npz nor kuzushiji/train-images-idx3-ubyte.gz",
        ),
        (["train", "--out", "/proc/atcl"], "cannot write to /proc/atcl"),
        (["train", "--model", "small_cnn"], "too small"),
        (["train", "--stages.0.optimizer.weight-decay", "-1"], "weight_decay"),
        (["train", "mnist/oracle", "--stages.0.optimizer.momentum", "-1"], "momentum"),
        (["train", "--stages.0.augmentation.padding", "-1"], "padding"),
        (["train", "--device", "meta"], "unknown device 'meta'"),
        (["reproduce", "digits", "--write", "/nowhere/page.md"], "no page /nowhere/page.md"),
        (["evaluate", "/nowhere"], "not the folder of a run"),
        (["evaluate", "/nowhere", "more"], "does not know more; see atcl evaluate --help"),
        (["evaluate"], "folder of a run"),
        (["evaluate", "/nowhere", "--speed", "3"], "does not know --speed 3; did you mean '--seed'?"),
        (["list", "recipe"], "'recipes'"),
        (["show", "digits/oracel"], "did you mean 'digits/oracle'?"),
        (["reproduce", "table7"], "unknown experiment"),
        (["train", "--seed", "-1"], "at least 0"),
        (["train", "--seeds", "1", "-1"], "at least 0"),
        (["train", "--seeds", "1", "1"], "give different seeds"),
        (["train", "--seed", "2", "--seeds", "1", "3"], "not both"),
        (["train", "--engine", "rapid"], "unknown engine 'rapid'"),
        (["train", "--device", "cpu", "--engine", "captured"], "records CUDA graphs, and the device is cpu"),
        (["train", "--observe", "gradient"], "did you mean 'gradients'?"),
        (["train", "--seeds", "1", "2", "--observe", "gradient"], "did you mean 'gradients'?"),
        (["train", "--observe-every", "0"], "every 1 or more epochs"),
        (["train", "--seeds", "1", "2", "--model", "small_cnn"], "too small"),
        (["train", "--stages.0.strength.to", "5"], "strength"),
        pytest.param(
            ["train", "--device", "cuda"],
            "no CUDA GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_a_mistake_gives_one_clear_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed, errors = capsys.readouterr()
    assert not printed
    assert message in errors
    assert errors.startswith("atcl: ")
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", COMMANDS.values(), ids=COMMANDS)
def test_the_options_that_are_suggested_are_those_that_help_lists(
    kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(kind, ["--help"], "atcl")
    lines = re.findall(r"^. (--[a-z].*?)(?:  | [{[A-Z]|$)", capsys.readouterr().out, re.M)
    assert {option for line in lines for option in line.split(", ")} == set(option_names(kind))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()


def test_a_page_without_a_place_for_the_table_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("no markers", encoding="utf-8")
    words = ["--results", str(tmp_path), "--write", str(tmp_path / "page.md")]
    assert main(["reproduce", "digits", *words]) == 2
    assert "no place for the table" in capsys.readouterr().err


def test_a_result_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = EXPERIMENTS["digits"]
    for job in jobs_of(experiment, tmp_path):
        job.path.parent.mkdir(parents=True)
        job.path.write_text("{}", encoding="utf-8")
    assert main(["reproduce", "digits", "--results", str(tmp_path)]) == 2
    assert "is not the result of a run: remove it" in capsys.readouterr().err


def test_the_recipe_may_stand_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--stages.0.epochs", "3", "digits/oracle"]) == 0
    assert "Ordinary" in capsys.readouterr().out


def test_a_full_disk_gives_one_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """A limit on the size of a file stands in for the disk: the journal fits, the checkpoint does not."""
    words = ["train", "--out", str(tmp_path / "run"), *SMALL]
    resource = pytest.importorskip("resource", reason="this system has no limits for child processes")
    limited = atcl(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))
    _, errors = limited.communicate(timeout=120)
    assert limited.returncode == 2
    assert errors.startswith("atcl: cannot write to ")
    assert "File too large" in errors
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.rglob("*.part"))
    assert not list((tmp_path / "run/checkpoints").iterdir())
    assert main(words) == 0


@posix_only
def test_an_interrupted_run_names_the_way_to_go_on_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--out", str(tmp_path), *SMALL, "--stages.0.epochs", "100"]
    child = atcl(*words)
    journal = tmp_path / "journal.jsonl"
    while child.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 2):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert errors == "atcl: stopped; the same command goes on where it was\n"
    done = journal.read_bytes().count(b"\n")
    assert main(words) == 0
    printed = capsys.readouterr().out
    # the signal may have come between the line of the journal and its checkpoint
    assert any(f"going on after epoch {epoch}\n" in printed for epoch in (done, done - 1))
    assert journal.read_bytes().count(b"\n") == 100


@posix_only
@pytest.mark.parametrize(
    ("words", "first"), [("list recipes", "digits/warmup-pla "), ("--help", "Train robust image classifiers")]
)
def test_a_reader_that_leaves_early_is_no_error(words: str, first: str) -> None:
    command = f"{sys.executable} -m atcl {words} | head -n 1"
    child = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert child.stdout.startswith(first)
    assert child.stderr == ""
