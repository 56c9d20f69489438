"""The one place that opens matplotlib figures: on first use, without display or global state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito 2008: told apart with every common colour blindness and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@contextlib.contextmanager
def saved_figure(path: Path, *, width: float, height: float) -> Iterator[Figure]:
    """A figure that is saved as PNG and SVG and then cleared, without pyplot's registry.

    path: of the PNG; the SVG has the same name. width, height: in inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "gasweep", "font.size": 9.5, "axes.axisbelow": True}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.clear()


def plain_text(text: str) -> str:
    """User text, kept from matplotlib's formula syntax."""
    return text.replace("$", r"\$")
