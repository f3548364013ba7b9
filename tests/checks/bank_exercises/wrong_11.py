"""Wrong solutions of the exercises of notebook 11: attention in a sliding window."""

import math

import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import CHANGED, wrong

windowed = "windowed_attention"

SCALE = r"(not|no|never|missing).*(scale|divid|root)|scale.*missing|unscaled"
SIZE = r"window.*(off by one|too (many|few|long|short|large|small|wide)|more|less|fewer|further|larger|smaller)|one key"
LOCAL = r"block"
FUTURE = r"ahead|future|later|after it|both sides|causal|come next"
START = r"start|first|before 0|before the|negative|zero|padd|wrap|end of the sequence"
END = r"last|remainder|rest|ragged|multiple|short|left out|lost|end"


def sees(q, k, v, mask):
    scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


@wrong(windowed, "window + 1 keys: the slice starts one too early", SIZE)
def one_too_many(q, k, v, window):
    out = torch.empty_like(q)
    for t in range(len(q)):
        lo = max(0, t - window)
        w = torch.softmax(k[lo : t + 1] @ q[t] / math.sqrt(q.shape[1]), dim=0)
        out[t] = w @ v[lo : t + 1]
    return out


@wrong(windowed, "window - 1 keys: the slice starts one too late", SIZE)
def one_too_few(q, k, v, window):
    out = torch.zeros_like(q)
    for t in range(len(q)):
        lo = max(0, t - window + 2)
        w = torch.softmax(k[lo : t + 1] @ q[t] / math.sqrt(q.shape[1]), dim=0)
        out[t] = w @ v[lo : t + 1]
    return out


@wrong(windowed, "the own key is left out", r"own|itself|self")
def own_left_out(q, k, v, window):
    out = torch.zeros_like(q)
    for t in range(1, len(q)):
        lo = max(0, t - window)
        w = torch.softmax(k[lo:t] @ q[t] / math.sqrt(q.shape[1]), dim=0)
        out[t] = w @ v[lo:t]
    return out


@wrong(windowed, "the window looks ahead: keys t to t + window - 1", FUTURE)
def looks_ahead(q, k, v, window):
    rows = []
    for t in range(len(q)):
        kt, vt = k[t : t + window], v[t : t + window]
        rows.append((kt @ q[t] / math.sqrt(q.shape[1])).softmax(0) @ vt)
    return torch.stack(rows)


@wrong(windowed, "the window lies around the token, half of it in the future", FUTURE)
def around(q, k, v, window):
    half = window // 2
    rows = []
    for t in range(len(q)):
        lo, hi = max(0, t - half), t + half + 1
        rows.append((q[t] @ k[lo:hi].T / math.sqrt(q.shape[1])).softmax(-1) @ v[lo:hi])
    return torch.stack(rows)


@wrong(windowed, "window - 1 keys on both sides", FUTURE)
def both_sides(q, k, v, window):
    place = torch.arange(len(q))
    return sees(q, k, v, (place[:, None] - place).abs() < window)


@wrong(windowed, "each block of window tokens sees itself alone", LOCAL)
def own_block(q, k, v, window):
    out = torch.zeros_like(q)
    for i in range(0, len(q), window):
        qi, ki, vi = q[i : i + window], k[i : i + window], v[i : i + window]
        s = qi @ ki.T / math.sqrt(q.shape[1])
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
        out[i : i + window] = s.softmax(-1) @ vi
    return out


@wrong(windowed, "a block sees itself alone, and the future in it", LOCAL)
def own_block_not_causal(q, k, v, window):
    parts = zip(q.split(window), k.split(window), v.split(window), strict=True)
    return torch.cat([F.softmax(a @ b.T / math.sqrt(q.shape[1]), -1) @ c for a, b, c in parts])


