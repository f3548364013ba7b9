"""`retrieval` and its rotation: what is drawn, from where, and what is refused."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.data import random_rotation, retrieval
from mha_course.training import fit


def drawn(seed: int = 0, batch: int = 3, keys: int = 7, **options):
    return retrieval(batch, keys, **({"generator": torch.Generator().manual_seed(seed)} | options))


def test_shapes_and_types():
    found = drawn(width=11, classes=5)
    assert [tuple(x.shape) for x in found] == [(3, 1, 11), (3, 7, 11), (3, 7, 5), (3,)]
    assert [x.dtype for x in found] == [torch.float32] * 3 + [torch.int64]


def test_sizes_by_default():
    found = drawn()
    assert found.key.shape[-1] == 32
    assert found.value.shape[-1] == 16


def test_without_noise_the_query_is_the_rotated_key_of_the_target():
    R = random_rotation(11, seed=4)
    query, key, value, target = drawn(batch=101, width=11, classes=5, noise=0, rotation=R)
    assert (value.sum(-1) == 1).all()
    assert ((value == 0) | (value == 1)).all()
    distance = (torch.einsum("ij,bsj->bsi", R, key) - query).norm(dim=-1)  # (B, S)
    place = distance.argmin(-1)
    assert_close(distance.amin(-1), torch.zeros(101), rtol=0, atol=1e-5)
    assert (distance.sort(-1).values[:, 1] > 0.1).all()
    assert_close(value[torch.arange(101), place].argmax(-1), target)


def test_noise_has_its_standard_deviation_in_every_entry():
    # 2000 x 13 draws: the standard error of a std is 1 / sqrt(2 n) = .4 % of it; five of them
    for noise in (0.3, 2.0):
        query, key, _, _ = drawn(batch=2000, keys=1, width=13, noise=noise)
        rest = query[:, 0] - key[:, 0] @ random_rotation(13).T
        assert_close(rest.std().item(), noise, rtol=0.022, atol=0)
        assert_close(rest.mean().item(), 0.0, rtol=0, atol=5 * noise / math.sqrt(26000))
        # independent entries: their mean spreads by noise / sqrt(13), known to 1 / sqrt(2 * 2000) = 1.6 %
        assert_close(rest.mean(-1).std().item(), noise / math.sqrt(13), rtol=0.08, atol=0)
    assert_close(drawn().query, drawn(noise=0.3).query)


def test_noise_is_not_that_of_the_keys():
    query, key, _, _ = drawn(batch=2000, keys=1, width=13, noise=1.0)
    rest = query[:, 0] - key[:, 0] @ random_rotation(13).T
    overlap = (rest * key[:, 0]).mean().item()  # of independent entries: 0 with standard error 1 / sqrt(26000)
    assert_close(overlap, 0.0, rtol=0, atol=5 / math.sqrt(26000))


def test_keys_are_standard_normal():
    key = drawn(batch=100, keys=20, width=13).key  # standard errors: .0062 of the mean, .0044 of the std
    assert_close(key.mean().item(), 0.0, rtol=0, atol=0.031)
    assert_close(key.std().item(), 1.0, rtol=0, atol=0.022)
    assert_close(key.pow(4).mean().item(), 3.0, rtol=0, atol=5 * math.sqrt(96 / 26000))


def test_places_and_classes_are_uniform():
    n, S, C = 6000, 5, 7
    R = random_rotation(11)
    query, key, value, target = drawn(batch=n, keys=S, width=11, classes=C, noise=0, rotation=R)
    place = (torch.einsum("ij,bsj->bsi", R, key) - query).norm(dim=-1).argmin(-1)
    for counted, kinds in ((place, S), (target, C)):
        share = F.one_hot(counted, kinds).double().mean(0)
        error = math.sqrt(1 / kinds * (1 - 1 / kinds) / n)
        assert_close(share, torch.full((kinds,), 1 / kinds).double(), rtol=0, atol=5 * error)
    assert_close(value.mean((0, 1)), torch.full((C,), 1 / C), rtol=0, atol=0.015)
    # a class says nothing about the place: the target's class is that of another key in 1 of 7 cases
    other = value[torch.arange(n), (place + 1) % S].argmax(-1)
    assert_close((other == target).double().mean().item(), 1 / C, rtol=0, atol=5 * math.sqrt(6 / 49 / n))


def test_the_default_rotation_is_fixed_and_another_can_be_given():
    assert_close(drawn(width=11).query, drawn(width=11, rotation=random_rotation(11)).query, rtol=0, atol=0)
    other = drawn(width=11, rotation=random_rotation(11, seed=1))
    assert_close(other.key, drawn(width=11).key, rtol=0, atol=0)
    assert (other.query - drawn(width=11).query).abs().max() > 0.1


def test_who_knows_the_rotation_finds_the_key():
    query, key, value, target = drawn(batch=1000, keys=16)
    scores = (query @ random_rotation(32)) @ key.transpose(1, 2)  # (B, 1, S)
    answer = value[torch.arange(1000), scores[:, 0].argmax(-1)].argmax(-1)
    assert (answer == target).double().mean() > 0.98


def test_a_seed_repeats_and_a_generator_goes_on():
    for one, same, other in zip(drawn(5), drawn(5), drawn(6), strict=True):
        assert_close(one, same, rtol=0, atol=0)
        assert not torch.equal(one, other)
    generator = torch.Generator().manual_seed(5)
    first, second = (retrieval(3, 7, generator=generator) for _ in range(2))
    assert_close(first.key, drawn(5).key, rtol=0, atol=0)
    assert not torch.equal(first.key, second.key)


def test_the_random_state_of_the_caller_is_untouched():
    before = torch.get_rng_state()
    drawn()
    random_rotation(3)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_is_a_batch_for_fit():
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.nn.Parameter(torch.zeros(16))

        def forward(self, query, key, value):
            return self.logits.expand(len(value), 16)

    done = fit(Constant(), [drawn()], loss=F.cross_entropy, steps=1, lr=0.1)
    assert_close(done.losses.item(), math.log(16), rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 32])
def test_a_rotation_turns_and_does_not_mirror(width):
    for seed in range(5):
        R = random_rotation(width, seed)
        assert R.dtype == torch.float32
        assert_close(R @ R.T, torch.eye(width), rtol=0, atol=1e-6)
        assert_close(R.double().det().item(), 1.0, rtol=0, atol=1e-5)


def test_rotations_prefer_no_direction():
    # an entry has mean 0 and variance 1 / 3; five standard errors of the mean of 500
    all_of_them = torch.stack([random_rotation(3, seed) for seed in range(500)])
    assert_close(all_of_them.mean(0), torch.zeros(3, 3), rtol=0, atol=5 * math.sqrt(1 / 3 / 500))
    # the trace 1 + 2 cos(angle) of a uniform rotation has mean 0 and variance 1
    trace = all_of_them.diagonal(dim1=1, dim2=2).sum(-1)
    assert_close(trace.var().item(), 1.0, rtol=0, atol=0.35)


def test_a_rotation_depends_on_its_seed_alone():
    assert_close(random_rotation(5, 3), random_rotation(5, 3), rtol=0, atol=0)
    assert (random_rotation(5, 3) - random_rotation(5, 4)).abs().max() > 0.1
    assert_close(random_rotation(5), random_rotation(5, 0), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"batch": 2.0}, TypeError, "batch must be an integer, got float"),
        ({"keys": True}, TypeError, "keys must be an integer, got bool"),
        ({"width": "3"}, TypeError, "width must be an integer, got str"),
        ({"classes": None}, TypeError, "classes must be an integer, got NoneType"),
        ({"noise": "0.3"}, TypeError, "noise must be a number, got str"),
        ({"noise": True}, TypeError, "noise must be a number, got bool"),
        ({"rotation": [[1.0]]}, TypeError, "rotation must be a tensor, got list"),
        ({"rotation": torch.eye(32).double()}, TypeError, r"rotation must be float32, got torch\.float64"),
        ({"generator": None}, TypeError, r"generator must be a torch\.Generator, got NoneType"),
        ({"batch": 0}, ValueError, "batch must be at least 1, got 0"),
        ({"keys": 0}, ValueError, "keys must be at least 1, got 0"),
        ({"width": -1}, ValueError, "width must be at least 1, got -1"),
        ({"classes": 0}, ValueError, "classes must be at least 1, got 0"),
        ({"noise": -0.1}, ValueError, r"noise must be finite and at least 0, got -0\.1"),
        ({"noise": math.inf}, ValueError, "noise must be finite and at least 0, got inf"),
        ({"noise": math.nan}, ValueError, "noise must be finite and at least 0, got nan"),
        ({"rotation": torch.eye(3)}, ValueError, r"rotation must have shape \(32, 32\), got \(3, 3\)"),
        ({"rotation": torch.ones(32)}, ValueError, r"rotation must have shape \(32, 32\), got \(32,\)"),
    ],
)
@pytest.mark.unchecked
def test_retrieval_refuses(changes, kind, match):
    with pytest.raises(kind, match=match):
        drawn(**changes)


@pytest.mark.parametrize(
    ("width", "kind", "match"),
    [(2.0, TypeError, "width must be an integer, got float"), (0, ValueError, "width must be at least 1, got 0")],
)
@pytest.mark.unchecked
def test_rotation_refuses(width, kind, match):
    with pytest.raises(kind, match=match):
        random_rotation(width)
