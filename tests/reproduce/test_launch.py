"""Runs on this machine, on Ray and on SLURM give the same numbers; a killed worker costs time alone."""

import io
import multiprocessing
import os
import re
import secrets
import shlex
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, cast
from unittest import mock

import jsonschema
import pytest
import torch
from rich.console import Console

from atcl.cli.commands.reproduce import Reproduce
from atcl.cli.entry import main
from atcl.core.errors import AtclError
from atcl.core.files import is_held, read_json, sole_writer, write_json
from atcl.core.journal import Record, append, read
from atcl.core.settings import parse
from atcl.loggers.progress import RunProgress
from atcl.reproduce.launch import on_local, workers, working
from atcl.reproduce.launch.launchers import LAUNCHERS
from atcl.reproduce.launch.on_local import (
    PACK,
    Local,
    ProcessExecutor,
    SerialExecutor,
    packs_of,
    train_packed,
)
from atcl.reproduce.launch.on_ray import Ray, room_for
from atcl.reproduce.launch.on_slurm import Slurm
from atcl.reproduce.launch.options import LaunchOptions
from atcl.reproduce.launch.progress import JobsProgress
from atcl.reproduce.launch.workers import RETRIES, Launcher, WorkerPool, portable_job, run_jobs
from atcl.reproduce.launch.working import TRACE, WHY, Cancelled, Died, Done, Failed, Outcome, Taken, run_job
from atcl.reproduce.ledger import Job
from atcl.reproduce.missing import fill, plan_lines
from tests.reproduce.test_reproduce import SCHEMA, SMALL, job

TOKEN = secrets.token_hex(32)  # of Ray, which remembers the first that a process shows
EPOCHS = 16
LONG = (*SMALL, "--stages.0.epochs", str(EPOCHS))
# each on this machine
OPTIONS: dict[str, Launcher] = {"local": Local(), "ray": Ray("local"), "slurm": Slurm(executor="local")}
NEEDS = {"local": "atcl", "ray": "ray", "slurm": "submitit"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Job]:
    """Two runs, made in this process one after the other."""
    jobs = {seed: job(tmp_path_factory.mktemp("alone"), seed, LONG) for seed in (1, 2)}
    for one in jobs.values():
        run_job(one)
    return jobs


