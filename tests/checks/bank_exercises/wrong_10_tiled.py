"""Wrong solutions of the exercises of notebook 10: attention in tiles."""

import math

import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import CHANGED, wrong

tiled = "tiled_attention"

HELD = r"(all|whole|full|every|T x S).*(scores|rows).*(held|at once|made|formed|memory)"
NOT_RESCALED = r"(not|no|never|without|missing).*(rescal|factor|exp|correct)|(rescal|factor).*(missing|left)"


def start(q, v):
    T = len(q)
    return torch.full((T, 1), -math.inf).to(q), q.new_zeros(T, 1), q.new_zeros(T, v.shape[1])


@wrong(
    tiled, "the last block, which is shorter, is left out", r"last|remainder|rest|ragged|multiple|short|left out|lost"
)
def whole_blocks_only(q, k, v, block):
    m, den, acc = start(q, v)
    for j in range(k.shape[0] // block):
        kj, vj = k[j * block : (j + 1) * block], v[j * block : (j + 1) * block]
        s = q @ kj.T / math.sqrt(q.shape[1])
        new = torch.maximum(m, s.max(dim=1, keepdim=True).values)
        c = torch.exp(m - new)
        p = torch.exp(s - new)
        den = c * den + p.sum(1, keepdim=True)
        acc = c * acc + p @ vj
        m = new
    return acc / den


@wrong(
    tiled,
    "the last block stops one key early: each block lacks its last key",
    r"last key|one key|off by one|key.*(each|every|lost)",
)
def one_key_short(q, k, v, block):
    m, den, acc = start(q, v)
    for j in range(0, k.shape[0], block):
        kj, vj = k[j : j + block - 1], v[j : j + block - 1]
        if len(kj) == 0:
            continue
        s = q @ kj.T / math.sqrt(q.shape[1])
        new = torch.maximum(m, s.max(dim=1, keepdim=True).values)
        c = torch.exp(m - new)
        p = torch.exp(s - new)
        den = c * den + p.sum(1, keepdim=True)
        acc = c * acc + p @ vj
        m = new
    return acc / den


@wrong(tiled, "blocks overlap by one key", r"overlap|twice|two blocks|one key")
def one_key_too_many(q, k, v, block):
    m, den, acc = start(q, v)
    for j in range(0, k.shape[0], block):
        kj, vj = k[j : j + block + 1], v[j : j + block + 1]
        s = q @ kj.T / math.sqrt(q.shape[1])
        new = torch.maximum(m, s.amax(1, True))
        c = torch.exp(m - new)
        p = torch.exp(s - new)
        den, acc, m = c * den + p.sum(1, keepdim=True), c * acc + p @ vj, new
    return acc / den


@wrong(tiled, "the first key is left out", r"first key|key 0|one key|start")
def starts_at_one(q, k, v, block):
    m, den, acc = start(q, v)
    for j in range(1, k.shape[0], block):
        s = q @ k[j : j + block].T * q.shape[1] ** -0.5
        new = torch.maximum(m, s.amax(1, True))
        c, p = torch.exp(m - new), torch.exp(s - new)
        den, acc, m = c * den + p.sum(1, True), c * acc + p @ v[j : j + block], new
    return acc / den


@wrong(tiled, "no scale", r"(not|no|never|missing).*(scale|divid|root)|scale.*missing|unscaled")
def unscaled_tiles(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
        m = new
    return acc / den


@wrong(tiled, "divides by D", r"by D\b|root")
def divided_by_d(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
        m = new
    return acc / den


@wrong(tiled, "q is scaled again for every block", r"twice|again|every block|more than once|repeated|each (step|block)")
def scaled_in_every_step(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        q = q / q.size(-1) ** 0.5
        s = q @ kj.mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
        m = new
    return acc / den


@wrong(tiled, "a softmax in each block, averaged", r"softmax.*(each|every|block)|averag|mean|each block|own")
def softmax_in_each_block(q, k, v, block):
    outs = []
    for i in range(0, len(k), block):
        outs.append(F.softmax(q @ k[i : i + block].T / q.shape[1] ** 0.5, dim=-1) @ v[i : i + block])
    return torch.stack(outs).mean(0)


@wrong(tiled, "a softmax in each block, added up", r"softmax.*(each|every|block)|each block|own|add")
def softmaxes_added(q, k, v, block):
    out = torch.zeros_like(q)
    for i in range(0, len(k), block):
        w = torch.softmax(q @ k[i : i + block].T / q.shape[1] ** 0.5, dim=-1)
        out += w @ v[i : i + block]
    return out


@wrong(tiled, "nothing is rescaled when the maximum rises", NOT_RESCALED)
def never_rescaled(q, k, v, block):
    T, D = q.shape
    out = torch.zeros(T, D, dtype=q.dtype)
    for i in range(0, T, block):
        qi = q[i : i + block]
        m = torch.full((len(qi),), float("-inf"), dtype=q.dtype)
        den = torch.zeros(len(qi), dtype=q.dtype)
        acc = torch.zeros(len(qi), D, dtype=q.dtype)
        for j in range(0, k.shape[0], block):
            s = qi @ k[j : j + block].T / math.sqrt(D)
            m = torch.maximum(m, s.max(1)[0])
            p = torch.exp(s - m[:, None])
            den = den + p.sum(1)
            acc = acc + p @ v[j : j + block]
        out[i : i + block] = acc / den[:, None]
    return out


@wrong(tiled, "the sum is not rescaled", r"\b(sum|l)\b.*(rescal|factor|exp|not)|sum")
def sum_not_rescaled(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
        m = new
    return acc / den


@wrong(tiled, "the output is not rescaled", r"output.*(rescal|factor|exp|not)|accumul")
def output_not_rescaled(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc + p @ vj
        m = new
    return acc / den


@wrong(
    tiled,
    "the maximum is that of the block alone",
    r"(running|so far|block alone|this block|its own|own maxim|current)",
)
def maximum_of_this_block(q, k, v, block):
    _, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = s.amax(-1, keepdim=True)
        p = (s - new).exp()
        den = den + p.sum(-1, keepdim=True)
        acc = acc + p @ vj
    return acc / den


@wrong(tiled, "not divided at the end", r"divi|normali")
def not_divided_at_the_end(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
        m = new
    return acc


@wrong(tiled, "divided in every step", r"(every|each) (step|block)|divi.*(every|each|again|twice)|in the loop")
def divided_in_every_step(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = (acc * c + p @ vj) / den
        m = new
    return acc


@wrong(tiled, "the output is overwritten by every block", r"overwrit|last block|replac|not added|forgotten")
def overwritten(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = p @ vj
        m = new
    return acc / den


@wrong(tiled, "the maximum starts at 0", r"\b0\b|zero|start|-inf|minus infinity|negative")
def maximum_from_zero(q, k, v, block):
    T, D = q.shape
    m, den, acc = q.new_zeros(T, 1), q.new_zeros(T, 1), torch.zeros_like(q)
    for j in range(0, len(k), block):
        s = q @ k[j : j + block].T / math.sqrt(D)
        new = torch.maximum(m, s.amax(1, keepdim=True))
        c, p = torch.exp(m - new), torch.exp(s - new)
        den = den * c + p.sum(1, keepdim=True)
        acc = acc * c + p @ v[j : j + block]
        m = new
    return acc / den


@wrong(tiled, "one maximum for the whole tile", r"(one|single|whole|all).*(maxim|tile|row)|maxim.*(row|tile|all)")
def one_maximum_for_the_tile(q, k, v, block):
    m, den, acc = torch.tensor(-math.inf, dtype=q.dtype), q.new_zeros(len(q), 1), torch.zeros_like(q)
    for j in range(0, len(k), block):
        s = q @ k[j : j + block].T / math.sqrt(q.shape[1])
        new = torch.maximum(m, s.max())
        c, p = torch.exp(m - new), torch.exp(s - new)
        den = den * c + p.sum(1, keepdim=True)
        acc = acc * c + p @ v[j : j + block]
        m = new
    return acc / den


@wrong(tiled, "always the values of the first block", r"value.*(first|block|same)|first")
def values_not_cut(q, k, v, block):
    m, den, acc = start(q, v)
    for kj in k.split(block):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ v[: kj.shape[0]]
        m = new
    return acc / den


@wrong(tiled, "the last queries are lost", r"quer|last row|rows")
def last_queries_lost(q, k, v, block):
    T, D = q.shape
    out = torch.zeros(T, D, dtype=q.dtype)
    for i in range(0, T - block + 1, block):
        qi = q[i : i + block]
        m = torch.full((len(qi), 1), -torch.inf, dtype=q.dtype)
        den, acc = torch.zeros_like(m), torch.zeros_like(qi)
        for j in range(0, len(k), block):
            s = qi @ k[j : j + block].T / D**0.5
            new = torch.maximum(m, s.amax(1, keepdim=True))
            c, p = torch.exp(m - new), torch.exp(s - new)
            den, acc, m = c * den + p.sum(1, keepdim=True), c * acc + p @ v[j : j + block], new
        out[i : i + block] = acc / den
    return out


@wrong(tiled, "the return is inside the loop", r"first block|only|one block|return|loop")
def returns_too_early(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
        m = new
        return acc / den


@wrong(tiled, "m is never set to the new maximum", r"updat|stays|never|old maxim|last block|-inf|kept")
def maximum_never_kept(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ vj
    return acc / den


@wrong(tiled, "m is set before the factor is taken, which is then always 1", NOT_RESCALED + r"|too early|before")
def maximum_set_too_early(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        m = torch.maximum(m, s.amax(-1, keepdim=True))
        c = torch.exp(m - torch.maximum(m, s.amax(-1, keepdim=True)))
        p = torch.exp(s - m)
        den = c * den + p.sum(-1, keepdim=True)
        acc = c * acc + p @ vj
    return acc / den


@wrong(tiled, "the factor has the wrong sign", r"sign|inverse|upside|revers|grow|new.*old|wrong way")
def factor_upside_down(q, k, v, block):
    T = len(q)
    m, den, acc = q.new_full((T, 1), -1e30), q.new_zeros(T, 1), torch.zeros_like(q)
    for j, kj in enumerate(k.split(block)):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        c = torch.exp(new - m) if j else torch.ones_like(m)
        p = (s - new).exp()
        den = den * c + p.sum(-1, keepdim=True)
        acc = acc * c + p @ v.split(block)[j]
        m = new
    return acc / den


@wrong(tiled, "exponentials without the maximum", r"overflow|maxim.*(missing|not|never)|without|subtract|large")
def no_maximum(q, k, v, block):
    den, acc = 0, 0
    for j in range(0, len(k), block):
        p = torch.exp(q @ k[j : j + block].T / math.sqrt(q.shape[-1]))
        den = den + p.sum(-1, keepdim=True)
        acc = acc + p @ v[j : j + block]
    return acc / den


@wrong(tiled, "the softmax runs over the queries", r"over the quer|wrong axis|columns|quer|axis")
def over_the_queries(q, k, v, block):
    out = torch.zeros_like(q)
    for j in range(0, len(k), block):
        out += torch.softmax(q @ k[j : j + block].T / math.sqrt(q.shape[-1]), dim=0) @ v[j : j + block]
    return out


@wrong(tiled, "each query block sees its own keys alone", r"own|diagonal|local|same block|only|one block")
def diagonal_blocks(q, k, v, block):
    out = torch.zeros_like(q)
    for i in range(0, min(len(q), len(k)), block):
        b = slice(i, i + block)
        out[b] = F.softmax(q[b] @ k[b].T / math.sqrt(q.shape[-1]), dim=-1) @ v[b]
    return out


@wrong(tiled, "divided by the number of keys, not by the sum", r"number of|divi|sum|mean")
def divided_by_the_count(q, k, v, block):
    m, _, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        acc = acc * (m - new).exp() + (s - new).exp() @ vj
        m = new
    return acc / len(k)


@wrong(tiled, "all scores at once, block is not used", HELD)
def block_not_used(q, k, v, block):
    return torch.softmax(q @ k.T / math.sqrt(q.shape[1]), dim=-1) @ v


@wrong(tiled, "all scores first, then cut into blocks", HELD)
def scores_first(q, k, v, block):
    scores = q @ k.T / math.sqrt(q.shape[1])
    m, den, acc = start(q, v)
    for j in range(0, k.shape[0], block):
        s = scores[:, j : j + block]
        new = torch.maximum(m, s.amax(1, keepdim=True))
        c, p = torch.exp(m - new), torch.exp(s - new)
        den, acc, m = c * den + p.sum(1, keepdim=True), c * acc + p @ v[j : j + block], new
    return acc / den


@wrong(tiled, "all tiles of scores are kept in a list", HELD)
def tiles_in_a_list(q, k, v, block):
    tiles = [q @ kj.T / q.shape[1] ** 0.5 for kj in k.split(block)]
    m = torch.stack([s.max(1).values for s in tiles]).max(0).values[:, None]
    powers = [torch.exp(s - m) for s in tiles]
    den = sum(p.sum(1, keepdim=True) for p in powers)
    return sum(p @ vj for p, vj in zip(powers, v.split(block), strict=True)) / den


@wrong(tiled, "queries are cut, keys are not: whole rows of scores", r"row|keys.*(not|cut|all)|all.*keys|whole")
def queries_cut_alone(q, k, v, block):
    return torch.cat([F.softmax(x @ k.T / q.shape[1] ** 0.5, -1) @ v for x in q.split(block)])


@wrong(tiled, "block taken as the number of blocks", r"number of|wide|width|block.*(not|keys)|larger")
def block_as_a_count(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.chunk(block), v.chunk(block), strict=True):
        s = q @ kj.mT / q.size(-1) ** 0.5
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den, acc, m = den * c + p.sum(-1, keepdim=True), acc * c + p @ vj, new
    return acc / den


@wrong(tiled, "scales the caller's q", CHANGED)
def q_scaled_in_place(q, k, v, block):
    q *= q.shape[1] ** -0.5
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den, acc, m = den * c + p.sum(-1, keepdim=True), acc * c + p @ vj, new
    return acc / den


@wrong(tiled, "no scale and the last block lost", r"(?is)(?=.*(scale|divid|root))(?=.*(last|rest|short|lost))")
def unscaled_and_short(q, k, v, block):
    m, den, acc = start(q, v)
    for n in range(len(k) // block):
        b = slice(n * block, n * block + block)
        s = q @ k[b].mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den, acc, m = den * c + p.sum(-1, keepdim=True), acc * c + p @ v[b], new
    return acc / den


@wrong(tiled, "sum not rescaled and divided by D", r"(?is)(?=.*\b(sum|l)\b)(?=.*(by D\b|root|scale))")
def sum_and_scale(q, k, v, block):
    m, den, acc = start(q, v)
    for kj, vj in zip(k.split(block), v.split(block), strict=True):
        s = q @ kj.mT / q.size(-1)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = (s - new).exp(), (m - new).exp()
        den, acc, m = den + p.sum(-1, keepdim=True), acc * c + p @ vj, new
    return acc / den


@wrong(tiled, "exponentials with the tile's own maximum", r"(?i)maximum of the tile alone is subtracted")
def own_maximum_in_the_powers(q, k, v, block):
    m, den, acc = start(q, v)
    for i in range(0, len(k), block):
        s = q @ k[i : i + block].mT / math.sqrt(q.size(-1))
        own = s.amax(-1, keepdim=True)
        new = torch.maximum(m, own)
        p, c = (s - own).exp(), (m - new).exp()
        den, acc, m = den * c + p.sum(-1, keepdim=True), acc * c + p @ v[i : i + block], new
    return acc / den
