"""Right and wrong solutions of notebook 11: a sliding window and a running state, and how their cost grows."""

import math

import pytest
import torch
from torch.nn import functional as F

from mha_course import linear, masks
from mha_course.checks import check, engine
from mha_course.checks.held import Held
from mha_course.dot_product import attention
from tests.checks.heads import unreached

ALL = "the numbers are right, but all S x S scores are held at once"
STEEP = "the numbers are right, but the cost grows with S x S"


def dense(sees, weigh=lambda s: s.softmax(-1), empty=None):
    """A window by a mask: all S x S scores."""

    def fn(q, k, v, window):
        t, s = torch.arange(len(q))[:, None], torch.arange(len(q))
        scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(~sees(t, s, window), -math.inf)
        weights = weigh(scores)
        return (weights if empty is None else weights.nan_to_num(empty)) @ v

    return fn


def by_slices(start, stop=lambda t, window: t + 1, divisor=lambda k, window: k.shape[1] ** 0.5, use=None, weigh=None):
    """Token by token, each with a slice of the keys and values."""

    def fn(q, k, v, window):
        out = torch.zeros_like(q)
        for t in range(len(q)):
            at = slice(start(t, window), stop(t, window))
            s = k[at] @ q[t] / divisor(k[at], window)
            weights = s.softmax(0) if weigh is None else weigh(s)
            out[t] = weights @ (v[at] if use is None else use(k, v, at))
        return out

    return fn


def window_start(t, window):
    return max(0, t - window + 1)


def scaled(divisor):
    return by_slices(window_start, divisor=divisor)


def of_all(q, k, v, window):
    return by_slices(window_start, divisor=lambda few, window: math.sqrt(len(k)))(q, k, v, window)


def late_mask(keys):
    """Softmax over the window, with keys of 0 or the first key where there is none, and the mask after it."""

    def fn(q, k, v, window):
        at = torch.arange(len(q))[:, None] - torch.arange(window)
        scores = torch.einsum("sd,swd->sw", q, keys(k, at)) / math.sqrt(q.shape[1])
        return torch.einsum("sw,swd->sd", scores.softmax(-1) * (at >= 0), v[at.clamp(min=0)])

    return fn


def reversed_values(q, k, v, window):
    """Values padded with zeros, and turned round."""
    vs = F.pad(v, (0, 0, window - 1, 0)).unfold(0, window, 1)
    at = torch.arange(len(q))[:, None] - torch.arange(window)
    s = torch.einsum("sd,swd->sw", q, k[at.clamp(min=0)]) / math.sqrt(q.shape[1])
    return torch.einsum("sw,sdw->sd", s.masked_fill(at < 0, -math.inf).softmax(-1), vs)


def softmax_of_columns(q, k, v, window):
    far = torch.arange(window)
    at = torch.arange(len(q))[:, None] - far
    s = torch.einsum("sd,swd->sw", q, k[at.clamp(min=0)]) / math.sqrt(q.shape[1])
    return torch.einsum("sw,swd->sd", s.masked_fill(at < 0, -math.inf).softmax(0).nan_to_num(0), v[at.clamp(min=0)])