@contextmanager
def opened(name: str, tmp_path: Path) -> Iterator[WorkerPool]:
    pytest.importorskip(NEEDS[name], reason=f"pip install 'atcl[{name}]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)  # else Ray would keep one in the user's home
        # set, so that what Ray makes of them is undone
        for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(variable, "")
            patch.delenv(variable)
        with OPTIONS[name].open(LaunchOptions("cpu", workers=2, threads=1, runs=tmp_path / "runs")) as pool:
            yield pool


def holder(folder: Path) -> int | None:
    """Return the process that writes to a folder."""
    lock = folder / ".lock"
    words = lock.read_text(encoding="utf-8").split() if lock.exists() else []
    return int(words[0]) if words else None


def send(one: Job, number: signal.Signals, cut: list[int], over: threading.Event) -> None:
    """Send a signal to the worker of a run once it has trained for some epochs."""
    pid = None
    while not over.is_set():
        if pid is None:
            pid = holder(one.folder)
        elif len(read(one.folder / "journal.jsonl")) > 2:
            os.kill(pid, number)
            cut.append(len(read(one.folder / "journal.jsonl")))
            return
        time.sleep(0.005)


def outcome_of(one: Job) -> tuple[str, dict[str, int], list[Record]]:
    """Return what must not depend on where a run was made: weights, correct images, epochs."""
    result, journal = read_json(one.path), read(one.path.with_name("journal.jsonl"))
    jsonschema.validate(result, SCHEMA)
    correct = {name: it["correct"] for name, it in result["metrics"].items()}
    epochs = [{key: value for key, value in record.items() if key != "seconds"} for record in journal]
    return result["model"]["sha256"], correct, epochs


# submitit takes SIGUSR2 for the end of its time
@pytest.mark.parametrize(
    ("name", "signals"),
    [("local", ["SIGKILL"]), ("ray", ["SIGKILL"]), ("slurm", ["SIGKILL", "SIGUSR2"])],
)
@pytest.mark.skipif(os.name != "posix", reason="kills processes by signals of POSIX")
def test_two_workers_one_of_them_killed_fill_the_ledger_with_the_numbers_of_one_process(
    name: str,
    signals: list[str],
    alone: dict[int, Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "PAUSE", 0.05)
    jobs, cut, printed = [job(tmp_path, seed, LONG) for seed in alone], list[int](), io.StringIO()
    over = threading.Event()
    targets = zip(jobs, signals, strict=False)
    threads = [
        threading.Thread(target=send, args=(one, signal.Signals[name], cut, over)) for one, name in targets
    ]
    with opened(name, tmp_path) as pool:
        for thread in threads:
            thread.start()
        try:
            fill(jobs, Console(file=printed, width=400), pool)
        finally:
            over.set()
    for thread in threads:
        thread.join()
    assert len(cut) == len(signals)
    assert max(cut) < EPOCHS  # it was in the middle
    for one in jobs:
        assert outcome_of(one) == outcome_of(alone[one.seed])
        assert read_json(one.path)["environment"]["threads"] == 1
        assert f"{one}: done after" in printed.getvalue()
    assert printed.getvalue().count("it goes on where it was") == 1  # an end of time is no death
    assert f"(1 of {RETRIES} times)" in printed.getvalue()


def test_seeds_that_train_together_fill_the_ledger_with_the_numbers_of_one_process(
    alone: dict[int, Job], tmp_path: Path
) -> None:
    jobs, printed = [job(tmp_path, seed, LONG) for seed in alone], io.StringIO()
    assert packs_of(jobs) == [jobs]
    train_packed(jobs, Console(file=printed, width=400))
    assert packs_of(jobs) == []
    with opened("local", tmp_path) as pool:
        fill(jobs, Console(file=printed, width=400), pool)
    for one in jobs:
        assert outcome_of(one) == outcome_of(alone[one.seed])
        assert read_json(one.path)["engine"]["together"] == len(jobs)


@pytest.mark.parametrize("error", [RuntimeError("an odd kernel"), AtclError("no such data"), MemoryError()])
def test_after_an_error_in_a_pack_each_run_is_made_alone(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, printed = [job(tmp_path, seed) for seed in (1, 2)], io.StringIO()

    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(on_local, "train_together", failing)
    console = Console(file=printed, width=400)
    run_jobs(jobs, SerialExecutor(console, 2, packs_of(jobs)), JobsProgress(console, jobs))
    assert all(one.path.exists() for one in jobs)
    message = str(error) if isinstance(error, AtclError) else f"{type(error).__name__}: {error}"
    assert message in printed.getvalue()


def test_each_pack_is_measured_before_the_next_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(tmp_path, seed) for seed in range(PACK + 2)]
    seen, console = list[object](), Console(file=io.StringIO(), width=400)

    def noting(one: Job, *_: Any) -> None:
        seen.append(one.seed)
        one.path.parent.mkdir(parents=True)
        write_json(one.path, {})

    monkeypatch.setattr(on_local, "train_packed", lambda pack, _: seen.append([one.seed for one in pack]))
    monkeypatch.setattr(on_local, "train_job", lambda *_: None)
    monkeypatch.setattr(on_local, "evaluate_job", noting)
    run_jobs(jobs, SerialExecutor(console, len(jobs), packs_of(jobs)), JobsProgress(console, jobs))
    assert seen == [[*range(PACK)], *range(PACK), [PACK, PACK + 1], PACK, PACK + 1]


def test_memory_that_runs_out_in_one_run_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, printed, full = [job(tmp_path, seed) for seed in (1, 2)], io.StringIO(), [True]
    measured = working.evaluate_job

    def failing(*given: Any) -> None:
        if full and full.pop():
            raise torch.OutOfMemoryError
        measured(*given)

    monkeypatch.setattr(on_local, "evaluate_job", failing)
    console = Console(file=printed, width=400)
    run_jobs(jobs, SerialExecutor(console, 2), JobsProgress(console, jobs))
    assert all(one.path.exists() for one in jobs)
    assert "the GPU had no memory left" in printed.getvalue()


def test_runs_of_one_dataset_are_packed_a_few_at_a_time(tmp_path: Path) -> None:
    many, longer = [job(tmp_path, seed) for seed in range(PACK)], job(tmp_path, 1, LONG)
    trained, other = job(tmp_path, PACK + 1), job(tmp_path, 1, (), "kuzushiji/oracle")
    trained.folder.mkdir(parents=True)
    write_json(trained.folder / "result.json", {})
    assert packs_of([many[0], longer, other, trained, *many]) == [
        [many[0], longer, *many[1 : PACK - 1]],
        [many[PACK - 1]],
        [other],
    ]
    with sole_writer(many[0].folder):  # by another process: it would stop all that train with it
        assert packs_of(many) == [many[1:]]


@dataclass
class Scripted:
    """Workers whose outcomes are given: for each seed, one after another."""

    script: dict[int, list[Outcome]]
    room: int = 2
    started: list[Job] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    writes: bool = True

    def start(self, jobs: Sequence[Job]) -> list[int]:
        self.started += jobs
        return list(range(len(self.started) - len(jobs), len(self.started)))

    def wait(self, tasks: Sequence[int], seconds: float) -> None:
        assert len(tasks) <= self.room

    def outcome(self, task: int) -> Outcome | None:
        one = self.started[task]
        outcome = self.script[one.seed].pop(0) if self.script[one.seed] else None
        if isinstance(outcome, Done) and self.writes:
            one.path.parent.mkdir(parents=True)
            write_json(one.path, {})
        return outcome

    def stop(self, tasks: Sequence[int]) -> None:
        self.stopped += [self.started[task].seed for task in tasks]


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PAUSE", 0.01)
    monkeypatch.setattr(workers, "LATE", 0.05)


def handed_out(jobs: Sequence[Job], executor: Scripted) -> str:
    printed = io.StringIO()
    run_jobs(jobs, executor, JobsProgress(Console(file=printed, width=400), jobs))
    return printed.getvalue()


@pytest.mark.usefixtures("_at_once")
def test_a_worker_that_dies_again_and_again_is_given_up_while_the_others_go_on(tmp_path: Path) -> None:
    executor = Scripted({1: [Died("no memory")] * 9, 2: [Died("no memory"), Done(1.0)], 3: [Done(1.0)]})
    message = f"no memory, {RETRIES + 1} times; the same command goes on where it was"
    with pytest.raises(AtclError, match=f"^digits/direct-log .*, seed 1: {message}$"):
        handed_out([job(tmp_path, seed) for seed in (1, 2, 3)], executor)
    assert Counter(one.seed for one in executor.started) == {1: RETRIES + 1, 2: 2, 3: 1}
    assert executor.stopped == []


@pytest.mark.usefixtures("_at_once")
def test_an_error_is_not_tried_again_and_ends_the_others_only_where_nothing_was_trained(
    tmp_path: Path,
) -> None:
    jobs = [job(tmp_path, seed) for seed in (1, 2)]
    executor = Scripted({1: [Failed("no such data")], 2: []})
    with pytest.raises(AtclError, match=r"^digits/direct-log .*, seed 1: no such data$"):
        handed_out(jobs, executor)
    assert (len(executor.started), executor.stopped) == (2, [2])
    jobs[0].folder.mkdir(parents=True)
    append(jobs[0].folder / "journal.jsonl", {"stage": 0, "epoch": 1})
    executor = Scripted({1: [Failed("the loss is not finite")], 2: [Done(1.0)]}, room=1)
    with pytest.raises(AtclError, match=r"seed 1: the loss is not finite$"):
        handed_out(jobs, executor)
    assert ([one.seed for one in executor.started], executor.stopped) == ([1, 2], [])


@pytest.mark.usefixtures("_at_once")
def test_work_is_ended_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    executor = Scripted({1: [], 2: []})
    monkeypatch.setattr(executor, "wait", pressed)
    with pytest.raises(KeyboardInterrupt):
        handed_out([job(tmp_path, seed) for seed in (1, 2)], executor)
    assert executor.stopped == [1, 2]


@pytest.mark.usefixtures("_at_once")
def test_a_job_that_someone_cancels_ends_its_own_run_alone(tmp_path: Path) -> None:
    executor = Scripted({1: [Cancelled("its job was cancelled")], 2: [Done(1.0)], 3: [Done(1.0)]}, room=1)
    with pytest.raises(AtclError, match=r"^digits/direct-log .*, seed 1: its job was cancelled$"):
        handed_out([job(tmp_path, seed) for seed in (1, 2, 3)], executor)
    assert ([one.seed for one in executor.started], executor.stopped) == ([1, 2, 3], [])


@pytest.mark.usefixtures("_at_once")
def test_messages_of_workers_are_printed_without_markup(tmp_path: Path) -> None:
    executor = Scripted({1: [Died("[/data/x] is [red]"), Done(1.0)]})
    assert "seed 1: [/data/x] is [red]; it goes on" in handed_out([job(tmp_path)], executor)
    RunProgress(Console(file=(printed := io.StringIO()))).notify("engine [/data/x]")
    assert printed.getvalue() == "engine [/data/x]\n"


class Sender(threading.Thread):
    """Stands for a process."""

    exitcode = -9


def test_a_message_larger_than_a_pipe_is_received_while_its_process_lives() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    sender = Sender(target=theirs.send, args=(long := Failed("why" * 100_000),), daemon=True)
    sender.start()
    process, end, outcome = cast(SpawnProcess, sender), time.monotonic() + 10, None
    executor = ProcessExecutor(1, 1, {process: ours})
    while outcome is None and time.monotonic() < end:
        outcome = executor.outcome(process)
    assert outcome == long
    assert not executor.said
    assert not executor.heard


@pytest.mark.parametrize("part", [b"", struct.pack("!i", 100) + b"cut off"])
def test_a_process_that_is_killed_while_it_sends_has_died(part: bytes) -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    os.write(theirs.fileno(), part)
    theirs.close()
    process = cast(SpawnProcess, Sender())
    assert ProcessExecutor(1, 1, {process: ours}).outcome(process) == Died("its process ended with code -9")


def test_an_error_of_any_length_becomes_a_message_that_a_pipe_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ValueError("ö" * 100_000), AtclError("ö" * 100_000)):
        monkeypatch.setattr(working, "run_job", mock.Mock(side_effect=error))
        outcome = working.work(job(tmp_path), 1)
        assert isinstance(outcome, Failed)
        assert outcome.why.endswith("ö")
        assert len(outcome.why.encode()) in (WHY - 1, WHY)
        assert len(outcome.trace.encode()) <= TRACE


@pytest.mark.parametrize(
    ("threads", "strong", "fits"),
    [(1, False, 12), (4, False, 3), (6, False, 0), (1, True, 3), (3, True, 2), (6, True, 0)],
)
def test_a_run_fits_on_one_machine_of_a_cluster_or_on_none(threads: int, strong: bool, fits: int) -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 2.0}, {"memory": 1.0}]
    assert room_for(nodes, threads, strong) == fits


