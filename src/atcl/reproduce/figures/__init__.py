"""The paper's figures, drawn from recorded runs: `FIGURES` names them."""

from atcl.reproduce.figures.catalogue import FIGURES

__all__ = ["FIGURES"]
