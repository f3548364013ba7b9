"""Wrong solutions of the exercises of notebook 04."""

import numpy as np
import torch

from tests.checks.bank_exercises import CHANGED, wrong

FUTURE = r"future|after|ahead|later|next"
TYPE = r"bool|dtype|float|type|int"


@wrong("causal", "sees the future instead of the past", FUTURE + r"|transpos|upper")
def upper_half(T):
    return torch.ones(T, T, dtype=torch.bool).triu()


@wrong("causal", "hides the query's own token", r"itself|own|diagonal")
def without_itself(T):
    return torch.ones(T, T, dtype=torch.bool).tril(-1)


@wrong("causal", "sees one token ahead", r"one (token |key |step |place )?(ahead|too)|next")
def one_ahead(T):
    return torch.ones(T, T, dtype=torch.bool).tril(diagonal=1)


@wrong("causal", "True where hidden", r"invert|opposite|negat|block|hid|revers|wrong way")
def true_where_hidden(T):
    return torch.triu(torch.ones(T, T), diagonal=1).bool()


@wrong("causal", "float: 0 and -inf", TYPE)
def additive(T):
    return torch.full((T, T), float("-inf")).triu(1)


@wrong("causal", "ones and zeros, not bool", TYPE)
def ones_and_zeros(T):
    return torch.tril(torch.ones(T, T))


@wrong("causal", "a NumPy array", r"tensor|numpy|array|type")
def numpy_mask(T):
    return np.tril(np.ones((T, T), dtype=bool))


@wrong("causal", "an axis too many", r"shape|ax[ei]s")
def with_head_axis(T):
    return torch.ones(1, 1, T, T).tril().bool()


@wrong("causal", "hides nothing: everything is True", r"nothing|everything|every key|future")
def discarded_tril(T):
    mask = torch.ones(T, T, dtype=torch.bool)
    mask.tril()
    return mask


@wrong("causal", "every query sees only itself", r"itself|own|past|before|earlier")
def only_itself(T):
    return torch.eye(T, dtype=torch.bool)


@wrong(
    "padding", "one padding token too many is seen", r"one (\w+ )?(too many|more|padding)|first padding|too many|longer"
)
def one_too_many(lengths, S):
    return (torch.arange(S) <= lengths[:, None])[:, None, None]


@wrong("padding", "True for the padding", r"invert|opposite|negat|hid|revers|wrong way|block")
def true_for_padding(lengths, S):
    return (torch.arange(S) >= lengths.unsqueeze(1)).view(-1, 1, 1, S)


@wrong("padding", "mask lies along the queries", r"quer|shape|ax[ei]s")
def along_the_queries(lengths, S):
    return (torch.arange(S) < lengths[:, None])[:, None, :, None]


@wrong("padding", "the longest length for every sample", r"longest|largest|max|each sample|own length|every sample")
def longest_for_all(lengths, S):
    keep = torch.arange(S) < lengths.max()
    return keep.expand(len(lengths), 1, 1, S)


@wrong(
    "padding",
    "hides the end at the wrong side: real tokens sit on the right",
    r"left|front",
)
def padding_in_front(lengths, S):
    return (torch.arange(S) >= S - lengths[:, None])[:, None, None, :]


@wrong(
    "padding", "hides the last real token as well", r"last real|too few|one (\w+ )?(less|short|fewer|too)|last token"
)
def last_token_lost(lengths, S):
    return (torch.arange(1, S + 1) < lengths[:, None])[:, None, None, :]


@wrong("padding", "integers, not bool", TYPE)
def integers(lengths, S):
    return (torch.arange(S) < lengths[:, None]).long()[:, None, None, :]


@wrong("padding", "views (S, B) as (B, S): samples mixed", r"sample|transpos|view|reshape|mix|scrambl")
def viewed_not_transposed(lengths, S):
    return (torch.arange(S)[:, None] < lengths).reshape(len(lengths), 1, 1, S)


@wrong("padding", "axes for heads and queries missing", r"shape|ax[ei]s")
def two_axes(lengths, S):
    return torch.arange(S) < lengths[:, None]


@wrong("padding", "subtracts one from the caller's lengths", CHANGED + r"|lengths?.*chang")
def lengths_in_place(lengths, S):
    lengths -= 1
    return (torch.arange(S) <= lengths[:, None])[:, None, None, :]


@wrong("padding", "inverted, and one off", r"(?is)(?=.*(invert|opposite|negat|hid|revers|block))(?=.*(one|last|first))")
def inverted_and_one_off(lengths, S):
    return (torch.arange(S) > lengths[:, None])[:, None, None, :]


def causal(T):
    return torch.ones(T, T, dtype=torch.bool).tril()


