"""Child processes that tests kill or measure; without a fork server, as on Windows, these tests skip."""

import multiprocessing
from typing import TYPE_CHECKING

import pytest

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
# The server starts a child in a moment, with what it has imported.
if TYPE_CHECKING or FORKS:
    CONTEXT = multiprocessing.get_context("forkserver")
else:
    CONTEXT = multiprocessing.get_context("spawn")

if FORKS:  # there is one server for all tests of a process, and one list of what it imports
    CONTEXT.set_forkserver_preload(
        [
            "atcl.runs.execute",
            "torch._dynamo",
            "tests.contracts.test_every_resume",
            "tests.datasets.test_hostile_files",
            "tests.datasets.test_pickles",
            "tests.evaluation.test_evaluate",
        ]
    )

needs_fork_server = pytest.mark.skipif(not FORKS, reason="this system has no fork server for child processes")
