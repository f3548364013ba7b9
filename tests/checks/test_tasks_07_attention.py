"""Right and wrong solutions of notebook 07: multi-head attention with a mask."""

import math

import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, engine
from tests.checks.heads import RIGHT, by_sdpa, merge, multi, roles, split, textbook, unreached
from tests.checks.wrong_heads import AMONG, SHARED, hidden


def masked_with(masked):
    return {"masked": masked}


def mask_repeated(x, W_q, W_k, W_v, W_o, H, mask):
    """The mask is tiled M0, M1, M0, M1 for heads that are folded sample by sample (faults A03)."""
    q, k, v = (split(x @ W, H).flatten(0, 1) for W in (W_q, W_k, W_v))
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask.repeat(H, 1, 1, 1)[:, 0], -math.inf)
    return merge((scores.softmax(-1) @ v).unflatten(0, (-1, H))) @ W_o


def transposed_scores(x, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(x @ W, H) for W in (W_q, W_k, W_v))
    scores = k @ q.mT / q.shape[-1] ** 0.5
    return merge(scores.masked_fill(~mask, -math.inf).softmax(-1) @ v) @ W_o


def linear(x, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(F.linear(x, W), H) for W in (W_q, W_k, W_v))
    return F.linear(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)), W_o)


def after_softmax(x, W_q, W_k, W_v, W_o, H, mask):
    q, k, v = (split(x @ W, H) for W in (W_q, W_k, W_v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).masked_fill(~mask, 0)
    return merge(weights @ v) @ W_o


OWN = [
    (masked_with(lambda s, mask: s), "the mask is ignored"),
    (masked_with(lambda s, mask: s.masked_fill(mask, -math.inf)), "the mask is inverted"),
    (masked_with(lambda s, mask: s.masked_fill(mask == 1, -1e9)), "the mask is inverted"),
    (masked_with(lambda s, mask: s + mask * -1e9), "the mask is inverted"),
    (multi(lambda *a: by_sdpa(*a[:-1], ~a[-1])), "the mask is inverted"),
    (after_softmax, "the mask is applied after the softmax"),
    (masked_with(lambda s, mask: s * mask), "hidden scores become 0"),
    (hidden(-1e-9), "hidden scores become 0"),
    (masked_with(lambda s, mask: s + mask), "the mask is added to the scores"),
    (hidden(1e9), "hidden scores become large, not minus infinity"),
    (masked_with(lambda s, mask: s + (1 - mask.double()) * -math.inf), "the mask is multiplied by infinity"),
    (masked_with(lambda s, mask: s.masked_fill(~mask.transpose(2, 3), -1e9)), "the mask is transposed"),
    (masked_with(lambda s, mask: s.masked_fill(~mask[0], -1e9)), "every sample uses the mask of the first"),
    (mask_repeated, "samples and heads of the mask are confused"),
    (
        masked_with(lambda s, mask: s.masked_fill(torch.ones(s.shape[2:]).triu(1) == 1, -1e9)),
        "a causal mask is used in place of the mask",
    ),
    (masked_with(lambda s, mask: s.masked_fill(~mask.tril(), -1e9)), "a causal mask is used beside the mask"),
    ({**AMONG, **masked_with(lambda s, mask: s)}, "the heads of one token attend to each other: tokens and heads are"),
    (transposed_scores, "queries and keys have changed places"),
    (roles("k", "q", "v"), "queries and keys have changed places"),
    (roles("v", "k", "q"), "queries and values have changed places"),
    (roles("k", "k", "v"), "the queries are made with W_k"),
    (roles("v", "k", "v"), "the queries are made with W_v"),
    (roles("q", "q", "v"), "the keys are made with W_q"),
    (roles("q", "k", "q"), "the values are made with W_q"),
    (roles("q", "q", "q"), "queries, keys and values are all made with W_q"),
    (
        multi(lambda x, c, q, k, v, *rest: by_sdpa(x, c, *[torch.eye(len(q)).double()] * 3, *rest)),
        "x itself is used for q",
    ),
    ({"v_of": lambda query, *_: query}, "x itself is used for the values"),
    (multi(lambda x, c, q, k, v, *rest: by_sdpa(x, c, q.T, k.T, v.T, *rest)), "the matrices W_q, W_k and W_v are"),
    (linear, "all four matrices are transposed"),
    # not named
    (roles("v", "q", "k"), "the numbers differ"),
    (hidden(math.nan), "out holds NaN"),
    (hidden(-5), "the numbers differ"),
    (masked_with(lambda s, mask: s.masked_fill(~mask.squeeze(1), -1e9)), "it raises RuntimeError: The size of tensor"),
    (lambda x, mask: x, "it cannot be called as fn(x, W_q, W_k, W_v, W_o, num_heads, mask)"),
]


WRONG = [(multi(textbook(**f) if isinstance(f, dict) else f), said) for f, said in SHARED]
WRONG += [(multi(textbook(**f)) if isinstance(f, dict) else f, said) for f, said in OWN]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    verdict = check("multi_head", multi(fn))
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("multi_head", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("multi_head", [fn for fn, _ in WRONG]) == []


def test_no_query_is_left_without_keys_and_from_each_something_is_hidden():
    for case in engine._TASKS["multi_head"].cases():
        mask = case.inputs[-1]
        assert mask.shape == (case.sizes["B"], 1, case.sizes["T"], case.sizes["T"])
        assert mask.any(-1).all()
        assert case.sizes["T"] == 1 or not mask.all(-1).any()


def test_evidence_is_a_place():
    said = check("multi_head", multi(textbook(**masked_with(lambda s, mask: s)))).evidence
    assert said.startswith("largest difference ")
    assert said.endswith("case 1 (B, T, E, H, D = 2, 5, 21, 3, 7; random mask)")
    nothing_hidden = check("multi_head", multi(textbook(**hidden(math.nan))))
    assert nothing_hidden.evidence.startswith("210 of 210 numbers, the first at sample 0, query 0, feature 0")


def test_inputs_stay_as_they_are():
    def scales_in_place(x, W_q, W_k, W_v, W_o, H, mask):
        W_q /= (W_q.shape[1] // H) ** 0.5
        q, k, v = (split(x @ W, H) for W in (W_q, W_k, W_v))
        return merge(F.scaled_dot_product_attention(q, k, v, mask, scale=1)) @ W_o

    assert check("multi_head", scales_in_place).fault == "it changes its input W_q in place"
