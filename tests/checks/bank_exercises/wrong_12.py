"""Wrong solutions of the exercises of notebook 12: a cache written to, and decoding with one."""

import math

import torch

from tests.checks.bank_exercises import wrong

update, decode = "cache_update", "decode"

NOT_REFUSED = r"(not|nothing|never|no error|without).*(refus|rais|check|overflow)|full"
NOT_HELD = r"not (written|kept|held|stored)|never (written|kept)|stay|buffers?.*(unchanged|miss|lack)|copy|lost"


@wrong(update, "every call writes from the start", r"from (the start|slot 0|0)|at 0|overwrit|start")
def from_the_start(k_buffer, v_buffer, length, k, v):
    T = k.shape[2]
    if length + T > k_buffer.shape[2]:
        raise ValueError("no room")
    k_buffer[:, :, :T] = k
    v_buffer[:, :, :T] = v
    return k_buffer[:, :, : length + T], v_buffer[:, :, : length + T], length + T


@wrong(update, "the new tokens are put behind the whole buffer", r"behind|whole|all slots|append|concat|unused|room")
def behind_the_buffer(k_buffer, v_buffer, length, k, v):
    if length + k.size(2) > k_buffer.size(2):
        raise ValueError("full")
    return torch.cat([k_buffer, k], dim=2), torch.cat([v_buffer, v], dim=2), length + k.size(2)


@wrong(update, "nothing is written into the buffers", NOT_HELD)
def concatenates(k_buffer, v_buffer, length, k, v):
    if length + k.size(2) > k_buffer.size(2):
        raise ValueError("full")
    k_all = torch.cat([k_buffer[:, :, :length], k], dim=2)
    v_all = torch.cat([v_buffer[:, :, :length], v], dim=2)
    return k_all, v_all, k_all.size(2)


@wrong(
    update, "it writes one slot too early", r"one (slot|place|position|token).*(early|before|low)|off by one|length - 1"
)
def one_early(k_buffer, v_buffer, length, k, v):
    start = max(length - 1, 0)
    end = start + k.shape[2]
    if length + k.shape[2] > k_buffer.shape[2]:
        raise ValueError(f"{length} + {k.shape[2]} tokens do not fit")
    k_buffer[:, :, start:end], v_buffer[:, :, start:end] = k, v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(
    update,
    "a slot is left empty before the new tokens",
    r"one (slot|place|position|token).*(late|behind|far|high)|gap|off by|length \+ 1",
)
def one_late(k_buffer, v_buffer, length, k, v):
    room = k_buffer.shape[2]
    if length + len(k[0, 0]) > room:
        raise ValueError("too long")
    for t in range(k.shape[2]):
        slot = min(length + 1 + t, room - 1)
        k_buffer[:, :, slot] = k[:, :, t]
        v_buffer[:, :, slot] = v[:, :, t]
    length += k.shape[2]
    return k_buffer[:, :, :length], v_buffer[:, :, :length], length


