"""Measurements of notebook 03, on small sizes."""

import inspect
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from mha_course.experiments import scaling as lesson
from mha_course.experiments import scaling_training


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small arrays as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def test_products_have_mean_0_and_the_root_of_the_width_as_spread():
    widths = [1, 4, 64, 256]
    found = lesson.dot_products(widths)
    root = np.sqrt(widths)
    assert found.mean.shape == found.std.shape == (20, 4)
    assert found.mean.dtype == found.std.dtype == np.float64
    # 20 x 1000 products: standard error of the mean root / sqrt(20000); of the std at most 1 % (kurtosis 3 + 6 / d_k)
    assert_allclose(found.mean.mean(0) / root, np.zeros(4), atol=5 / math.sqrt(20_000))
    assert_allclose(found.std.mean(0), root, rtol=0.05)
    # the means of 1000 products spread by root / sqrt(1000); a std of 20 numbers is good to 16 %
    assert_allclose(found.mean.std(0, ddof=1), root / math.sqrt(1000), rtol=0.65)


def test_spread_of_products_is_unbiased():
    # two products: s^2 has mean d_k and standard deviation 1.43 d_k; 4000 of them, five standard errors
    found = lesson.dot_products([64], repeats=4000, pairs=2)
    assert_allclose((found.std**2).mean(), 64, rtol=5 * 1.43 / math.sqrt(4000))
    assert_allclose((found.std**2).std(), 1.43 * 64, rtol=0.2)


def test_products_of_a_width_depend_on_the_seed_alone():
    both = lesson.dot_products([3, 5], repeats=7, pairs=11, seed=2)
    assert both.mean.shape == (7, 2)
    for column, width in enumerate([3, 5]):
        alone = lesson.dot_products([width], repeats=7, pairs=11, seed=2)
        assert_allclose(both.mean[:, column], alone.mean[:, 0], rtol=0)
        assert_allclose(both.std[:, column], alone.std[:, 0], rtol=0)
    assert (lesson.dot_products([3], repeats=7, pairs=11, seed=3).mean != both.mean[:, :1]).all()
    assert len(np.unique(both.mean)) == 14


@pytest.mark.parametrize("scaled", [False, True])
def test_saturation_equals_autograd(scaled):
    S, T, D, seed = 7, 5, 3, 2
    generator = torch.Generator().manual_seed(seed)
    x, y, v, z = (normal(generator, *shape) for shape in ((T, 64), (S, 64), (S, 16), (T, 16)))
    W_k, W_q = (normal(generator, 64, D) / 8 for _ in range(2))
    W_q.requires_grad_()
    scores = (x @ W_q) @ (y @ W_k).T * (1 / math.sqrt(D) if scaled else 1)
    weights = scores.softmax(-1)
    losses = (z * (weights @ v)).sum(-1)  # (T,)
    by_scores, by_map = zip(
        *(torch.autograd.grad(loss, (scores, W_q), retain_graph=True) for loss in losses), strict=True
    )
    found = lesson.saturation([D], scaled=scaled, keys=S, queries=T, seeds=[seed])
    assert_allclose(found.score_gradient[0, 0], [grad.norm() for grad in by_scores], rtol=1e-9)
    assert_allclose(found.query_gradient[0, 0], [grad.norm() for grad in by_map], rtol=1e-9)
    assert_allclose(found.batch_gradient, [[torch.autograd.grad(losses.mean(), W_q)[0].norm()]], rtol=1e-9)
    w = weights.detach().numpy()
    assert_allclose(found.entropy, [[-(w * np.log(w)).sum(-1).mean()]], rtol=1e-9)
    assert_allclose(found.largest, [[w.max(-1).mean()]], rtol=1e-9)


def test_saturation_has_one_row_a_seed_and_one_column_a_width():
    found = lesson.saturation([2, 3, 5], scaled=True, keys=7, queries=11, seeds=[4, 9])
    assert [x.shape for x in found] == [(2, 3), (2, 3), (2, 3, 11), (2, 3, 11), (2, 3)]
    alone = lesson.saturation([3, 5], scaled=True, keys=7, queries=11, seeds=[9])
    for all_of_them, part in zip(found, alone, strict=True):
        assert_allclose(all_of_them[1:, 1:], part, rtol=0)
    assert (found.batch_gradient[0] != found.batch_gradient[1]).all()
    assert lesson.saturation([2], scaled=True).score_gradient.shape == (5, 1, 256)