@pytest.mark.usefixtures("_at_once")
def test_a_folder_that_is_not_shared_is_noticed_at_the_first_result(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="must lie in folders that all machines share"):
        handed_out([job(tmp_path, seed) for seed in (1, 2)], Scripted({1: [Done(1.0)], 2: []}, writes=False))


@pytest.mark.usefixtures("_at_once")
def test_a_run_that_another_machine_is_at_is_waited_for_and_not_made_twice(tmp_path: Path) -> None:
    jobs = [job(tmp_path, seed) for seed in (1, 2)]
    executor = Scripted({1: [Taken()], 2: [Done(1.0)]}, room=1)
    locked, ended = threading.Event(), threading.Event()

    def other() -> None:  # makes the first run
        with sole_writer(jobs[0].folder):
            locked.set()
            ended.wait(30)
            jobs[0].path.parent.mkdir(parents=True)
            write_json(jobs[0].path, {})

    thread = threading.Thread(target=other)
    thread.start()
    locked.wait(30)
    assert is_held(jobs[0].folder)
    threading.Timer(0.3, ended.set).start()
    printed = handed_out(jobs, executor)
    thread.join()
    assert not is_held(jobs[0].folder)
    assert [one.seed for one in executor.started] == [1, 2]
    assert f"{jobs[0]}: another process is at it, and is waited for\n" in printed
    assert f"{jobs[0]}: done by another process (2 of 2)" in printed


