"""Wrong solutions of the exercises of notebook 03."""

import numpy as np
import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong


@wrong("score_std", "counts one projection, not two", r"one (of the two )?projection|both projections|square")
def one_projection(d_model, d_k, w_std):
    s = d_k**0.5 * d_model**0.5 * w_std
    return s, s / d_k**0.5


@wrong("score_std", "variances instead of standard deviations", r"varianc")
def variances(d_model, d_k, w_std):
    s = d_k * (d_model * w_std**2) ** 2
    return s, s / d_k


@wrong("score_std", "grows with d_k instead of its root", r"d_k|root")
def grows_with_d_k(d_model, d_k, w_std):
    return d_k * d_model * w_std**2, d_model * w_std**2


@wrong("score_std", "the scale divides by d_k, not by its root", r"by d_k")
def scale_is_d_k(d_model, d_k, w_std):
    s = d_k**0.5 * d_model * w_std**2
    return s, s / d_k


@wrong(
    "score_std",
    "forgets d_model: entries of q get variance w_std squared",
    r"d_model.*(left out|missing|ignor|forg)|(without|no) d_model",
)
def forgets_d_model(d_model, d_k, w_std):
    s = d_k**0.5 * w_std**2
    return s, s / d_k**0.5


@wrong("score_std", "scaled first, raw second", r"order|swap|exchang|first")
def scaled_one_first(d_model, d_k, w_std):
    s = d_k**0.5 * d_model * w_std**2
    return s / d_k**0.5, s


@wrong("score_std", "the scale divides by the root of d_model", r"root of d_model")
def scale_from_d_model(d_model, d_k, w_std):
    s = d_k**0.5 * d_model * w_std**2
    return s, s / d_model**0.5


@wrong("score_std", "takes w_std for a variance", r"w_std.*varianc|square of w_std|w_std squared")
def w_std_as_variance(d_model, d_k, w_std):
    return d_k**0.5 * d_model * w_std, d_model * w_std


@wrong(
    "score_std",
    "simulates: another result at each call, only near",
    r"random|each call|second call|simulat|estimat|exact|draw",
)
def by_simulation(d_model, d_k, w_std):
    x, y = torch.randn(2, 2000, d_model, dtype=torch.float64)
    out = []
    for w in w_std.tolist():
        q = x @ (torch.randn(d_model, d_k, dtype=torch.float64) * w)
        k = y @ (torch.randn(d_model, d_k, dtype=torch.float64) * w)
        out.append((q * k).sum(-1).std())
    s = torch.stack(out)
    return s, s / d_k**0.5


@wrong("score_std", "squares the caller's tensor in place", CHANGED + r"|w_std.*chang|chang.*w_std")
def squares_in_place(d_model, d_k, w_std):
    w_std *= w_std
    return d_k**0.5 * d_model * w_std, d_model * w_std


@wrong("score_std", "only the raw spread, not scaled in the second", r"not divided|no scale|not scaled")
def same_twice(d_model, d_k, w_std):
    s = d_k**0.5 * d_model * w_std**2
    return s, s.clone()


@wrong(
    "scaled_scores",
    "no scale",
    r"(no|not|without|missing|lacks|never).*(scale|divid|root|sqrt)|(scale|root).*missing|unscaled",
)
def plain_products(q, k):
    return q @ k.transpose(-2, -1)


@wrong("scaled_scores", "divides by D", r"by D\b|D itself")
def over_d(q, k):
    return q @ k.transpose(-2, -1) / q.shape[-1]


@wrong("scaled_scores", "scaled on q and again on the product", r"by D\b|twice")
def scaled_twice(q, k):
    d = q.shape[-1] ** 0.5
    return (q / d) @ k.mT / d


@wrong("scaled_scores", "multiplies by the root", r"multipl|times")
def times_root(q, k):
    return q @ k.mT * q.shape[-1] ** 0.5


@wrong("scaled_scores", "softmax already applied", r"softmax|weights")
def softmax_already(q, k):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)


@wrong(
    "scaled_scores",
    "a fixed divisor: 8, the root of 64",
    r"fixed|constant|8\b|64|every width|same (number|divisor|scale)",
)
def always_eight(q, k):
    return q @ k.mT / 8


