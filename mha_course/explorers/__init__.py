"""Explorers: one line in a notebook gives controls, a picture and numbers that follow them."""

from mha_course.explorers._bits import bits
from mha_course.explorers._cache import cache
from mha_course.explorers._clinic import clinic
from mha_course.explorers._collapse import collapse
from mha_course.explorers._floats import floats
from mha_course.explorers._geometry import geometry
from mha_course.explorers._heads import heads
from mha_course.explorers._masks import masks
from mha_course.explorers._positions import positions
from mha_course.explorers._roofline import roofline
from mha_course.explorers._scaling import scaling
from mha_course.explorers._sparsity import sparsity
from mha_course.explorers._tiles import tiles

__all__ = [
    "bits",
    "cache",
    "clinic",
    "collapse",
    "floats",
    "geometry",
    "heads",
    "masks",
    "positions",
    "roofline",
    "scaling",
    "sparsity",
    "tiles",
]
