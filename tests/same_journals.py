"""Train a short run of each method at two commits, on one machine: a refactoring must change no number.

python tests/same_journals.py OLD [NEW]      # two commits; by default the working tree is compared with OLD
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# Runs in a process of its own, with the source of one commit, and uses the command line alone:
# what lies behind it may have moved.
TRAIN = """
import contextlib, io, re, sys
from atcl.cli import main

def printed(*words):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert main(words) == 0, words
    return text.getvalue()

out, part, parts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = [line.split()[0] for line in printed("list", "recipes").splitlines() if line.startswith("digits/")]
for name in names[part::parts]:
    # four epochs a stage, in which the schedules run their whole course
    short = {"epochs": 4, "after": 1, "over": 2, "first": 1, "last": 2}
    option = r"^--(stages[.]\\d+[.][\\w.-]*?)(epochs|after|over|first|last) (\\d+)$"
    words = ["train", name, "--out", f"{out}/{name.replace('/', '-')}", "--device", "cpu", "--no-report"]
    for prefix, key, value in re.findall(option, printed("show", name), re.M):
        if int(value) > short[key]:
            words += [f"--{prefix}{key}", str(short[key])]
    if not name.endswith("trades"):
        words += ["--observe", "gradients", "attacks", "--observe-every", "2"]
    print(name, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(words) == 0, words
"""


def train(source: Path, out: Path, processes: int) -> None:
    """Train each method of digits with the package in a folder of sources, in several processes."""

    def start(part: int) -> None:
        words = [sys.executable, "-W", "ignore", "-c", TRAIN, str(out), str(part), str(processes)]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        subprocess.run(words, check=True, cwd=out, env=environment)

    out.mkdir()
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(start, range(processes)))


def numbers(folder: Path) -> dict[str, Any]:
    """Return what a run wrote that follows from its settings and seed alone."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    for measured in (result["metrics"], result["last_epoch"]["metrics"]):
        for one in measured.values():
            one.pop("seconds")
    lines = {
        name: [
            _timeless(json.loads(line)) for line in (folder / name).read_text(encoding="utf-8").splitlines()
        ]
        for name in ("journal.jsonl", "analysis.jsonl")
        if (folder / name).exists()
    }
    # the digest stands for the recipe, to which later versions add settings at their defaults
    kept = ("name", "digest", "seed", "selection", "metrics", "held", "data", "model")
    last = result["last_epoch"]["metrics"]
    return {**lines, **{key: result[key] for key in kept}, "last_epoch": last}


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}


def main() -> int:
    """Compare two commits; exit code 1 where they differ."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = []
        for number, commit in enumerate((wanted.old, wanted.new)):
            tree, out = (Path(place, f"{kind}-{number}") for kind in ("tree", "runs"))
            if commit:
                words = ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit]
                subprocess.run(words, cwd=ROOT, check=True)
            try:
                train((tree if commit else ROOT) / "src", out, wanted.processes)
            finally:
                if commit:
                    subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
            found.append({run.name: numbers(run) for run in sorted(out.iterdir())})
    old, new = found
    differing = [
        f"{name}: {key}"
        for name in old | new
        for key in old.get(name, {}) | new.get(name, {})
        if old.get(name, {}).get(key) != new.get(name, {}).get(key)
    ]
    same = f"{len(old)} runs: journals, analyses, measured numbers and weights are the same"
    print("\n".join(differing) or same)
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
