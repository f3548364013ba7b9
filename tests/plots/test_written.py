"""Words as outlines in one artist."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from mha_course import plots
from mha_course.plots.written import LABEL, Font, outlines, written


@pytest.mark.parametrize("font", [LABEL, Font(11, origin="left"), Font(10, "DejaVu Sans Mono", "left")])
@pytest.mark.parametrize("word", ["c5", "head 0", "(B, T, E) = (1, 6, 8)"])
def test_outlines_of_their_letters(word: str, font: Font) -> None:
    (path,) = outlines((word,), font)
    plain = TextPath((0, 0), word, size=font.size, prop=FontProperties(family=font.family))
    moved = path.get_extents().get_points() - plain.get_extents().get_points()
    np.testing.assert_allclose(moved, np.broadcast_to(moved[0], (2, 2)))
    middle = path.get_extents().get_points().mean(axis=0)
    assert abs(middle[1]) < 0.15 * font.size
    np.testing.assert_allclose(middle[0] if font.origin == "middle" else moved[0, 0], 0, atol=1e-9)


def test_a_word_is_drawn_at_its_place_in_its_size() -> None:
    fig, ax = plots.figure(size=(4, 3))
    ax.set(xlim=(0, 10), ylim=(0, 10))
    collection = written(ax, ("H", "H"), Font(36), at=(5, 5))
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    before = np.array(canvas.buffer_rgba())  # animated: not drawn with the figure
    ax.draw_artist(collection)
    rows, columns = (np.asarray(canvas.buffer_rgba()) != before).any(-1).nonzero()
    x, y = ax.transData.transform((5, 5))
    np.testing.assert_allclose((columns.min() + columns.max()) / 2, x, atol=1.5)
    np.testing.assert_allclose(len(before) - (rows.min() + rows.max()) / 2, y, atol=2)
    letter = outlines(("H",), Font(36))[0].get_extents()
    np.testing.assert_allclose(np.ptp(rows), letter.height * fig.dpi / 72, atol=2)
    assert ax.get_xlim() == (0, 10)