def test_what_the_lesson_says_about_saturation():
    widths = [16, 64, 256, 1024, 4096]
    free, scaled = (lesson.saturation(widths, scaled=scaled, seeds=range(2)) for scaled in (False, True))
    assert_allclose(scaled.entropy, np.full((2, 5), 3.68), atol=0.15)  # 4.16 at most
    assert_allclose(scaled.largest, np.full((2, 5), 0.11), atol=0.02)
    assert_allclose(np.median(scaled.query_gradient, -1), np.full((2, 5), 5.0), atol=1.2)
    assert (free.entropy[:, 2] < 0.35).all()
    assert (free.largest[:, 2] > 0.85).all()
    # the batch's gradient grows while that of the median query dies
    assert (np.diff(free.batch_gradient[:, :3]) > 0).all()
    assert (free.batch_gradient[:, 2] > 10 * scaled.batch_gradient[:, 2]).all()
    median = np.median(free.query_gradient, -1)
    assert (median[:, 0] > 15).all()
    assert (median[:, 4] < 0.01).all()
    dead = (free.score_gradient < 1e-6).mean(-1)
    assert (dead[:, 0] == 0).all()
    assert (dead[:, 4] > 0.4).all()
    assert (scaled.score_gradient > 1e-6).all()


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("unit", 1.0),
        ("default", 1 / 3),
        ("randn", 128.0),
        ("xavier", 2 * 128 / (128 + 32)),
        ("1/sqrt(d_k)", 128 / 32),
        ("Q = K", math.sqrt(1 + 32 / 128)),
        ("QK-norm", 1 / math.sqrt(32)),
    ],
)
def test_spread_of_scores_is_the_predicted_one(init, std):
    # one repeat is off by about 3 %, so the mean of 20 by .7 %
    found = lesson.score_spread(init, d_model=128, d_k=32, seed=1)
    assert found.std.shape == (20,)
    assert_allclose(found.std.mean(), std, rtol=0.035)


def test_spread_names_every_init_of_the_trainings():
    assert lesson.SPREADS == (*scaling_training.INITS, "Q = K", "QK-norm")


def test_spread_by_hand():
    E, D, T = 11, 5, 7
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(T, E, generator=generator)
    W_q, W_k = (scaling_training.draw_map("xavier", E, D, generator) for _ in range(2))
    scores = ((x @ W_q) @ (x @ W_k).T / math.sqrt(D)).double().numpy()
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = lesson.score_spread("xavier", d_model=E, d_k=D, tokens=T, repeats=1, seed=2)
    assert_allclose(found.std, [scores[~np.eye(T, dtype=bool)].std(ddof=1)], rtol=1e-5)
    assert_allclose(found.own, [np.diagonal(scores).mean()], rtol=1e-5)
    assert_allclose(found.own_weight, [np.diagonal(weights).mean()], rtol=1e-5)
    assert_allclose(found.largest, [weights.max(1).mean()], rtol=1e-5)


def test_a_token_sees_itself_where_q_is_k():
    # |q|^2 / sqrt(d_k) has mean sqrt(d_k) = 8; among 64 tokens with scores N(0, 1.06^2) that gets .94
    found = lesson.score_spread("Q = K")
    assert_allclose(found.own.mean(), 8.0, rtol=0.03)
    assert_allclose(found.own_weight.mean(), 0.94, atol=0.02)
    assert_allclose(found.largest, found.own_weight, rtol=1e-3)
    assert_allclose(found.std.mean(), math.sqrt(1 + 64 / 512), rtol=0.03)
    other = lesson.score_spread("unit")
    assert_allclose(other.own.mean(), 0.0, atol=0.2)  # its standard error is .03
    assert_allclose(other.own_weight.mean(), 1 / 64, rtol=0.2)
    assert_allclose(other.largest.mean(), 0.11, atol=0.01)


def test_spread_under_a_scale_alone_multiplies_the_scores():
    # "randn" is "unit" times sqrt(d_model) in W_q and in W_k
    options = {"d_model": 11, "d_k": 5, "tokens": 7, "repeats": 3, "seed": 2}
    unit, randn = (lesson.score_spread(init, **options) for init in ("unit", "randn"))
    assert_allclose(randn.std, 11 * unit.std, rtol=1e-5)
    assert_allclose(randn.own, 11 * unit.own, rtol=1e-5)
    assert (randn.largest > unit.largest).all()


def test_cosines_of_width_1_are_1_or_minus_1():
    found = lesson.score_spread("QK-norm", d_model=3, d_k=1, tokens=40, repeats=2)
    assert_allclose(found.std, [1.0, 1.0], atol=0.1)
    e = math.e
    assert (found.largest < e / (e + 39 / e)).all()


