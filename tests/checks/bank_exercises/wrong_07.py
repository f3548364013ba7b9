"""Wrong solutions of the exercises of notebook 07 about cutting and joining heads, and cross-attention."""

import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

UNSCALED = r"(no|not|without|missing|lacks|never).*(scale|divid|root|sqrt)|(scale|root).*missing|unscaled"


@wrong("split_heads", "views the heads directly, without a transpose", r"transpos|mixes tokens|no axes")
def viewed_directly(x, num_heads):
    b, t, e = x.shape
    return x.reshape(b, num_heads, t, e // num_heads)


@wrong(
    "split_heads",
    "deals features out in turn: every H-th to one head",
    r"interleav|turn|altern|every|next|stride|dealt|H-th",
)
def dealt_out(x, num_heads):
    b, t, e = x.shape
    return x.reshape(b, t, e // num_heads, num_heads).permute(0, 3, 1, 2)


@wrong("split_heads", "tokens before heads", r"shape|ax[ei]s|transpos")
def tokens_before_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1))


@wrong("split_heads", "features before tokens", r"shape|ax[ei]s|transpos|changed places")
def ready_for_the_product(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).permute(0, 2, 3, 1)


@wrong("split_heads", "heads in reverse order", r"revers|order|last|backward")
def last_head_first(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1)[::-1], dim=1)


@wrong("split_heads", "takes num_heads for the width of a head", r"shape|width|number of heads|num_heads")
def number_as_width(x, num_heads):
    return torch.stack(x.split(num_heads, dim=-1), dim=1)


@wrong("split_heads", "samples are mixed: views heads before the batch", r"sample|batch|mix")
def samples_mixed(x, num_heads):
    b, t, e = x.shape
    return x.reshape(num_heads, b, t, e // num_heads).transpose(0, 1)


@wrong("split_heads", "a new tensor from a list: no gradient", GRADIENT)
def from_a_list(x, num_heads):
    return torch.tensor(x.unflatten(-1, (num_heads, -1)).transpose(1, 2).tolist(), dtype=x.dtype)


@wrong("split_heads", "every head gets the first slice", r"first|same|each head|every head|slice")
def same_slice(x, num_heads):
    return x[:, None, :, : x.shape[-1] // num_heads].expand(-1, num_heads, -1, -1)


@wrong("merge_heads", "reshapes without a transpose", r"transpos|mixes tokens|no axes")
def merged_directly(x):
    b, h, t, d = x.shape
    return x.reshape(b, t, h * d)


@wrong("merge_heads", "feature by feature: heads interleaved", r"interleav|altern|turn|side by side|every|feature")
def merged_by_feature(x):
    return x.permute(0, 2, 3, 1).flatten(2)


@wrong("merge_heads", "averages the heads", r"average|mean|shape")
def averaged(x):
    return x.mean(dim=1)


@wrong("merge_heads", "adds the heads and repeats the sum", r"add|sum|average|same")
def summed(x):
    return x.sum(dim=1).repeat(1, 1, x.shape[1])


@wrong("merge_heads", "heads in reverse order", r"revers|order|last|backward")
def merged_reversed(x):
    return torch.cat(x.unbind(1)[::-1], dim=-1)


@wrong("merge_heads", "heads stand below each other, not side by side", r"shape|below|token|ax[ei]s")
def below_each_other(x):
    return torch.cat(x.unbind(1), dim=1)


@wrong("merge_heads", "samples are mixed", r"sample|batch|mix")
def merged_over_samples(x):
    b, h, t, d = x.shape
    return x.permute(1, 2, 0, 3).reshape(b, t, h * d)


@wrong("merge_heads", "detached copy", GRADIENT)
def merged_copy(x):
    return x.transpose(1, 2).flatten(2).clone().detach()


@wrong("merge_heads", "only the first head, repeated", r"first|only|same|repeat|one head")
def first_head_repeated(x):
    return x[:, 0].repeat(1, 1, x.shape[1])


def cut(x, h):
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


def join(x):
    return x.transpose(1, 2).flatten(2)


@wrong("cross_attention", "keys come from the query", r"keys.*query")
def keys_from_the_query(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(query @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "values by W_k", r"values.*W_k")
def values_by_w_k(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_k, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "W_k and W_v exchanged", r"W_k|W_v|exchang|swap|changed places")
def w_k_and_w_v_exchanged(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_v, num_heads), cut(context @ W_k, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "no scale", UNSCALED)
def cross_no_scale(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT).softmax(-1) @ v) @ W_o


@wrong(
    "cross_attention",
    "root of E, the width of all heads",
    r"root of E\b|width of all|all heads",
)
def cross_root_of_e(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT / query.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "root of the width of the context", r"Ek|context|root of")
def cross_root_of_context(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT / context.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "softmax over the queries", r"over the (queries|rows)|query axis|columns")
def cross_over_queries(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v) @ W_o


@wrong("cross_attention", "W_o is not applied", r"W_o|output (projection|matrix)")
def cross_without_w_o(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


@wrong("cross_attention", "merges with a reshape only", r"transpos|merg|reshape|view|join")
def cross_merged_directly(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).reshape(query.shape[0], query.shape[1], -1) @ W_o


@wrong(
    "cross_attention",
    "one wide head: num_heads ignored",
    r"one (wide |single )?(head|attention)|num_heads|number of heads|single",
)
def cross_one_wide_head(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = query @ W_q, context @ W_k, context @ W_v
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v @ W_o


@wrong("cross_attention", "the context is detached", GRADIENT)
def context_detached(query, context, W_q, W_k, W_v, W_o, num_heads):
    c = context.detach()
    q, k, v = cut(query @ W_q, num_heads), cut(c @ W_k, num_heads), cut(c @ W_v, num_heads)
    return join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "adds the query at the end", r"query.*(add|top)|add|residual|skip")
def with_a_skip(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return query + join((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "the context's matrices are changed in place", CHANGED + r"|W_k")
def w_k_in_place(query, context, W_q, W_k, W_v, W_o, num_heads):
    W_k /= (W_q.shape[-1] // num_heads) ** 0.5
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT).softmax(-1) @ v) @ W_o


@wrong("cross_attention", "no scale and no W_o", r"(?is)(?=.*(scale|root|sqrt|divid))(?=.*(W_o|output))")
def cross_no_scale_no_w_o(query, context, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = cut(query @ W_q, num_heads), cut(context @ W_k, num_heads), cut(context @ W_v, num_heads)
    return join((q @ k.mT).softmax(-1) @ v)
