"""What is drawn, from where, and what is refused: `retrieval` and its rotation, `copy_back`, `latest_marked`."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.data import NO_ANSWER, copy_back, latest_marked, random_rotation, retrieval
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


def sequences(kind, seed: int = 0, batch: int = 3, length: int = 29, **options):
    return kind(batch, length, **({"generator": torch.Generator().manual_seed(seed)} | options))


@pytest.mark.parametrize("kind", [copy_back, latest_marked])
def test_sequences_have_their_shapes_types_and_range(kind):
    found = sequences(kind, vocabulary=6, batch=31)
    for x in found:
        assert x.shape == (31, 29)
        assert x.dtype == torch.int64
    assert found.tokens.unique().tolist() == list(range(6))
    assert sequences(kind, batch=100).tokens.unique().tolist() == list(range(16))


@pytest.mark.parametrize("back", [0, 1, 5, 28, 29, 40])
def test_the_answer_stood_so_many_places_earlier(back):
    tokens, target = sequences(copy_back, back=back)
    for b in range(3):
        for t in range(29):
            assert target[b, t] == (tokens[b, t - back] if t >= back else NO_ANSWER)


def test_two_back_by_default():
    tokens, target = sequences(copy_back)
    assert_close(target[:, 2:], tokens[:, :-2], rtol=0, atol=0)
    assert (target[:, :2] == NO_ANSWER).all()


def test_copied_tokens_are_uniform_and_independent():
    tokens, _ = sequences(copy_back, batch=2000, length=11, vocabulary=5)
    share = F.one_hot(tokens, 5).double().mean(0)  # (T, 5)
    assert_close(share, torch.full_like(share, 0.2), rtol=0, atol=5 * math.sqrt(0.16 / 2000))
    for distance in range(1, 11):
        same = (tokens[:, distance:] == tokens[:, :-distance]).double().mean().item()
        assert_close(same, 0.2, rtol=0, atol=5 * math.sqrt(0.16 / (2000 * (11 - distance))))


@pytest.mark.parametrize("share", [0.125, 0.6, 1])
def test_the_answer_is_the_value_of_the_latest_marked_token(share):
    tokens, target = sequences(latest_marked, vocabulary=10, share=share)
    for b in range(3):
        answer = NO_ANSWER
        for t in range(29):
            if tokens[b, t] >= 5:
                answer = tokens[b, t] - 5
            assert target[b, t] == answer


def test_marks_come_as_often_as_asked_for_and_say_nothing_about_the_value():
    for share, options in ((0.125, {}), (0.4, {"share": 0.4})):
        tokens, _ = sequences(latest_marked, batch=3000, length=10, **options)
        marked, value = tokens >= 8, tokens % 8
        assert_close(
            marked.double().mean(0),
            torch.full((10,), share).double(),
            rtol=0,
            atol=5 * math.sqrt(share * (1 - share) / 3000),
        )
        for of_these in (marked, ~marked):
            found = F.one_hot(value[of_these], 8).double().mean(0)
            n = int(of_these.sum())
            assert_close(found, torch.full_like(found, 1 / 8), rtol=0, atol=5 * math.sqrt(7 / 64 / n))
        both = (marked[:, 1:] & marked[:, :-1]).double().mean().item()
        assert_close(both, share**2, rtol=0, atol=5 * share / math.sqrt(27000))


def test_only_what_comes_before_the_first_mark_has_no_answer():
    tokens, target = sequences(latest_marked, batch=4000, length=5)
    assert_close(target == NO_ANSWER, ~(tokens >= 8).cummax(1).values, rtol=0, atol=0)
    none = (target[:, -1] == NO_ANSWER).double().mean().item()
    assert_close(none, 0.875**5, rtol=0, atol=5 * math.sqrt(0.25 / 4000))


@pytest.mark.parametrize("kind", [copy_back, latest_marked])
def test_sequences_of_a_seed_repeat_and_a_generator_goes_on(kind):
    for one, same, other in zip(sequences(kind, 5), sequences(kind, 5), sequences(kind, 6), strict=True):
        assert_close(one, same, rtol=0, atol=0)
        assert not torch.equal(one, other)
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(5)
    first, second = (kind(3, 29, generator=generator) for _ in range(2))
    assert_close(first.tokens, sequences(kind, 5).tokens, rtol=0, atol=0)
    assert not torch.equal(first.tokens, second.tokens)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [copy_back, latest_marked])
def test_places_without_an_answer_are_left_out_of_the_loss(kind):
    target = sequences(kind).target
    logits = torch.randn(3, 29, 16, generator=torch.Generator().manual_seed(1))
    has = target != NO_ANSWER
    assert 0 < has.sum() < has.numel()
    assert_close(F.cross_entropy(logits.flatten(0, 1), target.flatten()), F.cross_entropy(logits[has], target[has]))


@pytest.mark.parametrize(
    ("kind", "changes", "error", "match"),
    [
        *(
            case
            for kind in (copy_back, latest_marked)
            for case in (
                (kind, {"batch": 2.0}, TypeError, "batch must be an integer, got float"),
                (kind, {"length": True}, TypeError, "length must be an integer, got bool"),
                (kind, {"vocabulary": "16"}, TypeError, "vocabulary must be an integer, got str"),
                (kind, {"generator": None}, TypeError, r"generator must be a torch\.Generator, got NoneType"),
                (kind, {"batch": 0}, ValueError, "batch must be at least 1, got 0"),
                (kind, {"length": 0}, ValueError, "length must be at least 1, got 0"),
                (kind, {"vocabulary": 0}, ValueError, "vocabulary must be at least 1, got 0"),
            )
        ),
        (copy_back, {"back": 1.0}, TypeError, "back must be an integer, got float"),
        (copy_back, {"back": -1}, ValueError, "back must be at least 0, got -1"),
        (latest_marked, {"vocabulary": 7}, ValueError, "vocabulary must be even, .* got 7"),
        (latest_marked, {"share": "0.1"}, TypeError, "share must be a number, got str"),
        (latest_marked, {"share": True}, TypeError, "share must be a number, got bool"),
        (latest_marked, {"share": 0.0}, ValueError, r"share must lie in \(0, 1\], got 0\.0"),
        (latest_marked, {"share": 1.1}, ValueError, r"share must lie in \(0, 1\], got 1\.1"),
        (latest_marked, {"share": math.nan}, ValueError, r"share must lie in \(0, 1\], got nan"),
    ],
)
@pytest.mark.unchecked
def test_sequences_refuse(kind, changes, error, match):
    with pytest.raises(error, match=match):
        sequences(kind, **changes)
