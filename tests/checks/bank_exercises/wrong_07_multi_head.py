"""Wrong solutions of the exercise of notebook 07 that writes multi-head attention."""

import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong
from tests.checks.bank_exercises.wrong_07 import UNSCALED, cut, join

task = "multi_head"


@wrong(task, "no scale", UNSCALED)
def no_scale(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    return join((q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "root of E, the width of all heads", r"root of E|width of all|all heads|whole width|\bE\b")
def root_of_e(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = q @ k.mT / x.shape[-1] ** 0.5
    return join(s.masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "root of the number of heads", r"number of heads|\bH\b|how many heads|num_heads")
def root_of_heads(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = q @ k.mT / num_heads**0.5
    return join(s.masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "softmax over the queries", r"over the (queries|rows)|query axis|columns")
def over_queries(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -1e30)
    return join(s.softmax(dim=2) @ v) @ W_o


@wrong(task, "softmax over the heads", r"heads")
def over_heads(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -1e30)
    return join(s.softmax(dim=1) @ v) @ W_o


@wrong(
    task,
    "fills where the mask is True",
    r"invert|opposite|negat|revers|where (it|the mask) is True|wrong way|may attend.*hid",
)
def fills_the_visible(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask, -1e30)
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "weights are zeroed after the softmax", r"after (the )?softmax|sum|normali")
def zeroed_afterwards(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    w = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) * mask
    return join(w @ v) @ W_o


@wrong(
    task,
    "result of masked_fill is lost: no mask",
    r"mask.*(ignor|not|no |nothing|unused|lost)|(ignor|without|no|forg).*mask",
)
def result_is_lost(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    s.masked_fill(~mask, -torch.inf)
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "hidden scores become 0, which is no small score", r"\b0\b|zero|small|-inf|fill")
def filled_with_zero(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = torch.where(mask, q @ k.mT / q.shape[-1] ** 0.5, 0.0)
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "filled with +1e-9 instead of -1e9", r"\b0\b|zero|small|-inf|fill|1e-9")
def sign_in_the_exponent(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask == 0, 1e-9)
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "adds the bool mask", r"added|adds|True counts")
def bool_added(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = q @ k.mT / q.shape[-1] ** 0.5 + mask
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "mask transposed", r"transpos|queries and keys|exchang|swap")
def mask_transposed(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask.mT, -1e30)
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "the mask of the first sample for all", r"first|sample|batch")
def mask_of_the_first(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask[0], -torch.inf)
    return join(s.softmax(-1) @ v) @ W_o


@wrong(task, "W_o is forgotten", r"W_o|output (projection|matrix)")
def without_w_o(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v)


@wrong(task, "all matrices transposed, as in nn.Linear", r"transpos|left|\.T|W_")
def like_linear(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w.T, num_heads) for w in (W_q, W_k, W_v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    return join(s.softmax(-1) @ v) @ W_o.T


@wrong(task, "keys projected by W_q", r"keys.*W_q")
def keys_by_w_q(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_q, W_v))
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "values are not projected", r"W_v.*(missing|not|without)|values.*not projected|no W_v")
def raw_values(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = cut(x @ W_q, num_heads), cut(x @ W_k, num_heads), cut(x, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "merges without a transpose", r"merge")
def merged_without_transpose(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    out = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v
    return out.reshape(x.shape) @ W_o


@wrong(task, "splits without a transpose", r"split")
def split_without_transpose(x, W_q, W_k, W_v, W_o, num_heads, mask):
    b, t, e = x.shape
    q, k, v = ((x @ w).reshape(b, num_heads, t, e // num_heads) for w in (W_q, W_k, W_v))
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "splits and merges without a transpose: each undoes the shape of the other", r"(?=.*split)(?=.*merge)")
def wrong_both_ways(x, W_q, W_k, W_v, W_o, num_heads, mask):
    b, t, e = x.shape
    q, k, v = ((x @ w).reshape(b, num_heads, t, e // num_heads) for w in (W_q, W_k, W_v))
    return ((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v).reshape(b, t, e) @ W_o


@wrong(
    task,
    "splits in turn, every H-th feature to a head, merges side by side",
    r"split|interleav|turn|cut|every|order of the features",
)
def dealt_then_side_by_side(x, W_q, W_k, W_v, W_o, num_heads, mask):
    b, t, e = x.shape
    q, k, v = ((x @ w).reshape(b, t, e // num_heads, num_heads).permute(0, 3, 1, 2) for w in (W_q, W_k, W_v))
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "weights used transposed", r"transpos")
def weights_transposed(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    w = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    return join(w.mT @ v) @ W_o


@wrong(task, "averages the weights over the heads", r"average|mean")
def heads_averaged(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    w = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    return join(w.mean(dim=1, keepdim=True) @ v) @ W_o


@wrong(task, "the weights are detached", GRADIENT)
def multi_weights_detached(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    w = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1).detach()
    return join(w @ v) @ W_o


@wrong(task, "uses W_o.data: the last matrix gets no gradient", GRADIENT)
def w_o_as_data(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v) @ W_o.data


@wrong(task, "inverts the caller's mask in place", CHANGED)
def mask_in_place(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    hidden = mask.logical_not_()
    return join((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v) @ W_o


@wrong(task, "no scale, mask ignored", r"(?is)(?=.*(scale|root|sqrt|divid))(?=.*mask)")
def no_scale_no_mask(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    return join((q @ k.mT).softmax(-1) @ v) @ W_o


@wrong(task, "root of E, W_o forgotten", r"(?is)(?=.*(root of E|width of all|all heads|\bE\b))(?=.*(W_o|output))")
def root_of_e_no_w_o(x, W_q, W_k, W_v, W_o, num_heads, mask):
    q, k, v = (cut(x @ w, num_heads) for w in (W_q, W_k, W_v))
    return join((q @ k.mT / x.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v)
