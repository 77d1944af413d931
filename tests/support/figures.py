"""Checks of figures."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


def assert_nothing_is_clipped(figure: Figure) -> None:
    """Assert that all labels, legends and panels of a figure lie within it."""
    figure.canvas.print_figure(io.BytesIO(), format="png", dpi=150)  # arranges the panels
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01, (box, width, height)