@wrong(
    windowed,
    "the block and the one before it, causal, but without the window's far end",
    r"block|window|too (many|far)|further",
)
def two_blocks_causal(q, k, v, window):
    out = torch.zeros_like(q)
    for i in range(0, len(q), window):
        lo = max(0, i - window)
        qi, ki, vi = q[i : i + window], k[lo : i + window], v[lo : i + window]
        s = qi @ ki.T / math.sqrt(q.shape[1])
        t = torch.arange(i, i + len(qi))[:, None]
        j = torch.arange(lo, lo + len(ki))[None]
        out[i : i + window] = s.masked_fill(j > t, -math.inf).softmax(-1) @ vi
    return out


@wrong(windowed, "the block and the one before it, the far end masked, but not the future", FUTURE + "|block")
def two_blocks_no_causal(q, k, v, window):
    out = torch.zeros_like(q)
    for i in range(0, len(q), window):
        lo = max(0, i - window)
        qi, ki, vi = q[i : i + window], k[lo : i + window], v[lo : i + window]
        s = qi @ ki.T / math.sqrt(q.shape[1])
        t = torch.arange(i, i + len(qi))[:, None]
        j = torch.arange(lo, lo + len(ki))[None]
        out[i : i + window] = s.masked_fill(t - j >= window, -math.inf).softmax(-1) @ vi
    return out


@wrong(windowed, "zeros are put before the first key and take weight", START)
def zeros_take_weight(q, k, v, window):
    kp = F.pad(k, (0, 0, window - 1, 0)).unfold(0, window, 1)  # (S, D, W)
    vp = F.pad(v, (0, 0, window - 1, 0)).unfold(0, window, 1)
    s = torch.einsum("sd,sdw->sw", q, kp) / math.sqrt(q.shape[1])
    return torch.einsum("sw,sdw->sd", s.softmax(-1), vp)


@wrong(windowed, "roll wraps around: the first tokens see the last ones", START)
def rolled(q, k, v, window):
    ks = torch.stack([k.roll(j, 0) for j in range(window)], 1)
    vs = torch.stack([v.roll(j, 0) for j in range(window)], 1)
    w = ((q[:, None] * ks).sum(-1) / math.sqrt(q.shape[1])).softmax(-1)
    return (w[..., None] * vs).sum(1)


@wrong(windowed, "negative places are set to 0: the first key counts several times", START + "|several|twice|repeat")
def first_key_repeated(q, k, v, window):
    at = (torch.arange(len(q))[:, None] - torch.arange(window)).clamp(min=0)
    w = (torch.einsum("sd,swd->sw", q, k[at]) / math.sqrt(q.shape[1])).softmax(-1)
    return torch.einsum("sw,swd->sd", w, v[at])


@wrong(windowed, "the first window - 1 tokens get nothing", START)
def from_a_full_window(q, k, v, window):
    out = torch.zeros_like(q)
    for t in range(window - 1, len(q)):
        lo = t - window + 1
        out[t] = (k[lo : t + 1] @ q[t] / math.sqrt(q.shape[1])).softmax(0) @ v[lo : t + 1]
    return out


