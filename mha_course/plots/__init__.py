"""Pictures for the lessons: matplotlib and arrays in, a `Figure` out; no pyplot state."""

from mha_course.plots import course, geometry, paths
from mha_course.plots.charts import bars, curves, heatmap
from mha_course.plots.dots import dots
from mha_course.plots.render import Painter, css_size, once, png
from mha_course.plots.style import COLOURS, blank, figure

__all__ = [
    "COLOURS",
    "Painter",
    "bars",
    "blank",
    "course",
    "css_size",
    "curves",
    "dots",
    "figure",
    "geometry",
    "heatmap",
    "once",
    "paths",
    "png",
]