OWN = "the own key is left out"
WINDOW_WRONG = [
    (dense(lambda t, s, w: (s < t) & (t - s <= w)), OWN),
    (dense(lambda t, s, w: (s < t) & (t - s < w)), f"{OWN}: the window ends before the token, and window - 1"),
    (dense(lambda t, s, w: (s < t) & (t - s < w), empty=0), f"{OWN}: the window ends before the token, and window - 1"),
    (dense(lambda t, s, w: (s <= t) & (t - s < w - 1)), "the window is off by one: window - 1"),
    (dense(lambda t, s, w: (s - t).abs() <= w), "window keys on both sides"),
    (dense(lambda t, s, w: (s >= t - w // 2) & (s < t - w // 2 + w)), "the window lies on both sides"),
    (dense(lambda t, s, w: t - s < w), "the far end of the window is cut, the future is not hidden"),
    (dense(lambda t, s, w: (s >= 0) | (t >= 0)), "no window at all"),
    (dense(lambda t, s, w: (s <= t) & (s > t // w * w - w)), "a block and the one before it are seen up to the token"),
    (
        dense(lambda t, s, w: (s // w <= t // w) & (s // w >= t // w - 1)),
        "a block and the one before it are seen whole",
    ),
    (dense(lambda t, s, w: (s // w <= t // w) & (s > t // w * w - w)), "a block and the one before it are seen whole"),
    (dense(lambda t, s, w: (s >= len(t) - w) & (t >= 0)), "every token sees the last window keys"),
    (dense(lambda t, s, w: (s < w) & (t >= 0)), "every token sees the first window keys"),
    (dense(lambda t, s, w: (s <= t) & (t - s < w), lambda s: s.softmax(0)), "the softmax runs over the tokens"),
    (softmax_of_columns, "the softmax runs over the tokens"),
    (by_slices(lambda t, window: t - window + 1), "a slice that starts below 0 counts from the end"),
    (by_slices(window_start, lambda t, window: max(window, t + 1)), "the first tokens look ahead"),
    (scaled(lambda k, window: k.shape[1]), "the scores are divided by D, not"),
    (scaled(lambda k, window: k.shape[1] ** -0.5), "the scores are multiplied by the square root of D"),
    (scaled(lambda k, window: len(k) ** 0.5), "the scores are divided by the square root of the number of keys seen"),
    (of_all, "the scores are divided by the square root of the number of keys, not of D"),
    (scaled(lambda k, window: 2**0.5), "the scores are divided by the square root of 2"),
    (scaled(lambda k, window: 2), "the scores are divided by 2"),
    (scaled(lambda k, window: 4), "the scores are divided by 4"),
    (scaled(lambda k, window: 8), "the scores are divided by 8"),
    (by_slices(window_start, weigh=torch.exp), "the exponentials are not divided"),
    (by_slices(window_start, weigh=lambda s: s), "the softmax is missing"),
    (by_slices(window_start, weigh=lambda s: torch.ones_like(s) / len(s)), "every value in the window counts alike"),
    (late_mask(lambda k, at: k[at.clamp(min=0)]), "the mask comes after the softmax"),
    # as zeros for keys and values do: the weight goes to them
    (late_mask(lambda k, at: k[at.clamp(min=0)] * (at >= 0)[..., None]), "zeros stand before the first key"),
    (reversed_values, "the values come in reverse order"),
    (by_slices(window_start, use=lambda k, v, at: k[at]), "the weights meet the keys"),
    (
        by_slices(lambda t, window: max(0, t - window), divisor=lambda k, window: 1),
        "two faults: the window is off by one: window + 1 keys are seen; and the scores are not scaled",
    ),
    # not named
    (by_slices(window_start, use=lambda k, v, at: v[at] ** 2), "the numbers differ from the reference"),
    (lambda q, k, v, window: q[:-1], "out has the wrong shape"),
    (lambda q, k, v: q, "it cannot be called as fn(q, k, v, window)"),
]


def recurrent(
    use=lambda q, k, v: (q, k, v),
    state=lambda old, new: old + new,
    norm=lambda old, new: old + new,
    read=lambda q, state, norm, t: q @ state / (q @ norm),
    late=(False, False),
    kept=lambda state, norm, q: (state, norm),
):
    """One token after another, with some steps changed; late: state and sum of keys are read before the update."""

    def fn(q, k, v):
        q, k, v = use(q, k, v)
        old, total = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), torch.zeros(k.shape[1], dtype=v.dtype)
        out = torch.empty_like(v)
        for t in range(len(q)):
            new, new_total = state(old, torch.outer(k[t], v[t])), norm(total, k[t])
            seen = (old if late[0] else new, total if late[1] else new_total)
            out[t] = read(q[t], *seen, t)
            old, total = kept(new, new_total, q[t])
        return out

    return fn


def read(of):
    return {"read": lambda q, state, norm, t: of(q @ state, q @ norm, q, norm, t)}


def mapped(of):
    return {"use": lambda q, k, v: (of(q), of(k), v)}


def both(step):
    return {"state": step, "norm": step}


def fading(rate):
    return lambda old, new: rate * old + new


def over_tokens(q, k, v):
    state = torch.cumsum(k[:, :, None] * v[:, None], 0)
    return torch.einsum("sm,smd->sd", q, state) / (q * k.cumsum(0)).sum()


def running_mean(q, k, v):
    state = torch.cumsum(k[:, :, None] * v[:, None], 0) / torch.arange(1, len(q) + 1)[:, None, None]
    return torch.einsum("sm,smd->sd", q, state) / (q * k.cumsum(0)).sum(-1, keepdim=True)


def unscaled_softmax(q, k, v):
    causal = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    return (q @ k.T).masked_fill(~causal, -math.inf).softmax(-1) @ v


AGAIN = "a feature map is applied again"
NORM = "the sum of keys is not multiplied by the query"
LINEAR_WRONG = [
    (recurrent(late=(False, True)), "the own token is not in the sum of keys when it is read"),
    (
        recurrent(late=(False, True), **read(lambda s, den, q, norm, t: s / den if den else 0 * s)),
        "the own token is not in the sum of keys when it is read",
    ),
    *((recurrent(**both(fading(rate))), "the state decays") for rate in (0.9, 0.99, 0.95, 0.5)),
    *((recurrent(state=fading(rate)), "the state decays") for rate in (0.9, 0.99, 0.95, 0.5)),
    (recurrent(**read(lambda s, den, q, norm, t: s / t)), "the output is divided by the position, 0 at first"),
    (running_mean, "the state is a mean, the normaliser a sum"),
    (recurrent(**read(lambda s, den, q, norm, t: s / den / den)), "the output is divided by the normaliser twice"),
    (recurrent(**read(lambda s, den, q, norm, t: s * den)), "the output is multiplied by the normaliser"),
    (recurrent(**read(lambda s, den, q, norm, t: s / norm.norm())), f"{NORM}: its length"),
    (recurrent(**read(lambda s, den, q, norm, t: s / q.sum())), "the output is divided by the sum of the query's"),
    (over_tokens, "the normaliser is summed over the tokens"),
    (recurrent(**both(lambda old, new: new)), "state and sum of keys are overwritten"),
    (
        recurrent(kept=lambda state, norm, q: (state / (q @ norm), norm / (q @ norm))),
        "the state and the sum of keys are divided in each step",
    ),
    (unscaled_softmax, "a softmax of the products is taken"),
    (recurrent(**mapped(torch.exp)), f"{AGAIN}: q and k have theirs already, e^x"),
    (recurrent(**mapped(lambda x: x.softmax(-1))), f"{AGAIN}: q and k have theirs already, a softmax"),
    (recurrent(use=lambda q, k, v: (linear.kernel.elu_plus_one(q), k, v)), f"{AGAIN}: q and k have theirs already, to"),
    (recurrent(use=lambda q, k, v: (q, linear.kernel.elu_plus_one(k), v)), f"{AGAIN}: q and k have theirs already, to"),
    (recurrent(use=lambda q, k, v: (q, q, v)), "the state is built from the queries and read by the queries"),
    (recurrent(use=lambda q, k, v: (k, k, v)), "the keys read the state, not the queries"),
    (lambda q, k, v: recurrent()(q, k, v).cumsum(0), "the outputs are added up"),
    (
        recurrent(use=lambda q, k, v: (q, k.exp(), v), **read(lambda s, den, q, norm, t: s)),
        "the numbers differ from the reference",
    ),
    (
        recurrent(**mapped(torch.exp), **read(lambda s, den, q, norm, t: s / norm.sum())),
        "two faults: the sum of keys is not multiplied by the query",
    ),
    (lambda q, k, v: recurrent()(q, k, v).T, "out has the wrong shape"),
]


@pytest.mark.parametrize(("fn", "fault"), WINDOW_WRONG)
def test_a_wrong_window(fn, fault):
    verdict = check("windowed_attention", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) >= 2


@pytest.mark.parametrize(("fn", "fault"), LINEAR_WRONG)
def test_a_wrong_state(fn, fault):
    verdict = check("linear_attention", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) >= 2


@pytest.mark.parametrize(("name", "wrong"), [("windowed_attention", WINDOW_WRONG), ("linear_attention", LINEAR_WRONG)])
def test_every_variation_is_what_some_solution_does(name, wrong):
    assert unreached(name, [fn for fn, _ in wrong]) == []


def test_the_references_are_those_of_the_package():
    for q, k, v, window in (case.inputs for case in engine._TASKS["windowed_attention"].cases()):
        out = attention(q, k, v, mask=masks.sliding_window(len(q), window)).out
        torch.testing.assert_close(engine._TASKS["windowed_attention"].reference(q, k, v, window), out)
    for q, k, v in (case.inputs for case in engine._TASKS["linear_attention"].cases()):
        four = (x[None, None] for x in (q, k, v))
        out = linear.kernel.attention(*four, is_causal=True, feature_map=lambda x: x)[0, 0]
        torch.testing.assert_close(engine._TASKS["linear_attention"].reference(q, k, v), out)


def blocks_of(block):
    """A right window, block queries at a time."""

    def fn(q, k, v, window):
        parts = []
        for i in range(0, len(q), block):
            lo = max(0, i - window + 1)
            t, s = torch.arange(i, min(i + block, len(q)))[:, None], torch.arange(lo, min(i + block, len(q)))
            scores = q[i : i + block] @ k[lo : i + block].T / math.sqrt(q.shape[1])
            scores = scores.masked_fill((s > t) | (t - s >= window), -math.inf)
            parts.append(scores.softmax(-1) @ v[lo : i + block])
        return torch.cat(parts)

    return fn


@pytest.mark.parametrize("block", [1, 32, 128, 300])
def test_blocks_of_any_fixed_length_are_cheap(block):
    assert check("windowed_attention", blocks_of(block))


def written_into(q, k, v, window):
    scores = torch.full((len(q), len(q)), -math.inf, dtype=q.dtype)
    for t in range(len(q)):
        lo = window_start(t, window)
        scores[t, lo : t + 1] = k[lo : t + 1] @ q[t]
    return (scores / math.sqrt(q.shape[1])).softmax(-1) @ v


def a_mask_of_all(q, k, v, window):
    """The scores are few, the mask is of all."""
    mask = torch.ones(len(q), len(q), dtype=torch.bool).tril().triu(1 - window)
    out = torch.empty_like(q)
    for t in range(len(q)):
        places = mask[t].nonzero()[:, 0]
        out[t] = (k[places] @ q[t] / math.sqrt(q.shape[1])).softmax(0) @ v[places]
    return out


def whole_row(q, k, v, window):
    return by_slices(lambda t, window: 0, weigh=lambda s: torch.cat([0 * s[:-window], s[-window:].softmax(0)]))(
        q, k, v, window
    )


def kept_rows(q, k, v, window):
    """Half of all scores are held: those of the past."""
    scores = [k[: t + 1] @ q[t] / math.sqrt(q.shape[1]) for t in range(len(q))]
    return torch.stack([s[-window:].softmax(0) @ v[: t + 1][-window:] for t, s in enumerate(scores)])


@pytest.mark.parametrize(
    ("fn", "fault"),
    [
        (dense(lambda t, s, w: (s <= t) & (t - s < w)), ALL),
        (written_into, ALL),
        (a_mask_of_all, STEEP),
        (whole_row, STEEP),
        (kept_rows, STEEP),
    ],
)
def test_right_numbers_at_too_high_a_cost(fn, fault):
    verdict = check("windowed_attention", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_evidence_says_what_is_held_or_made():
    evidence = check("windowed_attention", written_into).evidence
    assert evidence.endswith(" numbers are held at the same time: S x S = 160000, with S = 400")
    few, many = check("windowed_attention", whole_row).evidence.split(" are made with S = 200, ")
    assert many.endswith(" with S = 400")
    assert int(many.split()[0]) > 3 * int(few.split()[0])


def test_what_fails_at_the_longer_length_is_no_fault():
    def short_alone(q, k, v, window):
        if len(q) > 200:
            raise RuntimeError
        return dense(lambda t, s, w: (s <= t) & (t - s < w))(q, k, v, window)

    assert check("windowed_attention", short_alone)


def test_what_is_made_counts_once_and_masks_are_not_held():
    x = torch.zeros(7, 11)
    with Held([x]) as held:
        y = x + 1
        y[1:].T.mul_(2)
        del y
        z = x > 0
        del z
    assert (held.made, held.most) == (2 * 77, 77)


def test_windows_of_every_kind_meet_a_case():
    sizes = [(c.sizes["S"], c.sizes["window"]) for c in engine._TASKS["windowed_attention"].cases()]
    assert any(S % window for S, window in sizes)
    assert any(window > 1 and S % window == 0 for S, window in sizes)
    assert any(window == 1 for _, window in sizes)
    assert any(1 < S < window for S, window in sizes)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-8])
def test_a_small_number_in_the_denominator_is_right(epsilon):
    assert check("linear_attention", recurrent(**read(lambda s, den, q, norm, t: s / (den + epsilon))))