def real(lengths, T):
    return (torch.arange(T) < lengths[:, None])[:, None, None, :]


@wrong("combined", "or where and is meant", r"\bor\b|either|union|instead of (and|both)")
def or_instead_of_and(lengths, T):
    return causal(T) | real(lengths, T)


@wrong("combined", "padding is not hidden", r"padding")
def only_causal(lengths, T):
    return causal(T).expand(len(lengths), 1, T, T)


@wrong("combined", "not causal", FUTURE + r"|causal")
def only_padding(lengths, T):
    return real(lengths, T).expand(-1, 1, T, T)


@wrong("combined", "hides the rows of padded queries too", r"quer|rows?")
def padded_rows_hidden(lengths, T):
    r = torch.arange(T) < lengths[:, None]
    return (causal(T) & r[:, None, :] & r[:, :, None])[:, None]


@wrong("combined", "the padding lies along the queries", r"quer|rows?")
def combined_along_queries(lengths, T):
    return causal(T) & real(lengths, T).transpose(-1, -2)


@wrong("combined", "upper half with the padding", FUTURE + r"|transpos|upper|triangle")
def combined_upper(lengths, T):
    return causal(T).T & real(lengths, T)


@wrong("combined", "hides the diagonal", r"itself|own|diagonal")
def combined_without_diagonal(lengths, T):
    return torch.ones(T, T).tril(-1).bool() & real(lengths, T)


@wrong("combined", "product of floats", TYPE)
def product_of_floats(lengths, T):
    return causal(T).float() * real(lengths, T).float()


@wrong("combined", "no axis for the heads", r"shape|ax[ei]s")
def no_head_axis(lengths, T):
    return causal(T) & real(lengths, T)[:, 0]


@wrong("combined", "all samples get the mask of the first", r"first|each sample|own|sample 0")
def padding_of_the_first(lengths, T):
    return (causal(T) & real(lengths, T)[:1]).expand(len(lengths), 1, T, T)


@wrong(
    "combined",
    "hides the diagonal, and one padding token too many is seen",
    r"(?is)(?=.*(itself|own|diagonal))(?=.*padding)",
)
def diagonal_and_one_more(lengths, T):
    return torch.ones(T, T).tril(-1).bool() & real(lengths + 1, T)


@wrong("combined", "True where hidden", r"invert|opposite|negat|hid|revers|block")
def combined_inverted(lengths, T):
    return ~(causal(T) & real(lengths, T))


@wrong(
    "window", "its own token comes on top: one key too many", r"one (\w+ )?(too|more)|too (many|wide)|window \+ 1|wide"
)
def on_top_of_itself(T, window):
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    return (i >= j) & (i - j <= window)


@wrong("window", "looks to both sides", FUTURE + r"|both (sides|directions|ways)")
def both_sides(T, window):
    i = torch.arange(T)
    return (i[:, None] - i).abs() < window


@wrong("window", "no limit towards the future", FUTURE)
def open_to_the_future(T, window):
    i = torch.arange(T)
    return i[:, None] - i < window


@wrong("window", "own token left out, the window before it", r"itself|own|diagonal")
def before_itself(T, window):
    d = torch.arange(T)[:, None] - torch.arange(T)
    return (d > 0) & (d <= window)


@wrong("window", "looks forward", FUTURE + r"|transpos|forward")
def forward(T, window):
    d = torch.arange(T) - torch.arange(T)[:, None]
    return (d >= 0) & (d < window)


@wrong("window", "True where hidden", r"invert|opposite|negat|hid|revers|block(ed|s)")
def window_inverted(T, window):
    d = torch.arange(T)[:, None] - torch.arange(T)
    return (d < 0) | (d >= window)


@wrong("window", "fixed blocks in place of a sliding window", r"blocks?|chunk|slid")
def in_blocks(T, window):
    b = torch.arange(T) // window
    return (b[:, None] == b) & causal(T)


@wrong("window", "centred on the query", FUTURE + r"|cent|both|either side")
def centred(T, window):
    i = torch.arange(T)
    return (i[:, None] - i).abs() <= window // 2


@wrong("window", "one key too few", r"too few|narrow|one (\w+ )?(less|fewer|short|too)")
def one_too_few(T, window):
    d = torch.arange(T)[:, None] - torch.arange(T)
    return (d >= 0) & (d < window - 1)


@wrong("window", "only causal, the window is ignored", r"past|far|limit|ignor")
def window_ignored(T, window):
    return causal(T)


@wrong("window", "one key too many, and one ahead", r"(?is)(?=.*(wide|many|more|back))(?=.*(ahead|future|next|after))")
def wide_and_ahead(T, window):
    d = torch.arange(T)[:, None] - torch.arange(T)
    return (d >= -1) & (d <= window)
