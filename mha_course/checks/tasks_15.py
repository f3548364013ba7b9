"""The exercises of notebook 15: FLOPs of each step of self-attention, and the time that a roofline predicts."""

from functools import partial

from mha_course.checks.plain import Plain
from mha_course.checks.task import Task, stepped
from mha_course.checks.tasks_15_more import MORE_FLOPS
from mha_course.checks.tasks_15_roofline import roofline_seconds
from mha_course.checks.tasks_15_steps import (
    BOTH,
    INPUTS,
    PROJECTIONS,
    STEPS,
    addition_less,
    counted,
    factor_of,
    flop_cases,
    meeting,
    more_in,
    of_each_score,
    of_past_keys,
    only_in,
    projecting,
    projection_of,
    scores_of,
)

_FACTOR_HINTS = (
    "Count by hand the multiplications and the additions of one score with D = 2.",
    "A multiply-add is two FLOPs: 2 for each product of two numbers, in every step.",
)
_ONCE_HINTS = (
    "Take B = S = E = H = 1: each step then has one multiply-add. What does your function say?",
    "Each step is counted once, with 2 FLOPs for a multiply-add.",
)
_HEAD_HINTS = (
    "How wide is one head, and how many heads are there? Print H * D beside E.",
    "H heads of width D = E / H are E features in all: H cancels, a score matrix has 2 S S D for each head.",
)
_PROJECTION_HINTS = (
    "What is the shape of W_q? It makes the queries of all heads at once.",
    "Each of B S tokens, a row of E, meets a matrix (E, E): 2 B S E E.",
)
_BATCH_HINTS = (
    "Double B: which of your counts are doubled?",
    "Each of the B sequences is computed on its own: every step is multiplied by B.",
)
_PAIR_HINTS = (
    "Double S: how many scores are there now?",
    "Each query meets each key: S times S pairs for each head, in the scores and again in the weighted sum.",
)
_TOKEN_HINTS = (
    "Double S: how many rows does the projection have now?",
    "A projection takes each token on its own: B S rows, not pairs of tokens.",
)
_MORE_HINTS = (
    "Compare with torch's own counter: FlopCounterMode counts matrix products, and nothing else.",
    "Leave out what is added: 2 for each multiply-add of the product is all.",
)
_INNER_HINTS = (
    "How many multiplications does one single number of the result take?",
    "Rows times columns of the result times the length of the sum, times 2.",
)
_SCALE_HINTS = (
    "Count by hand one sequence of one token with E = H = 1: what is q_proj?",
    "Give FLOPs as they are: no other unit, and no bytes.",
)
_WHERE = (
    (STEPS, ""),
    (PROJECTIONS, ", in the projections"),
    (BOTH, ", in scores and weighted sum"),
    (("scores",), ", in the scores"),
    (("weighted sum",), ", in the weighted sum"),
    (("out_proj",), ", in the output projection"),
    (INPUTS, ", in the projections of queries, keys and values"),
)

