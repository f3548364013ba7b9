"""Explorers: one line in a notebook gives controls, a picture and numbers that follow them."""

from mha_course.explorers._geometry import geometry

__all__ = ["geometry"]
