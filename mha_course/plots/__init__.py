"""Pictures for the lessons: matplotlib and arrays in, a `Figure` out; no pyplot state."""

from mha_course.plots.charts import bars, curves, heatmap
from mha_course.plots.render import Painter, css_size, once, png
from mha_course.plots.style import COLOURS, blank, figure

__all__ = ["COLOURS", "Painter", "bars", "blank", "css_size", "curves", "figure", "heatmap", "once", "png"]