def test_a_job_travels_with_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = replace(job(Path()), data_dir=Path("data"))
    there = portable_job(plain, "cuda")
    assert (there.path, there.folder) == (tmp_path / plain.path, tmp_path / plain.folder)
    assert (there.data_dir, there.device) == (tmp_path / "data", "cuda")
    assert portable_job(replace(plain, data_dir=None), "cpu").data_dir is None
    monkeypatch.setenv("ATCL_DATA", "elsewhere")
    assert portable_job(replace(plain, data_dir=None), "cpu").data_dir == tmp_path / "elsewhere"


# What submitit calls: an array whose jobs run at once in sessions of their own, or wait in some partitions.
SLURM = {
    "sbatch": """cp "$1" {0}/script; echo "$1" >> {0}/queued
if grep -q pressed "$1"; then kill -INT $PPID $$; fi
if grep -qE "pressed|waiting" "$1"; then echo Submitted batch job 7; exit; fi
if grep -q nowhere "$1"; then echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1; fi
for number in 0 1; do
  export SLURM_JOB_ID=7$number SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$number
  setsid bash "$1" >/dev/null 2>&1 & echo $! > {0}/pid-7_$number
done
echo Submitted batch job 7""",
    "srun": 'while [ "${{1#*python}}" = "$1" ]; do shift; done; exec "$@"',
    "sacct": "echo 'JobID|State|NodeList'; cat {0}/states 2>/dev/null || echo '7_[0-1]|RUNNING|one'",
    "scancel": """echo "$@" >> {0}/cancelled
for one in "$@"; do [ -e {0}/pid-$one ] && kill -KILL -- -$(cat {0}/pid-$one); done""",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for a cluster, and keeps what was queued and cancelled."""
    submitit = pytest.importorskip("submitit", reason="pip install 'atcl[slurm]'")
    submitit.SlurmJob.watcher.clear()  # it remembers jobs of other tests
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, lines in SLURM.items():
        (folder / name).write_text(f"#!/bin/bash\n{lines.format(folder)}\n", encoding="utf-8")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_an_array_is_queued_and_what_is_left_of_it_is_cancelled_after_an_error(
    slurm: Path, tmp_path: Path
) -> None:
    endless = job(tmp_path, 2, (*SMALL, "--stages.0.epochs", "100000"))
    jobs = [job(tmp_path, name="kuzushiji/oracle", words=(), data_dir=tmp_path / "empty"), endless]
    with (
        Slurm().open(LaunchOptions("cpu", runs=tmp_path / "runs")) as pool,
        pytest.raises(AtclError, match=r"^kuzushiji/oracle, seed 1: .*empty") as refused,
    ):
        fill(jobs, Console(file=io.StringIO()), pool)
    assert "\n" not in str(refused.value)
    assert "#SBATCH --array=0-1%2" in (slurm / "script").read_text(encoding="utf-8")
    assert (slurm / "cancelled").read_text(encoding="utf-8") == "7_1\n"
    assert not endless.path.exists()


def test_a_key_that_is_pressed_while_jobs_are_queued_cancels_them_with_one_call(
    slurm: Path, tmp_path: Path
) -> None:
    with (
        Slurm("pressed").open(LaunchOptions("cpu", runs=tmp_path / "runs")) as pool,
        pytest.raises(KeyboardInterrupt),
    ):
        fill([job(tmp_path, seed) for seed in (1, 2)], Console(file=io.StringIO()), pool)
    assert (slurm / "cancelled").read_text(encoding="utf-8") == "7_0 7_1\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_at_once")
# no more are queued than may run
@pytest.mark.parametrize(("workers", "ids"), [(0, ["7_0", "7_1"]), (1, ["7", "7"])])
def test_jobs_that_are_cancelled_while_they_wait_end_one_by_one(
    workers: int, ids: list[str], slurm: Path, tmp_path: Path
) -> None:
    states = [f"{one}|CANCELLED by 0|None assigned\n" for one in ("7", "7_[0-1]")]
    (slurm / "states").write_text("".join(states), encoding="utf-8")
    printed, runs = io.StringIO(), tmp_path / "[red]"
    with (
        Slurm("waiting").open(LaunchOptions("cpu", workers, runs=runs)) as pool,
        pytest.raises(AtclError) as refused,
    ):
        fill([job(tmp_path, seed) for seed in (1, 2)], Console(file=printed, width=400), pool)
    cancelled = re.findall(r"seed (\d): its job (\w+) was cancelled", str(refused.value))
    assert cancelled == list(zip("12", ids, strict=True))
    assert len((slurm / "queued").read_text(encoding="utf-8").splitlines()) == (2 if workers else 1)
    assert str(runs / "slurm") in printed.getvalue()
    assert not (slurm / "cancelled").exists()


def test_slurm_receives_the_users_options_and_its_refusal_is_one_line(slurm: Path, tmp_path: Path) -> None:
    place = Slurm(
        "nowhere",
        "mine",
        "high",
        "h100",
        minutes=90,
        cpus=4,
        memory=16,
        setup=("module load cuda",),
        more=("reservation=ours", "exclusive"),
    )
    with place.open(LaunchOptions(workers=2, runs=tmp_path / "runs")) as pool:
        assert (pool.device, pool.strong, pool.workers) == ("cuda", True, 2)
        message = r"^SLURM did not take the jobs: .*invalid partition specified: nowhere"
        with pytest.raises(AtclError, match=message) as refused:
            fill([job(tmp_path, seed) for seed in (1, 2, 3)], Console(file=io.StringIO()), pool)
    assert "\n" not in str(refused.value)
    lines = (slurm / "script").read_text(encoding="utf-8").splitlines()
    wanted = [f"#SBATCH --{word}" for word in ("partition=nowhere", "account=mine", "qos=high", "time=90")]
    wanted += [f"#SBATCH --{word}" for word in ("constraint=h100", "cpus-per-task=4", "mem=16GB")]
    wanted += [f"#SBATCH --{word}" for word in ("gpus-per-node=1", "array=0-1%2", "reservation=ours")]
    assert {*wanted, "#SBATCH --exclusive"} <= set(lines)
    assert "module load cuda" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "rai"], "unknown launcher 'rai'; did you mean 'ray'?"),
        (["--threads", "-1"], "at least one thread"),
        (["--on", "ray", "--device", "cuda:1"], "a cluster picks the GPU itself"),
        (
            ["--on", "ray", "--ray.address", "127.0.0.1:1"],
            "no Ray cluster at 127.0.0.1:1: [Errno 111] Connection refused",
        ),
        (
            ["--on", "slurm", "--device", "cuda:1", "--slurm.executor", "local"],
            "a cluster picks the GPU itself",
        ),
        (["--on", "slurm"], "no srun"),
        (["--on", "slurm", "--slurm.executor", "condor"], "unknown executor 'condor'"),
        (["--on", "slurm", "--slurm.minutes", "0"], "at least one minute"),
        (
            ["--on", "slurm", "--slurm.partitoin", "gpu"],
            "does not know --slurm.partitoin gpu; did you mean '--slurm.partition'?",
        ),
        (["--slurm.partition", "gpu"], "--slurm.partition is for runs on slurm: add --on slurm"),
        (["--on", "ray", "--slurm.minutes", "9"], "add --on slurm"),
        (
            ["--dry-run", "--on", "slurm", "--ray.address", "local"],
            "--ray.address is for runs on ray: add --on ray",
        ),
    ],
)
def test_a_mistake_is_refused_before_anything_is_queued(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["reproduce", "table1", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", ["", "ray://"])
def test_another_service_at_the_address_of_ray_gives_one_line_at_once(
    before: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="pip install 'atcl[ray]'")

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as line:
            line.recv(100)
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        address = f"{before}127.0.0.1:{server.getsockname()[1]}"
        words = ["--results", str(tmp_path), "--on", "ray", "--ray.address", address]
        assert main(["reproduce", "digits", *words]) == 2
        thread.join(10)
    errors = capfd.readouterr().err
    assert errors.startswith(f"atcl: no Ray cluster at {address}: what answers there is not Ray")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "module"), [(name, module) for name, module in NEEDS.items() if module != "atcl"]
)
def test_a_missing_extra_is_named_with_its_command(
    name: str,
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["reproduce", "digits", "--on", name, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"pip install 'atcl[{name}]'\n")


def test_commands_of_the_page_can_be_parsed() -> None:
    page = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
    commands = re.findall(r"^atcl reproduce (.*?)(?:  +#.*)?$", page, re.M)
    options = [shlex.split(option) for option in re.findall(r"`(--slurm\..*?)`", page)]
    assert len(commands) > 3
    assert {option[0].removeprefix("--slurm.") for option in options} == {one.name for one in fields(Slurm)}
    examples = [shlex.split(command) for command in commands]
    for words in [*examples, *(["table1", *option] for option in options if len(option) > 1)]:
        assert not parse(Reproduce, words, "atcl reproduce", return_unknown_args=True)[1], words


def test_every_launcher_is_tested_here() -> None:
    assert LAUNCHERS.keys() == OPTIONS.keys() == NEEDS.keys()


def test_a_plan_for_slurm_is_made_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", None)
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    words = ["reproduce", "digits", "--seeds", "1", *folders]
    assert main([*words, "--dry-run", "--on", "slurm", "--slurm.partition", "gpu"]) == 0
    printed = capsys.readouterr().out
    assert "atcl train digits/warmup-pla --seed 1" in printed
    assert "4 runs, 4 at a time" in printed
    assert not list(tmp_path.iterdir())


def test_a_plan_divides_its_time_by_the_number_of_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit", reason="pip install 'atcl[slurm]'")
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    words = ["reproduce", "table1", "--datasets", "digits", "--dry-run", *folders]
    cluster = ["--on", "slurm", "--slurm.executor", "local", "--device", "cpu", "--workers", "3"]
    assert main([*words, *cluster]) == 0
    assert "30 runs, 3 at a time" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    done = job(tmp_path)
    run_job(done)
    result = read_json(done.path)
    result["training_seconds"] = 60.0
    metrics = result["metrics"].items()
    result["metrics"] = {name: {**one, "seconds": 20.0} for name, one in metrics if name != "worst"}
    write_json(done.path, result)
    jobs = [job(tmp_path, seed) for seed in range(2, 6)]  # of two minutes each
    device = result["environment"]["device"]
    for number, time_left in {1: "8:00", 2: "4:00", 4: "2:00", 9: "2:00"}.items():
        *_, last = plan_lines(jobs, tmp_path / "results", device, number)
        assert last.split()[-1] == time_left