@wrong("scaled_scores", "root of the number of queries", r"number of queries|how many queries|\bT\b")
def root_of_queries(q, k):
    return q @ k.mT / q.shape[1] ** 0.5


@wrong("scaled_scores", "root of the number of samples", r"samples|batch|\bB\b")
def root_of_batch(q, k):
    return q @ k.mT / len(q) ** 0.5


@wrong("scaled_scores", "cosines: divided by lengths, not by the root", r"cosine|length|norm")
def cosines(q, k):
    return torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT


@wrong("scaled_scores", "fourth root on q only", r"fourth|one side|half|only q|root of the root|0\.25|1/4|quarter")
def fourth_root_on_one_side(q, k):
    return (q / q.shape[-1] ** 0.25) @ k.mT


@wrong("scaled_scores", "through NumPy: no gradient", GRADIENT)
def scores_by_numpy(q, k):
    s = q.detach().numpy() @ np.swapaxes(k.detach().numpy(), 1, 2)
    return torch.from_numpy(s) / q.shape[-1] ** 0.5


@wrong("scaled_scores", "the keys are detached", GRADIENT)
def keys_detached(q, k):
    return q @ k.detach().mT / q.shape[-1] ** 0.5


@wrong("scaled_scores", "filled entry by entry with item()", GRADIENT)
def filled_with_items(q, k):
    out = torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            for s in range(k.shape[1]):
                out[b, t, s] = (q[b, t] @ k[b, s]).item() / q.shape[-1] ** 0.5
    return out


@wrong("scaled_scores", "divides the caller's q in place", CHANGED)
def q_in_place(q, k):
    q /= q.shape[-1] ** 0.5
    return torch.bmm(q, k.transpose(1, 2))


@wrong("growth_exponents", "slope on plain axes, no logarithm", r"log|linear|plain")
def slope_without_logs(widths, spreads):
    x = widths - widths.mean()
    return (x * (spreads - spreads.mean(dim=1, keepdim=True))).sum(dim=1) / (x * x).sum()


@wrong("growth_exponents", "logarithm of the spreads only", r"log.*width|width.*log|both")
def log_of_the_spreads_only(widths, spreads):
    x, y = widths - widths.mean(), spreads.log()
    return (x * (y - y.mean(dim=1, keepdim=True))).sum(dim=1) / (x * x).sum()


@wrong("growth_exponents", "rise and run exchanged", r"exchang|swap|invert|reciproc|other way|1/p|upside")
def run_over_rise(widths, spreads):
    x, y = widths.log(), spreads.log()
    x, y = x - x.mean(), y - y.mean(dim=1, keepdim=True)
    return (x * x).sum() / (x * y).sum(dim=1)


@wrong("growth_exponents", "returns the intercept of the fit", r"intercept|height|constant")
def the_other_coefficient(widths, spreads):
    fit = np.polyfit(widths.log().numpy(), spreads.log().numpy().T, 1)
    return torch.from_numpy(fit[1])


@wrong("growth_exponents", "line forced through the origin", r"origin|height|intercept|cent|mean|initiali")
def through_the_origin(widths, spreads):
    x, y = widths.log(), spreads.log()
    return (x * y).sum(dim=1) / (x * x).sum()


@wrong("growth_exponents", "exponent of the variance: twice too large", r"twice|double|varianc|squar|factor (of )?2")
def exponent_of_the_variance(widths, spreads):
    x, y = widths.log(), (spreads**2).log()
    x = x - x.mean()
    return (x * (y - y.mean(dim=1, keepdim=True))).sum(dim=1) / (x * x).sum()


@wrong("growth_exponents", "logarithms of different bases", r"base|log")
def two_bases(widths, spreads):
    x, y = widths.log(), spreads.log2()
    x = x - x.mean()
    return (x * (y - y.mean(dim=1, keepdim=True))).sum(dim=1) / (x * x).sum()


@wrong("growth_exponents", "one exponent for the mean of all layers", r"each layer|shape|layers|average|mean")
def one_for_all_layers(widths, spreads):
    x, y = widths.log(), spreads.log().mean(dim=0)
    x = x - x.mean()
    return ((x * (y - y.mean())).sum() / (x * x).sum()).expand(len(spreads))
