"""From a figure to PNG bytes, once for a lesson's page or many times for an explorer."""

import io
from collections.abc import Callable
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from mha_course.plots.style import STYLE

CSS_PIXELS_PER_INCH = 100
DOTS_PER_INCH = 160  # 1.6 drawn pixels to a CSS pixel: crisp on a laptop's screen

Parts = TypeVar("Parts")


def css_size(figure: Figure) -> tuple[int, int]:
    """Return the width and height, in CSS pixels, at which a figure is shown."""
    width, height = figure.get_size_inches()
    return round(width * CSS_PIXELS_PER_INCH), round(height * CSS_PIXELS_PER_INCH)


def png(figure: Figure) -> bytes:
    """Draw the whole figure and return it as PNG bytes, the same bytes for the same figure."""
    return Painter(figure).png(compress_level=9)  # stored in a notebook: small before quick


def once(figure: Figure, lay_out: Callable[[Figure], Parts]) -> Parts:
    """Call `lay_out(figure)` in the course's style the first time, return the same artists every time after.

    A `draw(figure, data)` that starts with this lays its figure out once and then only
    replaces data, which is what makes an explorer quick and keeps it from jumping.
    """
    # Kept on the figure itself: the artists refer to it, so a table of ours would never let go.
    if not hasattr(figure, "mha_course_parts"):
        with mpl.rc_context(STYLE):
            figure.mha_course_parts = lay_out(figure)  # type: ignore[attr-defined]
    return figure.mha_course_parts  # type: ignore[attr-defined,no-any-return]


class Painter:
    """Draws one figure again and again, redoing only what moves.

    Artists made with `animated=True` are drawn anew each time, in their z-order, over a saved
    picture of everything else. A figure without such artists is drawn whole each time.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure
        self._background: Any = None

    def png(self, compress_level: int = 1) -> bytes:
        """Draw the figure as it now is and return it as PNG bytes.

        Args:
            compress_level: of zlib, 1 (quick: a third of the default's time) to 9 (small).
        """
        moving = sorted(
            self._figure.findobj(lambda artist: artist.get_animated()),
            key=lambda artist: artist.get_zorder(),
        )
        if self._background is None or not moving:
            self._start()
        canvas = self._figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        if moving:
            canvas.restore_region(self._background)
            for artist in moving:
                artist.draw(canvas.get_renderer())
        picture = Image.fromarray(_rgb(canvas))
        file = io.BytesIO()
        picture.save(file, format="PNG", compress_level=compress_level)
        return file.getvalue()

    def _start(self) -> None:
        """Lay out and draw all that stands still, and keep that picture."""
        figure = self._figure
        figure.set_dpi(DOTS_PER_INCH)
        canvas = FigureCanvasAgg(figure)
        with mpl.rc_context(STYLE):  # ticks are made while they are drawn
            canvas.draw()
        # Frozen: from here on a longer label must not move the axes.
        figure.set_layout_engine("none")
        self._background = canvas.copy_from_bbox(figure.bbox)


def _rgb(canvas: FigureCanvasAgg) -> Any:
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