@wrong(windowed, "the last tokens, which fill no block, are left at 0", END)
def whole_blocks(q, k, v, window):
    out = torch.zeros_like(q)
    for b in range(len(q) // window):
        i = b * window
        lo = max(0, i - window + 1)
        s = q[i : i + window] @ k[lo : i + window].T / math.sqrt(q.shape[1])
        t = torch.arange(i, i + window)[:, None]
        j = torch.arange(lo, i + window)[None]
        may = (j <= t) & (t - j < window)
        out[i : i + window] = s.masked_fill(~may, -math.inf).softmax(-1) @ v[lo : i + window]
    return out


@wrong(windowed, "no scale", SCALE)
def unscaled(q, k, v, window):
    out = torch.empty_like(q)
    for t in range(len(q)):
        lo = max(0, t - window + 1)
        out[t] = (k[lo : t + 1] @ q[t]).softmax(0) @ v[lo : t + 1]
    return out


@wrong(windowed, "divided by the square root of the window, not of D", r"window.*not.*D|root.*window|number of keys")
def scaled_by_window(q, k, v, window):
    out = torch.empty_like(q)
    for t in range(len(q)):
        lo = max(0, t - window + 1)
        out[t] = (k[lo : t + 1] @ q[t] / math.sqrt(window)).softmax(0) @ v[lo : t + 1]
    return out


@wrong(windowed, "softmax over the tokens, not over the keys of one", r"softmax.*(quer|token|axis|not over)")
def softmax_over_tokens(q, k, v, window):
    far = torch.arange(window)
    at = torch.arange(len(q))[:, None] - far
    s = torch.einsum("sd,swd->sw", q, k[at.clamp(min=0)]) / math.sqrt(q.shape[1])
    w = s.masked_fill(at < 0, -1e9).softmax(0)
    return torch.einsum("sw,swd->sd", w, v[at.clamp(min=0)])


@wrong(
    windowed, "softmax over an axis of size 1: all weights are 1", r"softmax|weights?.*\b1\b|sum|not.*(divid|normal)"
)
def softmax_over_nothing(q, k, v, window):
    rows = []
    for t in range(len(q)):
        lo = max(0, t - window + 1)
        s = k[lo : t + 1] @ q[t][:, None] / math.sqrt(q.shape[1])  # (W, 1)
        rows.append((s.softmax(-1) * v[lo : t + 1]).sum(0))
    return torch.stack(rows)


@wrong(windowed, "hidden scores are 0, not -inf", r"hidden|mask|0.*-inf|zero|start|minus infinity")
def hidden_scores_zero(q, k, v, window):
    place = torch.arange(len(q))
    gap = place[:, None] - place
    s = q @ k.T / math.sqrt(q.shape[1])
    s = s * ((gap >= 0) & (gap < window))
    return s.softmax(-1) @ v


@wrong(windowed, "the mask comes after the softmax, nothing is renormalised", r"after the softmax|not.*(sum|renormal)")
def masked_after(q, k, v, window):
    place = torch.arange(len(q))
    gap = place[:, None] - place
    w = (q @ k.T / math.sqrt(q.shape[1])).softmax(-1)
    return (w * ((gap >= 0) & (gap < window))) @ v


@wrong(windowed, "the values come in the other order than the keys", r"value.*(order|place|revers|shift|not)|revers")
def values_reversed(q, k, v, window):
    far = torch.arange(window)
    at, back = torch.arange(len(q))[:, None] - far, torch.arange(len(q))[:, None] - far.flip(0)
    s = torch.einsum("sd,swd->sw", q, k[at.clamp(min=0)]) / math.sqrt(q.shape[1])
    w = s.masked_fill(at < 0, -math.inf).softmax(-1)
    return torch.einsum("sw,swd->sd", w, v[back.clamp(min=0)])


@wrong(
    windowed, "the window is forgotten: all of the past", r"window.*(not|forgot|missing|no )|all.*(past|before)|every"
)
def all_of_the_past(q, k, v, window):
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], is_causal=True)[0, 0]


@wrong(windowed, "every pair of tokens is scored, then masked", r"all S x S scores are held at once")
def dense_mask(q, k, v, window):
    place = torch.arange(len(q))
    gap = place[:, None] - place
    return sees(q, k, v, (gap >= 0) & (gap < window))


@wrong(windowed, "a mask of S x S for PyTorch's own function", r"all S x S|S x S")
def by_sdpa(q, k, v, window):
    ones = torch.ones(len(q), len(q), dtype=torch.bool)
    mask = ones.tril() & ones.triu(1 - window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong(windowed, "row by row, but with the scores of all of the past", r"S x S|all.*(keys|scores|past)|grow")
def rows_of_all(q, k, v, window):
    rows = []
    for t in range(len(q)):
        s = k[: t + 1] @ q[t] / math.sqrt(q.shape[1])
        s[: max(0, t + 1 - window)] = -math.inf
        rows.append(s.softmax(0) @ v[: t + 1])
    return torch.stack(rows)


@wrong(windowed, "q is divided in place", CHANGED)
def in_place(q, k, v, window):
    q /= math.sqrt(q.shape[1])
    out = torch.empty_like(q)
    for t in range(len(q)):
        lo = max(0, t - window + 1)
        out[t] = (k[lo : t + 1] @ q[t]).softmax(0) @ v[lo : t + 1]
    return out
