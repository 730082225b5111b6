"""No data file can execute code: the source is searched for every way of reading that would let it."""

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/atcl"

# Modules that are not used at all: they unpickle, evaluate or import by name, or contain what does.
MODULES = {
    "_compat_pickle",
    "_pickle",
    "builtins",
    "cPickle",
    "cloudpickle",
    "dill",
    "hickle",
    "imp",
    "importlib",
    "joblib",
    "jsonpickle",
    "marshal",
    "multiprocessing.reduction",
    "numpy._core",
    "numpy.core",
    "numpy.lib",
    "pandas",
    "pickle",
    "ruamel",
    "runpy",
    "scipy.io",
    "shelve",
    "sklearn.externals",
    "sklearn.utils._joblib",
    "sys.modules",
    "torch._weights_only_unpickler",
    "torch.hub",
    "torch.jit._serialization",
    "torch.package",
    "torch.serialization",
    "yaml",
}
# Names that are not used either, as an attribute of anything, called or not.
NAMES = {
    "ForkingPickler",
    "NpzFile",
    "PackageImporter",
    "Pickler",
    "Unpickler",
    "__builtins__",
    "__import__",
    "__loader__",
    "exec_module",
    "find_class",
    "import_module",
    "load",
    "load_module",
    "load_state_dict_from_url",
    "load_url",
    "loadmat",
    "loads",
    "open_memmap",
    "read_array",
    "read_hdf",
    "read_pickle",
    "run_module",
    "run_path",
    "safe_globals",
    "unsafe_load",
}
BUILTINS = {"compile", "eval", "exec"}  # as names of their own: a model has an eval, too
SAFE = {"importlib.metadata", "importlib.resources"}  # no code is imported by them
# These read only data. Other uses of the same names are allowed by file, below.
PLAIN = {"json.loads", "safetensors.torch.load", "pickles.plain_data", "atcl.datasets.pickles.plain_data"}
CONDITIONS = {"torch.load": "weights_only=True", "numpy.load": "allow_pickle=False"}
ALLOWED = {
    ("cli/names.py", "sys.modules"),  # only whether PyTorch is imported already
    ("__init__.py", "importlib.import_module"),  # of modules of this package, from a table in that file
    ("__init__.py", "'load'"),  # the name in that table
    ("data/picture_files.py", "image.load"),  # of Pillow
    ("runs/execute.py", "position.learner.load"),  # of tensors in memory
    ("runs/execute.py", "position.best.load"),
    ("runs/export.py", "torch.jit.load"),  # of bytes that the same function has just written
}


