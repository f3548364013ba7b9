"""Many words in one artist: much quicker to draw than a `Text` for each."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D


class Font(NamedTuple):
    """How a word is drawn.

    Attributes:
        size: in points.
        family: that matplotlib brings along.
        origin: "middle" or "left", where a word's place is; always half way up a letter.
    """

    size: float = 9
    family: str = "DejaVu Sans"
    origin: str = "middle"


LABEL = Font()


def written(ax: Axes, words: tuple[str, ...], font: Font = LABEL, at: tuple[float, float] = (0, 0)) -> PathCollection:
    """Add words to axes, all at one place until their offsets are set; `outlines` gives other words.

    Args:
        ax: the axes; the limits do not follow the words.
        words: what is written.
        font: how.
        at: where, in data coordinates.

    Returns:
        The artist, animated.
    """
    collection = PathCollection(outlines(words, font), offsets=[at] * len(words), offset_transform=ax.transData)
    collection.set(facecolor="black", linewidth=0, zorder=3, animated=True)
    collection.set_transform(Affine2D().scale(1 / 72) + ax.get_figure().dpi_scale_trans)  # paths are in points
    ax.add_collection(collection, autolim=False)
    return collection


def outlines(words: Iterable[str], font: Font = LABEL) -> list[Path]:
    """The outline of each word, for `set_paths` of what `written` returned; made once for each word."""
    return [_outline(word, font) for word in words]


@cache
def _outline(word: str, font: Font) -> Path:
    path = TextPath((0, 0), word, size=font.size, prop=FontProperties(family=font.family))
    x = path.get_extents().get_points()[:, 0].mean() if font.origin == "middle" else 0
    return Path(path.vertices - (x, 0.36 * font.size), path.codes)
