"""The second exercise of notebook 11: causal linear attention with a running state."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from mha_course.checks.task import Growth, Task, Variation
from mha_course.checks.tasks_11_steps import (
    Array,
    Run,
    alone,
    before,
    count,
    divided_on,
    fading,
    from_here,
    linear,
    linear_case,
    linear_cases,
    linear_numbers,
    of_all,
    running_mean,
    softmax_instead,
    without_first,
    zero_for_nan,
)

_DIVIDE_HINTS = (
    "Let all values be 1: the output should be 1, whatever the queries and keys.",
    "Sum the keys beside the state, and divide q_t state by q_t times that sum.",
)
_CAUSAL_HINTS = (
    "Change the last key and value: which rows of your output change? The last one alone should.",
    "Add one token to the state and to the sum of keys, and read both before you add the next one.",
)
_OWN_HINTS = (
    "Row 0 of the output should be v[0]: the first token sees itself. What is it?",
    "Add the token's key and value to the state and to the sum of keys first, then read them with its query.",
)
_STATE_HINTS = (
    "Print the state after two tokens: which keys and values are in it?",
    "The state is a sum: state = state + k_t v_t^T, and likewise the sum of keys, norm = norm + k_t.",
)
_FADE_HINTS = (
    "Print the sum of keys after each step: it should be the plain sum of the keys so far.",
    "Let what is there so far stay as it is, without a factor, and add to it.",
)
_OUTER_HINTS = (
    "Try M and D different: which of the two comes first in your state?",
    "A query has M features and meets the first axis of the state: k_t v_t^T is (M, D).",
)
_MAP_HINTS = (
    "Look at what you do to q and k before the products.",
    "The features are given: take q and k as they are.",
)
_ROLE_HINTS = (
    "Which of q and k is read at every step, and which goes into the state?",
    "Keys and values go into the state, the query of the token reads it.",
)
_ROW_HINTS = (
    "Print the first and the last row of your output.",
    "Every token, from 0 to S - 1, enters the state and gets a row.",
)
_COST_HINTS = (
    "Print the shape of every product: does a query meet keys, or the state alone?",
    "Carry the state (M, D) and the sum of keys (M,) from token to token: all that a query needs is in them.",
)
_OWN = "the own token is not seen: state and sum of keys are read before it is added"
_DECAY = "the state decays: what is there so far gets a factor at each step"
_AGAIN = "a feature map is applied again: q and k have theirs already"
_SOFTMAX = "a softmax of the products is taken: linear attention divides the products by their sum"


def _mapped(of: Run) -> Callable[[Array, Array, Array], tuple[Array, Array, Array]]:
    return lambda q, k, v: (of(q), of(k), v)


linear_attention = Task(
    name="linear_attention",
    gradients=False,
    arguments=("q", "k", "v"),
    results=(("out", ("S", "D")),),
    axes={"S": "token"},
    reference=linear(),
    build=linear,
    steps=linear_numbers,
    cases=linear_cases,
    growth=Growth(linear_case(0, (200, 2, 3)), linear_case(1, (400, 2, 3)), _COST_HINTS),
    variations=(
        Variation(
            "the output is not divided: the normaliser is missing", linear(divide=lambda s, den: s), _DIVIDE_HINTS
        ),
        Variation("not causal: every token sees the whole sequence", linear(state=of_all, norm=of_all), _CAUSAL_HINTS),
        Variation(
            "the normaliser sums all keys, later ones too; the state is causal", linear(norm=of_all), _CAUSAL_HINTS
        ),
        Variation(
            "the state holds all tokens, later ones too; the normaliser is causal", linear(state=of_all), _CAUSAL_HINTS
        ),
        Variation(
            "the time runs backwards: each token sees itself and the later ones",
            linear(state=from_here, norm=from_here),
            _CAUSAL_HINTS,
        ),
        *(
            Variation(_OWN, linear(state=before, norm=before, finish=finish), _OWN_HINTS)
            for finish in (zero_for_nan, alone)
        ),
        Variation(
            "the own token is not in the state when it is read, but it is in the sum of keys",
            linear(state=before),
            _OWN_HINTS,
        ),
        *(
            Variation(
                "the own token is not in the sum of keys when it is read, but it is in the state",
                linear(norm=before, divide=divide),
                _OWN_HINTS,
            )
            for divide in (torch.div, lambda s, den: torch.where(den == 0, 0, s / den))
        ),
        Variation(
            "the outer product is transposed: v k^T instead of k v^T",
            linear(product=lambda k, v: v[:, :, None] * k[:, None]),
            _OUTER_HINTS,
            may_raise=lambda sizes: sizes["M"] != sizes["D"],
        ),
        *(
            Variation(_DECAY, linear(state=fading(rate), norm=fading(rate)), _FADE_HINTS)
            for rate in (0.9, 0.99, 0.95, 0.5)
        ),
        *(
            Variation(f"{_DECAY}; the sum of keys does not", linear(state=fading(rate)), _FADE_HINTS)
            for rate in (0.9, 0.99, 0.95, 0.5)
        ),
        Variation(
            "the output is divided by the number of tokens so far, not by the query times the sum of keys",
            linear(divide=lambda s, den: s / count(s)),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the output is divided by S, the number of tokens, not by the query times the sum of keys",
            linear(divide=lambda s, den: s / len(s)),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the output is divided by the position, 0 at first, not by the query times the sum of keys",
            linear(divide=lambda s, den: s / (count(s) - 1)),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the state is a mean, the normaliser a sum: the output is divided by the number of tokens once more",
            linear(state=running_mean),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the output is divided by the normaliser twice",
            linear(divide=lambda s, den: s / den / den),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the output is multiplied by the normaliser, not divided by it", linear(divide=torch.mul), _DIVIDE_HINTS
        ),
        *(
            Variation(
                f"the sum of keys is not multiplied by the query: {name} is the denominator",
                linear(of_norm=of_norm),
                _DIVIDE_HINTS,
            )
            for name, of_norm in (
                ("its sum", lambda q, norm: norm.sum(-1, keepdim=True)),
                ("its length", lambda q, norm: norm.norm(dim=-1, keepdim=True)),
            )
        ),
        Variation(
            "the output is divided by the sum of the query's features alone, the keys are missing there",
            linear(of_norm=lambda q, norm: q.sum(-1, keepdim=True)),
            _DIVIDE_HINTS,
        ),
        Variation(
            "the normaliser is summed over the tokens, not over the features",
            linear(of_norm=lambda q, norm: (q * norm).sum()),
            _DIVIDE_HINTS,
        ),
        Variation(
            "state and sum of keys are overwritten by each token, not added to: the output is v",
            linear(state=alone, norm=alone),
            _STATE_HINTS,
        ),
        Variation(
            "the state is overwritten by each token, not added to; the sum of keys is right",
            linear(state=alone),
            _STATE_HINTS,
        ),
        Variation(
            "the normaliser is of the own key alone, the sum of keys is overwritten, not added to",
            linear(norm=alone),
            _STATE_HINTS,
        ),
        Variation(
            "the state is divided in each step, and goes on divided",
            divided_on(False),
            ("Print the state after each step: is it still a plain sum?", _DIVIDE_HINTS[1]),
        ),
        Variation(
            "the state and the sum of keys are divided in each step, and go on divided",
            divided_on(True),
            ("Print the state after each step: is it still a plain sum?", _DIVIDE_HINTS[1]),
        ),
        Variation(_SOFTMAX, softmax_instead(lambda q: q.shape[1] ** -0.5), _MAP_HINTS),
        Variation(_SOFTMAX, softmax_instead(lambda q: 1.0), _MAP_HINTS),
        Variation(f"{_AGAIN}, elu(x) + 1", linear(use=_mapped(lambda x: F.elu(x) + 1)), _MAP_HINTS),
        Variation(f"{_AGAIN}, e^x", linear(use=_mapped(torch.exp)), _MAP_HINTS),
        Variation(f"{_AGAIN}, a softmax over the features", linear(use=_mapped(lambda x: x.softmax(-1))), _MAP_HINTS),
        Variation(
            f"{_AGAIN}, to the queries alone, elu(x) + 1",
            linear(use=lambda q, k, v: (F.elu(q) + 1, k, v)),
            _MAP_HINTS,
        ),
        Variation(
            f"{_AGAIN}, to the keys alone, elu(x) + 1", linear(use=lambda q, k, v: (q, F.elu(k) + 1, v)), _MAP_HINTS
        ),
        Variation(
            "queries and keys have changed places: the state is built from the queries",
            linear(use=lambda q, k, v: (k, q, v)),
            _ROLE_HINTS,
        ),
        Variation(
            "the state is built from the queries and read by the queries: the keys are not used",
            linear(use=lambda q, k, v: (q, q, v)),
            _ROLE_HINTS,
        ),
        Variation(
            "the keys read the state, not the queries",
            linear(use=lambda q, k, v: (k, k, v)),
            _ROLE_HINTS,
        ),
        Variation(
            "the first token never enters the state, and its row is 0",
            linear(state=without_first, norm=without_first, finish=zero_for_nan),
            _ROW_HINTS,
        ),
        Variation(
            "the last token is left out: its row is 0",
            linear(finish=lambda out: torch.cat([out[:-1], 0 * out[-1:]])),
            _ROW_HINTS,
        ),
        Variation(
            "the outputs are added up from token to token",
            linear(finish=lambda out: out.cumsum(0)),
            ("Row 1 of your output: does it hold row 0 too?", "Only the state is a running sum, the output is not."),
        ),
    ),
    hints=(
        "Let all values be 1, and look at rows 0 and 1: row 0 of the output should be v[0] as a rule.",
        "For each token: state = state + k_t v_t^T, norm = norm + k_t, then out_t = q_t state / (q_t norm).",
    ),
    shape_hint="The state is (M, D), the sum of keys (M,), what a query reads (D,), and the output (S, D).",
)
