"""Right and wrong solutions of notebook 04: causal, padding, combined and window masks."""

import math

import pytest
import torch

from mha_course.checks import check
from mha_course.masks import band, sliding_window, to_additive
from mha_course.masks import causal as causal_mask
from mha_course.masks import padding as padding_mask

TYPE = "mask has type float32, expected bool, True = may attend"


def ones(T):
    return torch.ones(T, T, dtype=torch.bool)


def causal_loops(T):
    mask = torch.zeros(T, T, dtype=torch.bool)
    for t in range(T):
        for s in range(t + 1):
            mask[t, s] = True
    return mask


CAUSAL_RIGHT = [
    causal_mask,
    causal_loops,
    lambda T: ones(T).tril(),
    lambda T: ~ones(T).triu(1),
    lambda T: torch.arange(T) <= torch.arange(T)[:, None],
    lambda T: torch.arange(T)[:, None] >= torch.arange(T),
    lambda T: torch.tril(torch.ones(T, T)) == 1,
    lambda T: torch.tensor([[s <= t for s in range(T)] for t in range(T)]),
]
CAUSAL_WRONG = [
    (lambda T: ones(T).triu(1), "the mask is inverted"),
    (lambda T: torch.triu(torch.ones(T, T), diagonal=1).bool(), "the mask is inverted"),
    (lambda T: ones(T).triu(), "the wrong triangle"),
    (lambda T: torch.arange(T) >= torch.arange(T)[:, None], "the wrong triangle"),
    (lambda T: ones(T).tril().T, "the wrong triangle"),
    (lambda T: ones(T).tril(-1), "the diagonal is left out"),
    (lambda T: torch.arange(T) < torch.arange(T)[:, None], "the diagonal is left out"),
    (lambda T: ones(T).tril(1), "the diagonal is off by one"),
    (lambda T: ones(T), "every query sees every key"),
    (lambda T: ~ones(T), "no query sees anything"),
    (lambda T: torch.eye(T).bool(), "each query sees itself alone"),
    (lambda T: torch.ones(T, T).tril(), TYPE),
    (lambda T: to_additive(causal_mask(T)), TYPE),
    (lambda T: ones(T).tril().long(), "mask has type int64, expected bool"),
    # not named
    (lambda T: band(T, None, 2), "mask differs from the reference"),
    (lambda T: causal_mask(T)[None, None], "mask has the wrong shape"),
    (lambda T: torch.arange(T) <= torch.arange(T), "mask has the wrong shape"),
    (lambda T: causal_mask(T).numpy(), "mask is a NumPy array, expected a tensor"),
    (lambda T: causal_mask(T).tolist(), "it returns a list of 5 instead of one tensor"),
    (lambda T: None, "it returns None"),
    (lambda T, S: causal_mask(T), "it cannot be called as fn(T)"),
    (lambda T: torch.arange(T) <= torch.arange(T + 1)[:, None][T], "mask has the wrong shape"),
    (lambda T: torch.ones(T).tril(), "it raises RuntimeError: "),
]


def padding_loops(lengths, S):
    mask = torch.zeros(len(lengths), 1, 1, S, dtype=torch.bool)
    for b, n in enumerate(lengths.tolist()):
        mask[b, :, :, :n] = True
    return mask


def keys(compare):
    return lambda lengths, S: compare(torch.arange(S), lengths[:, None])[:, None, None]


