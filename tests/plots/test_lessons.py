"""The pictures that belong to one lesson: the map of the course, two paths, the plane of keys, the hull."""

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from mha_course import plots
from tests.plots.drawn import overlapping, texts_outside

TRIANGLE = np.array([[1.0, 1.0], [4.0, 1.5], [2.0, 3.0]])


@pytest.mark.parametrize(
    "figure",
    [
        plots.course.course_map({0, 1, 2}),
        plots.paths.chain_and_hop(8),
        plots.geometry.dot_and_cosine((1, 0.5)),
        plots.geometry.hull(TRIANGLE, TRIANGLE, {"all scores -4": TRIANGLE.mean(axis=0)}),
    ],
    ids=["map", "paths", "plane", "hull"],
)
def test_every_text_lies_inside_the_picture_and_beside_the_others(figure: Figure) -> None:
    assert texts_outside(figure) == []
    assert overlapping(figure) == []


def test_map_fills_the_lessons_that_are_there() -> None:
    (ax,) = plots.course.course_map({0, 7}).axes
    boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    assert len(boxes) == 20
    filled = [i for i, box in enumerate(boxes) if to_hex(box.get_facecolor()) != "#ffffff"]
    assert filled == [0, 7]
    assert [i for i, box in enumerate(boxes) if box.get_linestyle() in ("-", "solid")] == [0, 7]
    written = [text.get_text() for text in ax.texts]
    assert [f"{i:02}" for i in range(20)] == [text for text in written if text.isdigit()]


@pytest.mark.parametrize("n", [2, 5])
def test_chain_has_a_step_to_each_neighbour_and_attention_one_arc_from_each(n: int) -> None:
    ends = []
    for ax in plots.paths.chain_and_hop(n).axes:
        assert sum(isinstance(patch, Circle) for patch in ax.patches) == n
        arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
        ends.append([(arrow._posA_posB[0][0], arrow._posA_posB[1][0]) for arrow in arrows])
    assert ends == [[(i, i + 1) for i in range(n - 1)], [(i, n - 1) for i in range(n - 1)]]


def test_chain_bad_input() -> None:
    with pytest.raises(ValueError, match=r"^n must be at least 2, got 1$"):
        plots.paths.chain_and_hop(1)


def test_plane_is_coloured_by_the_dot_product_and_by_the_cosine() -> None:
    q = np.array([2.0, -1.0])
    figure = plots.geometry.dot_and_cosine(q, reach=2.0)
    line = np.linspace(-2, 2, 300)
    x, y = np.meshgrid(line, line)
    dots = q[0] * x + q[1] * y
    meshes = [next(c for c in ax.collections if isinstance(c, QuadMesh)) for ax in figure.axes[:2]]
    np.testing.assert_allclose(meshes[0].get_array(), dots)
    np.testing.assert_allclose(meshes[1].get_array(), dots / (np.hypot(x, y) * np.hypot(*q)))
    for mesh in meshes:
        low, high = mesh.get_clim()
        assert low == -high  # white is a score, or a cosine, of 0


def test_hull_shows_values_outputs_and_what_is_marked() -> None:
    outputs = np.array([[2.0, 1.5], [2.5, 2.0]])
    (ax,) = plots.geometry.hull(TRIANGLE, outputs, {"mean": (2.0, 2.0)}).axes
    assert [tuple(map(tuple, c.get_offsets())) for c in ax.collections] == [
        tuple(map(tuple, outputs)),
        tuple(map(tuple, TRIANGLE)),
    ]
    np.testing.assert_allclose(ax.patches[0].get_xy()[:3], TRIANGLE)
    marked = {line.get_label(): line.get_xydata()[0].tolist() for line in ax.lines}
    assert marked == {"mean": [2.0, 2.0], "the zero vector": [0.0, 0.0]}
