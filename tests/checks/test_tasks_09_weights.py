"""Right and wrong solutions of notebook 09: the weights of patients B, C and E, repaired."""

import math

import pytest
import torch
from torch.nn import functional as F

from mha_course.checks import check, clinic, engine
from tests.checks.heads import unreached


def weigh(
    scores=lambda q, k: q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]),
    masked=lambda scores, mask: scores.masked_fill(~mask, -math.inf),
    weights=lambda scores: scores.softmax(dim=-1),
):
    return lambda q, k, mask: weights(masked(scores(q, k), mask))


def by_einsum(q, k, mask):
    scores = torch.einsum("bhtd,bhsd->bhts", q / q.size(3) ** 0.5, k)
    return F.softmax(torch.where(mask, scores, torch.tensor(-1e9, dtype=q.dtype)), dim=3)


def by_sdpa(q, k, mask):
    """With the identity as values, the output is the weights."""
    v = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_a_bias(q, k, mask):
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), torch.finfo(q.dtype).min)
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)


def by_powers(q, k, mask):
    powers = (q @ k.mT / math.sqrt(q.shape[-1])).exp() * mask
    return powers / powers.sum(-1, keepdim=True)


def by_loops(q, k, mask):
    heads = [q[:, h] @ k[:, h].mT / q.shape[-1] ** 0.5 for h in range(q.shape[1])]
    return torch.stack([(s + torch.log(mask[:, 0].to(s.dtype))).softmax(-1) for s in heads], 1)


RIGHT = [weigh(), by_einsum, by_sdpa, by_a_bias, by_powers, by_loops]


def late(q, k, mask):
    return (q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1) / math.sqrt(q.shape[-1])


def early_and_late(q, k, mask):
    return weigh()(q, k, mask) / math.sqrt(q.shape[-1])


def twice(q, k, mask):
    q = q / math.sqrt(q.shape[-1])
    return weigh()(q, k, mask)


def scaled(divisor):
    return weigh(scores=lambda q, k: q @ k.mT / divisor(q, k))


def hidden(masked):
    return weigh(masked=masked)


def filled(fill, weights):
    return weigh(masked=lambda scores, mask: scores.masked_fill(~mask, fill), weights=weights)


def filled_late(fill):
    return lambda q, k, mask: weigh(masked=lambda s, m: s)(q, k, mask).masked_fill(~mask, fill)


def repeated(scores, mask):
    B, H, T, S = scores.shape
    folded = mask.expand(B, 1, T, S)[:, 0].repeat(H, 1, 1)
    return scores.flatten(0, 1).masked_fill(~folded, -1e9).unflatten(0, (B, H))


def patients(letter):
    """What the patient's own method gives."""
    return lambda q, k, mask: clinic.patient(letter).weigh(q, k, mask)


INVERTED = "the mask is inverted"
WRONG = [
    (late, "the scale comes after the softmax"),
    (patients("B"), "the scale comes after the softmax"),
    (early_and_late, "the scale is there twice, before and after"),
    (twice, "the scores are divided by D: the square root of D is there twice"),
    (patients("E"), "the scores are divided by D: the square root of D is there twice"),
    (scaled(lambda q, k: math.sqrt(q.shape[1] * q.shape[3])), "the scores are divided by the square root of E"),
    (scaled(lambda q, k: 1), "the scores are not scaled"),
    (scaled(lambda q, k: q.shape[-1] ** -0.5), "the scores are multiplied by the square root of D"),
    (scaled(lambda q, k: k.shape[2] ** 0.5), "the scores are divided by the square root of the number of keys"),
    (scaled(lambda q, k: math.sqrt(2)), "the scores are divided by the square root of 2"),
    (scaled(lambda q, k: math.sqrt(4)), "the scores are divided by 2"),
    (scaled(lambda q, k: 4), "the scores are divided by 4"),
    (scaled(lambda q, k: 8), "the scores are divided by 8"),
    (patients("C"), INVERTED),
    (hidden(lambda scores, mask: scores.masked_fill(mask, -math.inf)), INVERTED),
    (hidden(lambda scores, mask: scores.masked_fill(mask, -1e9)), INVERTED),
    (hidden(lambda scores, mask: scores + mask.double() * torch.finfo(scores.dtype).min), INVERTED),
    (hidden(lambda scores, mask: scores + mask * -1e9), INVERTED),
    (hidden(lambda scores, mask: scores), "the mask is ignored"),
    (lambda q, k, mask: weigh(masked=lambda s, m: s)(q, k, mask) * mask, "the mask is applied after the softmax"),
    (hidden(lambda scores, mask: scores * mask), "hidden scores become 0"),
    (hidden(lambda scores, mask: scores.masked_fill(~mask, 0)), "hidden scores become 0"),
    (hidden(lambda scores, mask: scores + mask), "the mask is added to the scores"),
    (hidden(lambda scores, mask: scores + (1 - mask.double()) * -math.inf), "the mask is multiplied by infinity"),
    (hidden(lambda scores, mask: scores + ~mask * torch.finfo(scores.dtype).min), "the mask is multiplied by infinity"),
    (hidden(repeated), "samples and heads of the mask are confused"),
    (patients("F"), "samples and heads of the mask are confused"),
    (hidden(lambda scores, mask: scores.masked_fill(~mask[0], -math.inf)), "every sample uses the mask of the first"),
    *((filled_late(fill), "the mask is applied after the softmax") for fill in (0, -math.inf, -1e9)),
    *((filled(fill, lambda s: s.softmax(2)), "the softmax runs over the q") for fill in (-math.inf, -1e9)),
    *((filled(fill, lambda s: s.softmax(1)), "the softmax runs over the h") for fill in (-math.inf, -1e9)),
    *((filled(fill, lambda s: s), "the softmax is missing") for fill in (-math.inf, -1e9)),
    *((filled(fill, lambda s: s.softmax(-1)), f"hidden scores become {fill}, w") for fill in (-1, -5, -10, -100)),
    (weigh(weights=lambda s: s.softmax(-1).softmax(-1)), "the softmax is taken twice"),
    # not named
    (weigh(weights=lambda s: s.softmax(0)), "weights holds NaN"),
    (weigh(weights=lambda s: s.softmax(-1).mean(1)), "weights has the wrong shape"),
    (lambda q, k, mask: weigh()(q, k, mask) @ k, "weights has the wrong shape"),
    (weigh(scores=lambda q, k: q @ k), "it raises RuntimeError"),
    (weigh(weights=lambda s: F.dropout(s.softmax(-1), 0.1)), "each call gives another result"),
    (lambda q, k: q, "it cannot be called as fn(q, k, mask)"),
]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    verdict = check("repaired_weights", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize("letter", ["A", "D"])
def test_patients_with_another_fault_have_right_weights(letter):
    assert check("repaired_weights", patients(letter))


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("repaired_weights", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("repaired_weights", [fn for fn, _ in WRONG]) == []


def test_every_query_sees_some_keys_and_not_others():
    for case in engine._TASKS["repaired_weights"].cases():
        mask = case.inputs[2]
        assert mask.any(-1).all()
        assert (~mask).any(-1).all()


def test_the_mask_may_not_be_changed():
    def inverts(q, k, mask):
        mask ^= True
        return weigh()(q, k, ~mask)

    assert check("repaired_weights", inverts).fault == "it changes its input mask in place"