PADDING_RIGHT = [
    padding_mask,
    padding_loops,
    keys(lambda key, n: key < n),
    keys(lambda key, n: ~(key >= n)),
    lambda lengths, S: torch.arange(S) < lengths[:, None, None, None],
    lambda lengths, S: torch.arange(S).expand(len(lengths), 1, 1, S) < lengths.view(-1, 1, 1, 1),
]
PADDING_WRONG = [
    (lambda lengths, S: (torch.arange(S) > lengths[:, None])[:, None, None], "the mask is inverted, and misses"),
    (lambda lengths, S: ~torch.ones(len(lengths), 1, 1, S).bool(), "every key is hidden"),
    (keys(lambda key, n: key >= n), "the mask is inverted"),
    (keys(lambda key, n: key <= n), "one key too many"),
    (keys(lambda key, n: key + 1 < n), "one key too few"),
    (lambda lengths, S: padding_mask(lengths, S).flip(-1), "the padding is taken to stand on the left"),
    (lambda lengths, S: torch.ones(len(lengths), 1, 1, S).bool(), "nothing is hidden"),
    (lambda lengths, S: padding_mask(lengths[0].expand(len(lengths)), S), "every sample has the length of the first"),
    (
        lambda lengths, S: padding_mask(lengths.max().expand(len(lengths)), S),
        "every sample has the length of the longest",
    ),
    (lambda lengths, S: torch.arange(S) < lengths[:, None], "the mask has the shape (B, S)"),
    (lambda lengths, S: padding_mask(lengths, S).squeeze(2), "the mask has the shape (B, 1, S)"),
    (lambda lengths, S: padding_mask(lengths, S).transpose(2, 3), "the mask lies along the queries"),
    (lambda lengths, S: padding_mask(lengths, S).permute(0, 3, 1, 2), "the mask has the shape (B, S, 1, 1)"),
    (lambda lengths, S: padding_mask(lengths, S).float(), TYPE),
    (lambda lengths, S: to_additive(padding_mask(lengths, S)), TYPE),
    (lambda lengths, S: padding_mask(lengths, S).int(), "mask has type int32, expected bool"),
    # not named
    (lambda lengths, S: padding_mask(lengths, S).expand(-1, 1, S, S), "mask has the wrong shape"),
    (
        lambda lengths, S: ~(torch.arange(S) < lengths[:, None]),
        "two faults: the mask is inverted, only padding is seen; and the mask has the shape (B, S)",
    ),
    (keys(lambda key, n: (key < n) & (key > 0)), "mask differs from the reference"),
    (lambda lengths, S: torch.arange(S) < lengths, "it raises RuntimeError: The size of tensor a (7)"),
]


def combined_loops(lengths, T):
    mask = torch.zeros(len(lengths), 1, T, T, dtype=torch.bool)
    for b, n in enumerate(lengths.tolist()):
        for t in range(T):
            mask[b, 0, t, : min(n, t + 1)] = True
    return mask


def joined(join):
    return lambda lengths, T: join(causal_mask(T), padding_mask(lengths, T))


def whole(join):
    return lambda lengths, T: joined(join)(lengths, T).expand(len(lengths), 1, T, T)


COMBINED_RIGHT = [
    combined_loops,
    joined(lambda c, p: c & p),
    joined(lambda c, p: p * c),
    joined(lambda c, p: ~(~c | ~p)),
    joined(lambda c, p: c.logical_and(p)),
    joined(lambda c, p: torch.where(p, c, False)),
]
COMBINED_WRONG = [
    (lambda lengths, T: ones(T).tril(1) & padding_mask(lengths, T), "the diagonal of the causal part is off by one"),
    (joined(lambda c, p: (c & p) | torch.eye(len(c)).bool()), "every query sees its own position"),
    (lambda lengths, T: causal_mask(T) & padding_mask(lengths, T).flip(-1), "the padding is taken to stand on"),
    (joined(lambda c, p: c | p), "the two masks are joined by |"),
    (joined(lambda c, p: c + p), "the two masks are joined by |"),
    (whole(lambda c, p: c), "the padding is not hidden"),
    (whole(lambda c, p: p), "the future is not hidden"),
    (joined(lambda c, p: ~c | ~p), "the mask is inverted"),
    (joined(lambda c, p: ~c & ~p), "both masks are inverted and joined by &"),
    (joined(lambda c, p: ~c & p), "the causal mask is inverted"),
    (joined(lambda c, p: c & ~p), "the padding mask is inverted"),
    (joined(lambda c, p: c.T & p), "the causal part is the wrong triangle"),
    (joined(lambda c, p: c.tril(-1) & p), "the diagonal is left out"),
    (
        lambda lengths, T: causal_mask(T) & (torch.arange(T) <= lengths[:, None])[:, None, None],
        "one key too many",
    ),
    (
        lambda lengths, T: causal_mask(T) & (torch.arange(T) < lengths[:, None] - 1)[:, None, None],
        "one key too few",
    ),
    (joined(lambda c, p: c & p.mT), "the padding hides rows"),
    (joined(lambda c, p: c & p & p.mT), "the padding hides rows"),
    (joined(lambda c, p: (c & p).squeeze(1)), "the mask has the shape (B, T, T)"),
    (joined(lambda c, p: (c & p).double()), "mask has type float64, expected bool"),
    # not named
    (joined(lambda c, p: c ^ p), "mask differs from the reference"),
    (joined(lambda c, p: c), "mask has the wrong shape"),
    (joined(lambda c, p: p), "mask has the wrong shape"),
    (joined(lambda c, p: (c & p).expand(-1, 2, -1, -1)), "mask has the wrong shape"),
]


def near(sees):
    return lambda T, window: sees(torch.arange(T)[:, None] - torch.arange(T), window)


