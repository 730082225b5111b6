"""One HTML page that shows runs: numbers, curves, images with their adversarial twins; it needs no network and no other file."""

from atcl.reports.writing import report

__all__ = ["report"]