@wrong(update, "the whole buffer is returned", r"whole buffer|all slots|never written|garbage|beyond|behind|room")
def whole_buffer(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[-2]
    if end > k_buffer.shape[-2]:
        raise ValueError("full")
    k_buffer[:, :, length:end].copy_(k)
    v_buffer[:, :, length:end].copy_(v)
    return k_buffer, v_buffer, end


@wrong(update, "no check for overflow", NOT_REFUSED + r"|ValueError")
def no_check(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(update, "it starts again at the front when full", NOT_REFUSED)
def wraps_round(k_buffer, v_buffer, length, k, v):
    room = k_buffer.shape[2]
    slots = torch.arange(length, length + k.shape[2]) % room
    k_buffer[:, :, slots] = k
    v_buffer[:, :, slots] = v
    held = min(length + k.shape[2], room)
    return k_buffer[:, :, :held], v_buffer[:, :, :held], held


@wrong(update, "tokens that do not fit are dropped", NOT_REFUSED)
def clipped(k_buffer, v_buffer, length, k, v):
    end = min(length + k.shape[2], k_buffer.shape[2])
    k_buffer[:, :, length:end] = k[:, :, : end - length]
    v_buffer[:, :, length:end] = v[:, :, : end - length]
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(update, "the buffer is made longer instead of an error", NOT_REFUSED)
def grows(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        k_buffer = torch.cat([k_buffer, torch.zeros_like(k)], 2)
        v_buffer = torch.cat([v_buffer, torch.zeros_like(v)], 2)
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(
    update,
    "it is checked only after something was written",
    r"(after|before|though|although).*(writ|chang)|writ.*(before|first)",
)
def checks_late(k_buffer, v_buffer, length, k, v):
    T = k.shape[2]
    for t in range(T):
        if length == k_buffer.shape[2]:
            raise ValueError("the cache is full")
        k_buffer[:, :, length] = k[:, :, t]
        v_buffer[:, :, length] = v[:, :, t]
        length += 1
    return k_buffer[:, :, :length], v_buffer[:, :, :length], length


@wrong(update, "an assertion instead of a ValueError", r"AssertionError|ValueError|type of error")
def asserts(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    assert end <= k_buffer.shape[2], "full"
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(
    update,
    "keys and values are exchanged in the return",
    r"(keys|\bk).*(values|\bv).*(exchang|swap|places|mixed)|order",
)
def exchanged(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return v_buffer[:, :, :end], k_buffer[:, :, :end], end


@wrong(update, "the length is not advanced", r"length.*(not|old|stay|same|advanc)|old length")
def length_stays(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], length


@wrong(
    update, "what was held before is returned, without the new", r"old|without the new|new tokens.*(miss|not)|before"
)
def old_part(k_buffer, v_buffer, length, k, v):
    T = k.shape[2]
    if length + T > k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, :, length : length + T] = k
    v_buffer[:, :, length : length + T] = v
    return k_buffer[:, :, :length], v_buffer[:, :, :length], length + T


@wrong(update, "only the new tokens are returned", r"(only|alone).*new|new.*(only|alone)|old.*(miss|not|left)|earlier")
def new_part(k_buffer, v_buffer, length, k, v):
    new = length + k.shape[2]
    if new > k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, :, length:new] = k
    v_buffer[:, :, length:new] = v
    return k_buffer[:, :, length:new], v_buffer[:, :, length:new], new


@wrong(update, "it is cut along the axis of the heads", r"axis|RuntimeError|heads")
def wrong_axis(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, length:end] = k
    v_buffer[:, length:end] = v
    return k_buffer[:, :end], v_buffer[:, :end], end


@wrong(update, "the last free slot is never used", r"exactly|last (free )?slot|one too (early|few)|just fit|off by one")
def refuses_a_full_one(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end >= k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(update, "the check forgets the number of new tokens", NOT_REFUSED + r"|ValueError")
def checks_the_old_length(k_buffer, v_buffer, length, k, v):
    if length >= k_buffer.shape[2]:
        raise ValueError("full")
    end = length + k.shape[2]
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(update, "the keys are written as values too", r"(keys|\bk\b).*(values|v_buffer)|twice|both")
def keys_twice(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError("full")
    for buffer in (k_buffer, v_buffer):
        buffer[:, :, length:end] = k
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@wrong(update, "the length grows by one, whatever came", r"by (one|1)\b|1 more|\+ 1|one token")
def counts_calls(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError("full")
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], length + 1


@wrong(update, "a copy is written, not the buffer", NOT_HELD)
def into_a_copy(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError("full")
    keys, values = k_buffer.clone(), v_buffer.clone()
    keys[:, :, length:end] = k
    values[:, :, length:end] = v
    return keys[:, :, :end], values[:, :, :end], end


@wrong(decode, "the mask is aligned to the upper left corner", r"upper left|first key|tril|corner|mask")
def upper_left(x, P, W_q, W_k, W_v, prompt):
    keys, values, out, n = [], [], [], 0
    for new in [x[:prompt], *x[prompt:].split(1)]:
        h = new + P[n : n + len(new)]
        keys.append(h @ W_k)
        values.append(h @ W_v)
        K, V = torch.cat(keys), torch.cat(values)
        scores = h @ W_q @ K.T / math.sqrt(K.shape[1])
        mask = torch.ones(len(new), len(K), dtype=torch.bool).tril()
        out.append(scores.masked_fill(~mask, -math.inf).softmax(-1) @ V)
        n += len(new)
    return torch.cat(out)


def one_head(q, k, v, causal=False):
    scores = q @ k.T / k.shape[1] ** 0.5
    if causal:
        hidden = torch.ones_like(scores).triu(1).bool()
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


@wrong(decode, "a new token does not see itself", r"own|itself|late.*cache|before it is (written|added)")
def without_itself(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for t in range(prompt, len(x)):
        h = (x[t] + P[t])[None]
        out.append(one_head(h @ W_q, K, V))
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
    return torch.cat(out)


@wrong(decode, "each new token gets position 0", r"position.*(0|again|start|first)")
def always_position_zero(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for token in x[prompt:]:
        h = token.unsqueeze(0) + P[:1]
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(decode, "positions count from 0 behind the prompt", r"position.*(0|again|start|prompt)")
def positions_from_the_prompt(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for i, token in enumerate(x[prompt:]):
        h = (token + P[i])[None, :]
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(decode, "the positions of new tokens are one too large", r"position.*(one|late|large|next|ahead|off)|off by one")
def position_one_ahead(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for token in x[prompt:]:
        h = (token + P[min(len(K) + 1, len(P) - 1)])[None]
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(
    decode,
    "everything is one token late: the last of the prompt is fed again",
    r"late|again|before it|previous|one (token )?behind",
)
def one_token_late(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for t in range(prompt, len(x)):
        h = x[t - 1 : t] + P[t - 1 : t]
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(
    decode, "new tokens are not kept for later ones", r"cache|not (kept|held|added|written)|prompt (alone|only)|forgot"
)
def cache_stays(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for t in range(prompt, len(x)):
        h = x[t : t + 1] + P[t : t + 1]
        out.append(one_head(h @ W_q, torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])))
    return torch.cat(out)


@wrong(decode, "the prompt is not masked", r"prompt.*(mask|causal|sees|later)|causal|mask")
def prompt_without_mask(x, P, W_q, W_k, W_v, prompt):
    h = x + P[: len(x)]
    K, V = h[:prompt] @ W_k, h[:prompt] @ W_v
    out = [one_head(h[:prompt] @ W_q, K, V)]
    for t in range(prompt, len(x)):
        K, V = torch.cat([K, h[t : t + 1] @ W_k]), torch.cat([V, h[t : t + 1] @ W_v])
        out.append(one_head(h[t : t + 1] @ W_q, K, V))
    return torch.cat(out)


@wrong(decode, "the whole prefix is computed anew at each step", r"again|anew|recomput|repeat")
def whole_prefix(x, P, W_q, W_k, W_v, prompt):
    out = []
    for n in range(prompt, len(x) + 1):
        h = x[:n] + P[:n]
        y = one_head(h @ W_q, h @ W_k, h @ W_v, causal=True)
        out.append(y if n == prompt else y[-1:])
    return torch.cat(out)


@wrong(decode, "no decoding: all at once", r"at once|all tokens|not.*(one|step)|ahead|before they")
def all_at_once(x, P, W_q, W_k, W_v, prompt):
    h = x + P[: len(x)]
    return one_head(h @ W_q, h @ W_k, h @ W_v, causal=True)


@wrong(decode, "the inputs are held, so keys are computed anew each step", r"again|anew|recomput|repeat")
def holds_inputs(x, P, W_q, W_k, W_v, prompt):
    held = x[:prompt] + P[:prompt]
    out = [one_head(held @ W_q, held @ W_k, held @ W_v, causal=True)]
    for t in range(prompt, len(x)):
        h = (x[t] + P[t]).unsqueeze(0)
        held = torch.cat([held, h])
        out.append(one_head(h @ W_q, held @ W_k, held @ W_v))
    return torch.cat(out)


@wrong(decode, "the scores are not scaled", r"scale")
def not_scaled(x, P, W_q, W_k, W_v, prompt):
    K, V, out = x.new_empty(0, W_k.shape[1]), x.new_empty(0, W_v.shape[1]), []
    for t, token in enumerate(x):
        h = token + P[t]
        K, V = torch.vstack([K, h @ W_k]), torch.vstack([V, h @ W_v])
        out.append((K @ (h @ W_q)).softmax(0) @ V)
    return torch.stack(out)


@wrong(decode, "only the last output of the prompt is returned", r"prompt|shape|last")
def last_of_the_prompt(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)[-1:]]
    for t in range(prompt, len(x)):
        h = x[t : t + 1] + P[t : t + 1]
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(
    decode,
    "positions are forgotten behind the prompt",
    r"position.*(not|no|miss|without|forgot|only|alone)|(no|without).*position",
)
def steps_without_positions(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K, V = h @ W_k, h @ W_v
    out = [one_head(h @ W_q, K, V, causal=True)]
    for h in x[prompt:].split(1):
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(decode, "no positions at all", r"position.*(not|no|miss|without|forgot)|(no|without).*position")
def no_positions(x, P, W_q, W_k, W_v, prompt):
    K, V = x[:prompt] @ W_k, x[:prompt] @ W_v
    out = [one_head(x[:prompt] @ W_q, K, V, causal=True)]
    for h in x[prompt:].split(1):
        K, V = torch.cat([K, h @ W_k]), torch.cat([V, h @ W_v])
        out.append(one_head(h @ W_q, K, V))
    return torch.cat(out)


@wrong(
    decode,
    "the prompt is lost when decoding starts",
    r"prompt.*(lost|not|forgot|miss|empty|no longer)|(lost|forgot|empt).*prompt",
)
def prompt_lost(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    out = [one_head(h @ W_q, h @ W_k, h @ W_v, causal=True)]
    K, V = [], []
    for t in range(prompt, len(x)):
        h = x[t : t + 1] + P[t : t + 1]
        K.append(h @ W_k)
        V.append(h @ W_v)
        out.append(one_head(h @ W_q, torch.cat(K), torch.cat(V)))
    return torch.cat(out)


@wrong(decode, "a new token sees itself alone", r"itself|own|alone|cache|nothing (else|before)|not.*earlier")
def itself_alone(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    out = [one_head(h @ W_q, h @ W_k, h @ W_v, causal=True)]
    for t in range(prompt, len(x)):
        h = x[t : t + 1] + P[t : t + 1]
        out.append(one_head(h @ W_q, h @ W_k, h @ W_v))
    return torch.cat(out)


@wrong(decode, "values are projected with the matrix of the keys", r"W_k|W_v|(keys?|values?).*(value|key)")
def values_with_w_k(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    K = h @ W_k
    out = [one_head(h @ W_q, K, K, causal=True)]
    for t in range(prompt, len(x)):
        h = x[t : t + 1] + P[t : t + 1]
        K = torch.cat([K, h @ W_k])
        out.append(one_head(h @ W_q, K, K))
    return torch.cat(out)