WINDOW_RIGHT = [
    sliding_window,
    near(lambda d, w: (d >= 0) & (d < w)),
    lambda T, window: ones(T).tril() & ~ones(T).tril(-window),
    lambda T, window: ones(T).tril().triu(1 - window),
    lambda T, window: band(T, window - 1, 0),
    lambda T, window: torch.tensor([[t - window < s <= t for s in range(T)] for t in range(T)]),
]
WINDOW_WRONG = [
    (near(lambda d, w: ~((d >= 0) & (d < w))), "the mask is inverted"),
    (near(lambda d, w: (d >= 0) & (d <= w)), "one key too many"),
    (lambda T, window: ones(T).tril().triu(-window), "one key too many"),
    (near(lambda d, w: (d >= 0) & (d < w - 1)), "one key too few"),
    (near(lambda d, w: d.abs() < w), "the window reaches to both sides, into"),
    (near(lambda d, w: d.abs() <= w), "the window reaches to both sides, by window keys each"),
    (near(lambda d, w: (d <= 0) & (d > -w)), "the window reaches into the future, not"),
    (near(lambda d, w: d < w), "the future is not hidden"),
    (near(lambda d, w: d >= 0), "the past is not limited"),
    (near(lambda d, w: (d > 0) & (d <= w)), "the window stands before the query"),
    (lambda T, window: sliding_window(T, window).float(), TYPE),
    (near(lambda d, w: (d > 0) & (d < w)), "the query's own position is left out"),
    (near(lambda d, w: (d >= 0) & (d < 3)), "the window is 3 whatever"),
    (near(lambda d, w: d.abs() <= w // 2), "the window reaches half to either side"),
    # not named
    (near(lambda d, w: (d >= 0) & (d < w + 2)), "mask differs from the reference"),
    (near(lambda d, w: ((d >= 0) & (d < w))[None, None]), "mask has the wrong shape"),
]

RIGHT = {"causal": CAUSAL_RIGHT, "padding": PADDING_RIGHT, "combined": COMBINED_RIGHT, "window": WINDOW_RIGHT}
WRONG = {"causal": CAUSAL_WRONG, "padding": PADDING_WRONG, "combined": COMBINED_WRONG, "window": WINDOW_WRONG}


@pytest.mark.parametrize(("name", "fn"), [(name, fn) for name, fns in RIGHT.items() for fn in fns])
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.fault is None
    assert verdict.evidence.endswith("cases, every entry agrees with the reference")


@pytest.mark.parametrize(("name", "fn", "fault"), [(name, *pair) for name, pairs in WRONG.items() for pair in pairs])
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == (4 if fault.startswith("two faults") else 2)


def test_the_evidence_is_a_count_and_a_place():
    assert check("causal", lambda T: ones(T).tril(1)).evidence == (
        "4 of 25 entries differ, the first at query 0, key 1 (counted from 0): True, expected False, case 1 (T = 5)"
    )
    assert check("padding", keys(lambda key, n: key < n - 1)).evidence == (
        "3 of 21 entries differ, the first at sample 0, key 4 (counted from 0): "
        "False, expected True, case 1 (B, S = 3, 7)"
    )
    assert check("combined", joined(lambda c, p: c | p)).evidence.startswith(
        "50 of 147 entries differ, the first at sample 0, query 0, key 1 (counted from 0): True, expected False"
    )
    assert check("window", near(lambda d, w: d >= 0)).evidence.endswith("case 1 (T, window = 7, 3)")


def test_shapes_are_said_in_letters():
    said = check("padding", lambda lengths, S: padding_mask(lengths, S).expand(-1, 1, S, S))
    assert (
        said.evidence == "shape (B, 1, S, S) = (3, 1, 7, 7), expected (B, 1, 1, S) = (3, 1, 1, 7), case 1 (B, S = 3, 7)"
    )
    assert said.hints[1].startswith("The batch comes first, the keys come last")
    said = check("combined", joined(lambda c, p: c))
    assert said.evidence.startswith("shape (T, T) = (7, 7), expected (B, 1, T, T) = (3, 1, 7, 7)")
    assert "squeeze" not in said.hints[1]


def test_another_convention_is_a_verdict_of_its_own():
    said = check("causal", lambda T: torch.zeros(T, T).masked_fill(torch.ones(T, T).triu(1) == 1, -math.inf))
    assert said.fault == TYPE
    assert said.evidence == "case 1 (T = 5)"
    assert said.hints[0].startswith("Ones and zeros, or 0 and -inf, are other conventions")


def test_changing_the_lengths_is_a_fault():
    def spoils(lengths, S):
        mask = padding_mask(lengths, S)
        lengths += 1
        return mask

    assert check("padding", spoils).fault == "it changes its input lengths in place"
