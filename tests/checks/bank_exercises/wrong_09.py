"""Wrong solutions of the exercises of notebook 09."""

import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

UNSCALED = r"(no|not|without|missing|lacks|never).*(scale|divid|root|sqrt)|(scale|root).*missing|unscaled"


def probe(fn, x, change=None, seen=None):
    change = change or (lambda old: old + torch.randn_like(old))
    seen = seen or (lambda a, b: (a != b).any(-1).any(0))
    before, out = fn(x), []
    for s in range(x.shape[1]):
        y = x.clone()
        y[:, s] = change(y[:, s])
        out.append(seen(fn(y), before))
    return torch.stack(out, dim=1)


@wrong("leak_probe", "rows and columns exchanged", r"transpos|exchang|swap|row.*column|\[s, t\]")
def transposed(fn, x):
    return probe(fn, x).T


@wrong("leak_probe", "changes the token in the first sample only", r"sample|batch")
def changes_one_sample(fn, x):
    before, out = fn(x), []
    for s in range(x.shape[1]):
        y = x.clone()
        y[0, s] += torch.randn_like(y[0, s])
        out.append((fn(y) != before).any(-1).any(0))
    return torch.stack(out, dim=1)


@wrong("leak_probe", "looks at the first sample only", r"sample|batch")
def looks_at_one_sample(fn, x):
    return probe(fn, x, seen=lambda a, b: (a != b)[0].any(-1))


@wrong("leak_probe", "moves must show in every sample", r"every sample|all samples|any sample|sample")
def in_all_samples(fn, x):
    return probe(fn, x, seen=lambda a, b: (a != b).any(-1).all(0))


@wrong("leak_probe", "every entry of the row must move", r"all its numbers|every (entry|number)|whole row|one of them")
def whole_row_must_move(fn, x):
    return probe(fn, x, seen=lambda a, b: (a != b).all(-1).any(0))


@wrong("leak_probe", "small moves count as none", r"small|toleran|last bit|tiny|threshold|allclose|limit")
def with_a_tolerance(fn, x):
    return probe(fn, x, seen=lambda a, b: ((a - b).abs() > 1e-3).any(-1).any(0))


@wrong(
    "leak_probe",
    "the change is too small to see",
    r"change\w*\b.*(small|tiny)|(small|tiny) (a )?(change|step)|rounding",
)
def tiny_change(fn, x):
    return probe(fn, x, change=lambda old: old + 1e-15)


@wrong("leak_probe", "sets the token to NaN", r"NaN|finite")
def poisons_with_nan(fn, x):
    return probe(fn, x, change=lambda old: torch.full_like(old, torch.nan))


@wrong(
    "leak_probe", "multiplies the token, which a norm does not see", r"norm|multipl|scal|factor|longer|direction|zero"
)
def makes_it_longer(fn, x):
    return probe(fn, x, change=lambda old: old * 3)


@wrong(
    "leak_probe",
    "changes stay: tokens before s are changed too",
    r"earlier|stay|accumul|restor|alone|before|cumul|other tokens",
)
def changes_pile_up(fn, x):
    before, out, y = fn(x), [], x.clone()
    for s in range(x.shape[1]):
        y[:, s] = torch.randn_like(y[:, s])
        out.append((fn(y) != before).any(-1).any(0))
    return torch.stack(out, dim=1)


@wrong("leak_probe", "forgets to clone: x is changed, and stays so", CHANGED + r"|stays so|stay changed")
def without_clone(fn, x):
    before, out = fn(x), []
    for s in range(x.shape[1]):
        old = x[:, s].clone()
        x[:, s] += torch.randn_like(old)
        out.append((fn(x) != before).any(-1).any(0))
    return torch.stack(out, dim=1)


@wrong(
    "leak_probe",
    "only looks ahead: the past is left out",
    r"past|ahead|future|upper|triu|earlier|diagonal|s > t|later|before",
)
def only_the_future(fn, x):
    return probe(fn, x).triu(1)


@wrong("leak_probe", "sizes of the moves, not bool", r"bool|dtype|float|type")
def sizes_of_moves(fn, x):
    return probe(fn, x, seen=lambda a, b: (a - b).abs().amax(-1).amax(0))


@wrong("leak_probe", "True where nothing moves", r"invert|opposite|negat|revers|nothing moves|wrong way|still|not move")
def true_where_still(fn, x):
    return ~probe(fn, x)


@wrong("leak_probe", "a sum over the row hides moves that cancel", r"sum|cancel|mean|average|add")
def sum_of_the_row(fn, x):
    return probe(fn, x, seen=lambda a, b: (a.sum(-1) != b.sum(-1)).any(0))


weigh = "repaired_weights"


@wrong(weigh, "no scale", UNSCALED)
def weigh_without_scale(q, k, mask):
    return (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1)


@wrong(weigh, "scales after the softmax", r"after (the )?softmax|weights|sum")
def scaled_afterwards(q, k, mask):
    return (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) / q.shape[-1] ** 0.5


@wrong(weigh, "scaled twice", r"twice|by D\b|root|1/D")
def scaled_on_both(q, k, mask):
    d = q.shape[-1] ** 0.5
    return ((q / d) @ k.mT / d).masked_fill(~mask, -torch.inf).softmax(-1)


@wrong(weigh, "mask inverted", r"invert|opposite|negat|revers|where (it|the mask) is True|wrong way")
def mask_the_wrong_way(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask, -1e30).softmax(-1)


@wrong(weigh, "mask ignored", r"mask.*(ignor|not|no |nothing|unused|lost)|(ignor|without|no|forg).*mask")
def without_mask(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


@wrong(weigh, "mask after the softmax", r"after (the )?softmax|sum|normali")
def masked_afterwards(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).masked_fill(~mask, 0.0)


@wrong(weigh, "scores multiplied by the mask: hidden ones become 0", r"\b0\b|zero|multipl|small|fill")
def scores_times_mask(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5 * mask).softmax(-1)


@wrong(weigh, "softmax over the queries", r"over the (queries|rows)|query axis|columns")
def weigh_over_queries(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -1e30).softmax(-2)


@wrong(
    weigh,
    "root of E, the width of all heads",
    r"root of E|width of all|all heads|whole width|\bE\b|number of heads|\bH\b",
)
def weigh_root_of_e(q, k, mask):
    e = q.shape[1] * q.shape[-1]
    return (q @ k.mT / e**0.5).masked_fill(~mask, -torch.inf).softmax(-1)


@wrong(weigh, "a weak fill of -10", r"-10|weak|small|finite|leak|hidden")
def weak_fill(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -10.0).softmax(-1)


@wrong(weigh, "weights detached", GRADIENT)
def weigh_detached(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).detach().masked_fill(~mask, -torch.inf).softmax(-1)


@wrong(weigh, "divides the caller's k", CHANGED)
def k_in_place(q, k, mask):
    k.mul_(k.shape[-1] ** -0.5)
    return (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1)


@wrong(weigh, "returns scores, no softmax", r"softmax is missing|these are scores|no softmax")
def weigh_scores(q, k, mask):
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)


@wrong(
    weigh,
    "mask inverted and no scale",
    r"(?is)(?=.*(invert|opposite|negat|revers|wrong way))(?=.*(scale|root|sqrt|divid))",
)
def inverted_without_scale(q, k, mask):
    return (q @ k.mT).masked_fill(mask, -1e30).softmax(-1)


@wrong(weigh, "scale after the softmax, mask ignored", r"(?is)(?=.*(after|sum))(?=.*mask)")
def late_scale_no_mask(q, k, mask):
    return (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5
