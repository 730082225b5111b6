"""The paper's figures, drawn from recorded runs: `FIGURES` names them."""

from atcl.figures.catalogue import FIGURES

__all__ = ["FIGURES"]