def unsafe(source: str) -> list[str]:
    """Return what in a source file could execute a data file, by the full name where an import gives it."""
    tree = ast.parse(source)
    called = {node.func: node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = imported(tree)
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if forbidden(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module or ''}.{alias.name}" for alias in node.names]
            found += [name for name in full if name.endswith(".*") or forbidden(name) or suspect(name)]
        elif isinstance(node, ast.Attribute | ast.Name) and node not in inner:
            name = full_name(node, names)
            if (forbidden(name) or suspect(name)) and not meets(called.get(node), CONDITIONS.get(name)):
                found.append(name)
        elif isinstance(node, ast.Attribute | ast.Name) and forbidden(full_name(node, names)):
            found.append(full_name(node, names))
        elif isinstance(node, ast.Constant) and (node.value in NAMES or node.value in MODULES):
            found.append(repr(node.value))
    return found


def imported(tree: ast.AST) -> dict[str, str]:
    """Return what each name that an import binds stands for."""
    names = {"np": "numpy", "th": "torch", "pd": "pandas"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or (top := alias.name.partition(".")[0]): alias.name if alias.asname else top
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ast.unparse(node)


def forbidden(name: str) -> bool:
    parts = name.split(".")
    starts = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return bool(starts & MODULES) and not starts & SAFE


def suspect(name: str) -> bool:
    last = name.rpartition(".")[2]
    own = name.startswith("atcl.") and last not in CONDITIONS
    return name in BUILTINS or (last in NAMES and name not in PLAIN and not own)


def meets(call: ast.Call | None, condition: str | None) -> bool:
    """Return whether a call has the keyword that makes it safe, and no hidden keywords."""
    if call is None or condition is None:
        return False
    given = {f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords}
    return condition in given and not any(word.arg in (None, "pickle_module") for word in call.keywords)


@cache
def found_in_source() -> set[tuple[str, str]]:
    """Return the file and the name of everything unsafe in the package."""
    return {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in unsafe(path.read_text(encoding="utf-8"))
    }


def test_nothing_is_loaded_in_a_way_that_could_execute_code() -> None:
    assert found_in_source() - ALLOWED == set()


def test_the_list_of_what_is_allowed_is_no_longer_than_it_must_be() -> None:
    assert ALLOWED - found_in_source() == set()


@pytest.mark.parametrize(
    "line",
    """
    import pickle
    import os, pickle as p
    from pickle import loads
    from joblib import load
    import dill
    import shelve
    import pandas.io.pickle
    import _compat_pickle
    import torch._weights_only_unpickler
    from joblib.numpy_pickle import load
    from sklearn.externals import joblib
    sklearn.utils._joblib
    torch.load(path)
    torch.load(path, weights_only=False)
    torch.load(path, weights_only=flag)
    torch.load(path, weights_only=True, pickle_module=m)
    torch.load(path, weights_only=True, **more)
    import torch as t; t.load(path)
    from torch import load
    from torch import serialization as s; s.load(path)
    from torch.serialization import load; load(path)
    torch.serialization.load(path, weights_only=False)
    torch.serialization.pickle.loads(content)
    torch.jit.load(path)
    from torch import jit; jit.load(path)
    torch.hub.load(url)
    torch.hub.load_state_dict_from_url(url)
    from torch.hub import load_state_dict_from_url
    torch.package.PackageImporter(file)
    np.load(path)
    np.load(path, allow_pickle=True)
    np.load(path, allow_pickle=flag)
    np.load(path, **options)
    np.load(path, allow_pickle=False or flag)
    import numpy as n; n.load(path, allow_pickle=True)
    from numpy import load
    from numpy.lib.npyio import load
    import numpy.lib.npyio as io; io.load(path)
    from numpy.lib.format import read_array
    numpy.lib.format.read_array(file, allow_pickle=True)
    np.lib.npyio.NpzFile(file, allow_pickle=True)
    np.core.multiarray.load
    f = np.load; f(path)
    class A: read = np.load
    partial(np.load, allow_pickle=True)(path)
    getattr(np, 'load')(path)
    operator.attrgetter('load')(np)
    np.__dict__['load'](path)
    f = np; f.load(path)
    from scipy.io import loadmat
    scipy.io.loadmat(path)
    import scipy.io as sio; sio.loadmat(path)
    from scipy import io; io.loadmat(path)
    pandas.read_pickle(path)
    pd.read_hdf(path)
    from numpy import *
    import importlib; importlib.import_module('pickle')
    from importlib import import_module
    import importlib.util
    sys.modules['pickle'].loads(content)
    import sys as s; s.modules['x']
    from sys import modules
    __import__('pickle')
    import builtins; builtins.eval(text)
    from builtins import eval as e; e(text)
    eval(text)
    exec(text)
    compile(text, '', 'exec')
    f = eval
    runpy.run_path(path)
    from multiprocessing.reduction import ForkingPickler
    ForkingPickler.loads(content)
    import multiprocessing as m; m.reduction.ForkingPickler
    yaml.load(text, Loader=yaml.Loader)
    from yaml import unsafe_load
    """.strip().splitlines(),
)
def test_positive_control_what_could_execute_code_is_found(line: str) -> None:
    assert unsafe(line.strip())


@pytest.mark.parametrize(
    "line",
    """
    import torch; torch.load(path, weights_only=True)
    np.load(path, allow_pickle=False)
    import pickletools
    import safetensors.torch; safetensors.torch.load(content)
    import json; json.loads(text)
    model.eval()
    from sklearn.datasets import load_digits
    re.compile(text)
    torch.compile(f)
    import importlib.resources
    from importlib.metadata import version
    from atcl.datasets import pickles; pickles.plain_data(content)
    """.strip().splitlines(),
)
def test_what_cannot_execute_code_is_left_alone(line: str) -> None:
    assert unsafe(line.strip()) == []