def test_spread_has_one_entry_a_repeat():
    found = lesson.score_spread("unit", d_model=11, d_k=5, tokens=7, repeats=3, seed=2)
    assert [x.shape for x in found] == [(3,)] * 4
    assert len(np.unique(found.std)) == 3
    again = lesson.score_spread("unit", d_model=11, d_k=5, tokens=7, repeats=2, seed=2)
    assert_allclose(found.std[:2], again.std, rtol=1e-6)
    assert (lesson.score_spread("unit", d_model=11, d_k=5, tokens=7, repeats=3, seed=3).std != found.std).all()


@pytest.mark.parametrize("log_scaling", [False, True])
def test_crowding_equals_softmax_by_hand(log_scaling):
    S, repeats, score, seed = 7, 3, 2.5, 4
    scores = normal(torch.Generator().manual_seed(seed), repeats, S).numpy()
    scores[:, 0] = score
    powers = np.exp(scores * (math.log(7, 64) if log_scaling else 1))
    w = powers / powers.sum(-1, keepdims=True)
    found = lesson.crowding([S], score=score, log_scaling=log_scaling, repeats=repeats, seed=seed)
    assert_allclose(found.weight, w[:, :1], rtol=1e-9)
    assert_allclose(found.entropy[:, 0], -(w * np.log(w)).sum(-1), rtol=1e-9)


def test_a_score_of_5_drowns_in_a_crowd():
    lengths = [64, 1024, 16384]
    found = lesson.crowding(lengths)
    assert found.weight.shape == found.entropy.shape == (20, 3)
    # the others add up to (S - 1) e^(1/2) on average, their log-mean falls short of that a little at S = 64
    expected = [math.exp(5) / (math.exp(5) + (S - 1) * math.exp(0.5)) for S in lengths]
    assert_allclose(found.weight.mean(0), expected, rtol=0.04)
    # entropy of softmax over very many N(0, 1) is log S - 1/2
    assert_allclose(found.entropy.mean(0)[2], math.log(16384) - 0.5, atol=0.05)
    assert (np.diff(found.entropy) > 0).all()


def test_log_scaling_holds_the_weight_up():
    plain, scaled = (lesson.crowding([64, 16384], log_scaling=on) for on in (False, True))
    assert_allclose(scaled.weight[:, 0], plain.weight[:, 0], rtol=1e-9)
    assert (scaled.weight[:, 1] > 0.25).all()
    assert (scaled.entropy[:, 1] < plain.entropy[:, 1] - 3).all()


def test_a_single_key_gets_everything():
    for on in (False, True):
        found = lesson.crowding([1], log_scaling=on, repeats=2)
        assert_allclose(found.weight, np.ones((2, 1)))
        assert_allclose(found.entropy, np.zeros((2, 1)), atol=1e-12)


def test_crowding_of_a_length_depends_on_the_seed_alone():
    both = lesson.crowding([5, 7], repeats=3, seed=2)
    assert_allclose(both.weight[:, 1:], lesson.crowding([7], repeats=3, seed=2).weight, rtol=0)
    assert (lesson.crowding([5, 7], repeats=3, seed=3).weight != both.weight).all()
    assert len(np.unique(both.weight)) == 6


def test_the_trainings_are_part_of_the_lesson():
    for name in ("INITS", "RULES", "Run", "draw_map", "steps_to", "train"):
        assert getattr(lesson, name) is getattr(scaling_training, name)


