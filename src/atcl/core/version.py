"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("atcl")
except PackageNotFoundError:  # the source runs without being installed
    __version__ = "unknown"