attention_flops = Task(
    name="attention_flops",
    gradients=False,
    arguments=("B", "S", "E", "H"),
    results=tuple((step, ()) for step in STEPS),
    plain=Plain("dict"),
    reference=counted(),
    build=counted,
    cases=flop_cases,
    variations=(
        *(
            stepped(
                counted,
                f"a multiply-add is counted as one FLOP, the factor 2 is missing{where}",
                _FACTOR_HINTS,
                factor=factor_of(1, *steps),
            )
            for steps, where in _WHERE
        ),
        *(
            stepped(
                counted,
                f"the heads are counted twice: H heads of width E, not of width E / H{where}",
                _HEAD_HINTS,
                meet=meeting(lambda B, S, E, H: H * S * S * E, *steps),
            )
            for steps, where in _WHERE[2:5]
        ),
        *(
            stepped(
                counted,
                f"one head alone is counted, of width E / H{where}",
                _HEAD_HINTS,
                meet=meeting(lambda B, S, E, H: S * S * E // H, *steps),
            )
            for steps, where in _WHERE[2:5]
        ),
        *(
            stepped(
                counted,
                f"the batch is forgotten: one sequence is counted{where}",
                _BATCH_HINTS,
                batch=only_in(steps, lambda B, S, E, H: 1, lambda step, B, S, E, H: B),
            )
            for steps, where in _WHERE[:5]
        ),
        *(
            stepped(
                counted,
                f"each query meets one key alone: S is there once, not squared{where}",
                _PAIR_HINTS,
                meet=meeting(lambda B, S, E, H: S * E, *steps),
            )
            for steps, where in _WHERE[2:5]
        ),
        stepped(
            counted,
            "projections and products of tokens have changed places: S S E is counted for a projection, S E E for"
            " scores and weighted sum",
            _TOKEN_HINTS,
            project=scores_of,
            meet=projection_of,
        ),
        stepped(
            counted,
            "the projections are counted for all pairs of tokens, S S E: S is squared in place of E",
            _TOKEN_HINTS,
            project=projecting(lambda B, S, E, H: S * S * E, *PROJECTIONS),
        ),
        stepped(
            counted,
            "scores and weighted sum are counted like projections, S E E: E is squared in place of S, not the pairs"
            " of tokens",
            _PAIR_HINTS,
            meet=meeting(lambda B, S, E, H: S * E * E, *BOTH),
        ),
        *(
            stepped(
                counted,
                f"a projection is counted for one head alone, E x D in place of E x E{where}",
                _PROJECTION_HINTS,
                project=projecting(lambda B, S, E, H: S * E * E // H, *steps),
            )
            for steps, where in (_WHERE[1], _WHERE[5], _WHERE[6])
        ),
        stepped(
            counted,
            "a projection is counted once for each head, with the whole matrix each time: the heads are counted twice",
            _PROJECTION_HINTS,
            project=projecting(lambda B, S, E, H: S * E * E * H, *PROJECTIONS),
        ),
        stepped(
            counted,
            "a projection is taken as D x D, not as E x E: it reads and makes the features of all heads",
            _PROJECTION_HINTS,
            project=projecting(lambda B, S, E, H: S * (E // H) ** 2, *PROJECTIONS),
        ),
        stepped(
            counted,
            "the projections grow linearly with E: a matrix (E, E) is counted like a vector of E numbers",
            _PROJECTION_HINTS,
            project=projecting(lambda B, S, E, H: S * E, *PROJECTIONS),
        ),
        stepped(
            counted,
            "the width of a head is taken as H, not as D = E / H, in scores and weighted sum",
            _HEAD_HINTS,
            meet=meeting(lambda B, S, E, H: H * S * S * H, *BOTH),
        ),
        *(
            stepped(
                counted,
                f"the sum over D is not counted, only its result, one number for each pair{where}",
                _INNER_HINTS,
                meet=meeting(lambda B, S, E, H: H * S * S, *steps),
            )
            for steps, where in _WHERE[2:5]
        ),
        stepped(
            counted,
            "in each sum one addition less is counted than products: exact, but a multiply-add is 2 FLOPs here",
            (_MORE_HINTS[0], "Let a sum of n products be 2 n FLOPs, as torch's counter does."),
            more=addition_less,
        ),
        *(
            stepped(
                counted,
                f"the addition of a bias is counted too{where}",
                _MORE_HINTS,
                more=more_in(lambda B, S, E, H: B * S * E, *steps),
            )
            for steps, where in (_WHERE[1], _WHERE[6])
        ),
        *(
            stepped(
                counted,
                f"scaling or softmax is counted with the {step}: more than the product",
                _MORE_HINTS,
                more=more_in(partial(of_each_score, each), step),
            )
            for step in BOTH
            for each in range(1, 9)
        ),
        *(
            stepped(
                counted,
                f"half of the pairs are counted, as if each query met past keys alone: no mask is asked for{where}",
                _PAIR_HINTS,
                meet=meeting(partial(of_past_keys, more), *steps),
            )
            for steps, where in _WHERE[2:5]
            for more in (1, -1)
        ),
        stepped(
            counted,
            "each of q_proj, k_proj and v_proj holds the count of all three together",
            _ONCE_HINTS,
            factor=factor_of(6, *INPUTS),
        ),
        stepped(
            counted,
            "each projection holds the count of all four together",
            _ONCE_HINTS,
            factor=factor_of(8, *PROJECTIONS),
        ),
        stepped(
            counted,
            "scores and weighted sum each hold the count of both together",
            _ONCE_HINTS,
            factor=factor_of(4, *BOTH),
        ),
        stepped(
            counted,
            "q_proj, k_proj and v_proj hold the count of one projection together, a third each",
            _ONCE_HINTS,
            factor=factor_of(2 / 3, *INPUTS),
        ),
        *(stepped(counted, f"{step} is not counted: 0", _ONCE_HINTS, factor=factor_of(0, step)) for step in STEPS),
        *(
            stepped(
                counted,
                f"a product with a matrix (D, D) is counted, not one of S queries with S keys{where}",
                _PAIR_HINTS,
                meet=meeting(lambda B, S, E, H: H * S * (E // H) ** 2, *steps),
            )
            for steps, where in _WHERE[2:5]
        ),
        stepped(
            counted,
            "the count grows with S cubed, not squared, in scores and weighted sum",
            _PAIR_HINTS,
            meet=meeting(lambda B, S, E, H: S**3 * E, *BOTH),
        ),
        stepped(counted, "the factor 2 is there twice", _ONCE_HINTS, factor=factor_of(4, *STEPS)),
        stepped(
            counted,
            "forward and backward are counted, three times the forward pass",
            _ONCE_HINTS,
            factor=factor_of(6, *STEPS),
        ),
        *(
            stepped(
                counted,
                f"each count is multiplied by {by}, the bytes of a number",
                _SCALE_HINTS,
                factor=factor_of(2 * by, *STEPS),
            )
            for by in (4, 8)
        ),
        *MORE_FLOPS,
    ),
    hints=(
        "Work out B = H = 1, S = 2, E = 3 by hand: how many multiplications does each step take?",
        "A product (n, k) by (k, m) takes 2 n k m FLOPs: write n, k and m of each step, and how often it happens.",
    ),
)

TASKS = (attention_flops, roofline_seconds)
