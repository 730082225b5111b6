"""The style of each method, the same in every figure.

Colour, dash and marker differ, so that curves can be told apart in grey print and by colour-blind readers.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Style:
    """How a curve is drawn."""

    colour: str
    dash: Literal["-", "--", "-.", ":"]
    marker: str
    width: float = 1.4


STYLES: dict[str, Style] = {
    "oracle": Style("#000000", "-", "o"),
    "two-stage": Style("#7F6000", "--", "s"),
    "warm-up + PLA": Style("#0072B2", "-", "*", 2.0),
    "warm-up": Style("#56B4E9", "-.", "h"),
    "PLA": Style("#882255", ":", "d", 1.8),
    "LOG": Style("#D55E00", "--", "X"),
    "EXP": Style("#E8C500", "-.", "<"),
    "FORWARD": Style("#009E73", "-", "^"),
    "FREE": Style("#7E4FBF", ":", "v"),
    "NN": Style("#CC79A7", "--", "D"),
    "SCL_NL": Style("#E69F00", "-", "P"),
    "SCL_EXP": Style("#5B6F00", "-.", ">"),
    "TRADES": Style("#004D40", "--", "p"),
    "TRADES-LOG": Style("#A84632", ":", "8"),
    "TRADES-PLA": Style("#5C9BAE", "-.", "H"),
    "warm-up (EXP)": Style("#8C8C00", "--", "1"),
    "PLA (EXP)": Style("#C48FB5", ":", "2"),
    "warm-up + PLA (EXP)": Style("#B8A000", "-", "3", 2.0),
    "warm-up (k) + PLA": Style("#3E8E7E", "--", "4"),
    "warm-up (ε, k) + PLA": Style("#6A3D9A", ":", "+"),
    "natural images": Style("#8A8A8A", "-", "."),
}

SERIES: tuple[Style, ...] = (  # for values of one setting, from dark to light
    Style("#00204D", "-", "o"),
    Style("#31446B", "--", "s"),
    Style("#666970", "-.", "^"),
    Style("#958F78", ":", "D"),
    Style("#CBBA69", "-", "v"),
    Style("#E8CF00", "--", "P"),
)