@pytest.mark.parametrize(
    "call",
    [
        lambda: lesson.dot_products([3], repeats=2, pairs=5),
        lambda: lesson.saturation([3], scaled=True, keys=5, queries=7, seeds=[0]),
        lambda: [lesson.score_spread(init, d_model=5, d_k=3, repeats=2) for init in lesson.SPREADS],
        lambda: lesson.crowding([7], repeats=2),
    ],
)
def test_the_random_state_of_the_caller_is_untouched(call):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    call()
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: lesson.dot_products([]), "^widths must hold at least one number, got none$"),
        (lambda: lesson.dot_products([4, 0]), "^each of widths must be at least 1, got 0$"),
        (lambda: lesson.dot_products([4], repeats=0), "repeats must be at least 1, got 0"),
        (lambda: lesson.dot_products([4], pairs=1), "pairs must be at least 2, got 1"),
        (lambda: lesson.saturation([], scaled=True), "^widths must hold at least one number"),
        (lambda: lesson.saturation([0], scaled=True), "^each of widths must be at least 1, got 0$"),
        (lambda: lesson.saturation([4], scaled=True, keys=0), "keys must be at least 1, got 0"),
        (lambda: lesson.saturation([4], scaled=True, queries=0), "queries must be at least 1, got 0"),
        (lambda: lesson.saturation([4], scaled=True, seeds=[]), "seeds must hold at least one number, got none"),
        (lambda: lesson.score_spread("kaiming"), "init must be one of .*, got 'kaiming'"),
        (lambda: lesson.score_spread("unit", d_model=0), "d_model must be at least 1, got 0"),
        (lambda: lesson.score_spread("unit", d_k=0), "d_k must be at least 1, got 0"),
        (lambda: lesson.score_spread("unit", tokens=1), "tokens must be at least 2, got 1"),
        (lambda: lesson.score_spread("unit", repeats=0), "repeats must be at least 1, got 0"),
        (lambda: lesson.crowding([]), "^lengths must hold at least one number"),
        (lambda: lesson.crowding([0]), "^each of lengths must be at least 1, got 0$"),
        (lambda: lesson.crowding([4], repeats=0), "repeats must be at least 1, got 0"),
        (lambda: lesson.weights_by_width([4], keys=0), r"^keys must be at least 1, got 0$"),
        (lambda: lesson.weights_by_width([]), "^widths must hold at least one number, got none$"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_weights_by_width_take_the_first_entries_of_the_same_vectors():
    widths = [4, 7, 16]
    weights = lesson.weights_by_width(widths, keys=3, seed=5)
    drawn = torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).numpy()
    for column, d_k in enumerate(widths):
        for row, divisor in enumerate((1, math.sqrt(d_k))):
            powers = np.exp(drawn[1:, :d_k] @ drawn[0, :d_k] / divisor)
            assert_allclose(weights[row, column], powers / powers.sum(), rtol=1e-12)


def test_the_cover_shows_one_key_that_takes_all_and_rows_that_stay_mixed():
    raw, scaled = lesson.weights_by_width([4, 16, 64, 256, 1024])
    assert (raw[-2:].max(axis=1) > 0.99).all()
    assert (scaled.max(axis=1) < 0.5).all()


def test_the_second_of_three_layers_lacks_the_scale():
    spreads = lesson.three_layers([4, 16, 64, 256])
    growth = spreads[:, 1:] / spreads[:, :-1]
    assert_allclose(growth, [[1] * 3, [2] * 3, [1] * 3], rtol=0.05)
    assert spreads[0].min() > 10 * spreads[1].max()
    assert spreads[1, 0] < spreads[2, 0] < spreads[1, -1]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: lesson.dot_products([4.0]), "each of widths"),
        (lambda: lesson.weights_by_width(["3"]), "each of widths"),
        (lambda: lesson.three_layers([4.0]), "each of widths"),
        (lambda: lesson.saturation([4], scaled=True, keys=2.0), "keys"),
        (lambda: lesson.score_spread("unit", d_k=3.0), "d_k"),
        (lambda: lesson.crowding([True]), "each of lengths"),
        (lambda: lesson.train("none", d_k=3.0), "d_k"),
        (lambda: lesson.steps_to(np.ones(3), window=2.0), "window"),
        (lambda: lesson.draw_map("unit", 3.0, 2, torch.Generator()), "rows"),
    ],
)
def test_sizes_are_integers(call, name):
    with pytest.raises(TypeError, match=f"^{name} must be an integer, got (float|str|bool)$"):
        call()


@pytest.mark.unchecked
def test_numbers_that_cannot_be_meant():
    with pytest.raises(ValueError, match=r"^score must be finite, got nan$"):
        lesson.crowding([3], score=math.nan)
    with pytest.raises(ValueError, match=r"^until must lie in \(0, 1\], got nan$"):
        lesson.train("none", until=math.nan)
    with pytest.raises(ValueError, match=r"^columns must be at least 1, got 0$"):
        lesson.draw_map("xavier", 3, 0, torch.Generator())


def test_defaults():
    """What the lesson's calls leave out."""
    found = {
        fn.__name__: {
            name: p.default for name, p in inspect.signature(fn).parameters.items() if p.default is not p.empty
        }
        for fn in (
            lesson.dot_products,
            lesson.saturation,
            lesson.score_spread,
            lesson.crowding,
            lesson.weights_by_width,
        )
    }
    assert found == {
        "dot_products": {"repeats": 20, "pairs": 1000, "seed": 0},
        "saturation": {"keys": 64, "queries": 256, "seeds": range(5)},
        "score_spread": {"d_model": 512, "d_k": 64, "tokens": 64, "repeats": 20, "seed": 0},
        "crowding": {"score": 5.0, "log_scaling": False, "repeats": 20, "seed": 0},
        "weights_by_width": {"keys": 8, "seed": 0},
    }
