"""Which texts a figure really draws, and where."""

import contextlib
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from mha_course import plots


def texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its place in pixels."""
    seen: dict[int, tuple[str, Bbox]] = {}
    with _recording(seen):
        plots.png(figure)
    return list(seen.values())


def texts_outside(figure: Figure) -> list[str]:
    """The texts that are cut off by the edge of the figure."""
    places = texts(figure)
    assert places, "nothing is written at all"
    edge = figure.bbox.padded(0.5)  # half a pixel of antialiasing
    return [
        text for text, box in places if box.x0 < edge.x0 or box.y0 < edge.y0 or box.x1 > edge.x1 or box.y1 > edge.y1
    ]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of texts that are written over each other."""
    places = texts(figure)
    inner = [(text, box.padded(-1)) for text, box in places]
    return [(a, b) for i, (a, x) in enumerate(inner) for b, y in inner[i + 1 :] if x.overlaps(y)]


@contextlib.contextmanager
def _recording(seen: dict[int, tuple[str, Bbox]]) -> Iterator[None]:
    plain = Text.draw

    def draw(self: Text, renderer: object) -> None:
        plain(self, renderer)
        if self.get_visible() and self.get_text():
            seen[id(self)] = self.get_text(), self.get_window_extent(renderer).frozen()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        yield
