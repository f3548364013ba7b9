"""Right solutions of the exercises of notebook 12, in many styles."""

import math

import torch
from torch.nn import functional as F

from tests.checks.bank_exercises import right

update, decode = "cache_update", "decode"


@right(update)
def with_slices(k_buffer, v_buffer, length, k, v):
    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise ValueError(f"{end} tokens do not fit into {k_buffer.shape[2]} slots")
    k_buffer[:, :, length:end] = k
    v_buffer[:, :, length:end] = v
    return k_buffer[:, :, :end], v_buffer[:, :, :end], end


@right(update)
def with_index_copy(k_buffer, v_buffer, length, k, v):
    room, T = k_buffer.size(-2), k.size(-2)
    if room - length < T:
        raise ValueError("the cache is full")
    slots = torch.arange(length, length + T)
    k_buffer.index_copy_(2, slots, k)
    v_buffer.index_copy_(2, slots, v)
    length += T
    return k_buffer.narrow(2, 0, length), v_buffer.narrow(2, 0, length), length


@right(update)
def token_by_token(k_buffer, v_buffer, length, k, v):
    T = k.shape[-2]
    if not length + T <= k_buffer.shape[-2]:
        raise ValueError
    for t in range(T):
        k_buffer[..., length + t, :] = k[..., t, :]
        v_buffer[..., length + t, :] = v[..., t, :]
    new = torch.arange(length + T)
    return [k_buffer[:, :, new], v_buffer[:, :, new], length + T]


@right(update)
def in_a_loop_over_both(k_buffer, v_buffer, length, k, v):
    class Full(ValueError):
        pass

    end = length + k.shape[2]
    if end > k_buffer.shape[2]:
        raise Full("no room")
    held = []
    for buffer, new in ((k_buffer, k), (v_buffer, v)):
        buffer[:, :, length:end].copy_(new)
        held.append(buffer[:, :, :end].clone())
    return (*held, end)


@right(update)
def with_narrow(k_buffer, v_buffer, length, k, v):
    room = k_buffer.shape[-2]
    T = k.shape[2]
    if length + T > room:
        raise ValueError("overflow")
    torch.narrow(k_buffer, 2, length, T)[:] = k
    torch.narrow(v_buffer, 2, length, T)[:] = v
    return k_buffer[:, :, : length + T], v_buffer[:, :, : length + T], torch.tensor(length + T)


@right(decode)
def into_a_buffer(x, P, W_q, W_k, W_v, prompt):
    K, V = x.new_zeros(len(x), W_k.shape[1]), x.new_zeros(len(x), W_v.shape[1])
    out, length = [], 0
    for new in (x[:prompt], *x[prompt:].split(1)):
        end = length + len(new)
        h = new + P[length:end]
        K[length:end], V[length:end] = h @ W_k, h @ W_v
        scores = h @ W_q @ K[:end].T / math.sqrt(K.shape[1])
        seen = torch.ones(len(new), end, dtype=torch.bool).tril(length)
        out.append(scores.masked_fill(~seen, -math.inf).softmax(-1) @ V[:end])
        length = end
    return torch.cat(out)


@right(decode)
def by_concatenation(x, P, W_q, W_k, W_v, prompt):
    h = x[:prompt] + P[:prompt]
    q, K, V = h @ W_q, h @ W_k, h @ W_v
    scores = q @ K.T / K.shape[1] ** 0.5
    scores = scores + torch.full_like(scores, -math.inf).triu(1)
    out = [F.softmax(scores, dim=-1) @ V]
    for t in range(prompt, len(x)):
        h = x[t : t + 1] + P[t : t + 1]
        K = torch.cat([K, h @ W_k], dim=0)
        V = torch.cat([V, h @ W_v], dim=0)
        out.append(F.softmax(h @ W_q @ K.T / K.shape[1] ** 0.5, dim=-1) @ V)
    return torch.cat(out, dim=0)


@right(decode)
def every_token_by_itself(x, P, W_q, W_k, W_v, prompt):
    keys, values, out = [], [], []
    for token, position in zip(x, P, strict=False):
        h = token + position
        keys.append(h @ W_k)
        values.append(h @ W_v)
        weights = torch.softmax(torch.stack(keys) @ (h @ W_q) / math.sqrt(len(h @ W_q)), 0)
        out.append(weights @ torch.stack(values))
    return torch.stack(out)


@right(decode)
def with_the_fused_function(x, P, W_q, W_k, W_v, prompt):
    out = torch.empty(len(x), W_v.shape[1], dtype=x.dtype)
    h = x[:prompt] + P[:prompt]
    q, k, v = (torch.einsum("te,ed->td", h, W)[None] for W in (W_q, W_k, W_v))
    out[:prompt] = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    for t in range(prompt, len(x)):
        h = (x[t] + P[t])[None]
        q, new_k, new_v = (torch.einsum("te,ed->td", h, W)[None] for W in (W_q, W_k, W_v))
        k, v = torch.cat([k, new_k], 1), torch.cat([v, new_v], 1)
        out[t] = F.scaled_dot_product_attention(q, k, v)[0, 0]
    return out


@right(decode)
def with_linear(x, P, W_q, W_k, W_v, prompt):
    K, V, parts = None, None, []
    for i, j in [(0, prompt), *((t, t + 1) for t in range(prompt, x.shape[0]))]:
        h = torch.add(x[i:j], P[i:j])
        q, k, v = F.linear(h, W_q.T), F.linear(h, W_k.T), F.linear(h, W_v.T)
        K, V = (k, v) if K is None else (torch.cat((K, k)), torch.cat((V, v)))
        s = q.matmul(K.t()) * q.size(1) ** -0.5
        query, key = torch.arange(i, j)[:, None], torch.arange(j)
        parts.append(torch.where(key <= query, s, -math.inf).softmax(1).matmul(V))
    return torch.cat(parts)


@right(decode)
def fused_projection(x, P, W_q, W_k, W_v, prompt):
    W = torch.cat([W_q, W_k, W_v], dim=1)
    held = [x.new_empty(0, W_k.shape[1]), x.new_empty(0, W_v.shape[1])]
    out = []
    for new in torch.split(x, [prompt, *[1] * (len(x) - prompt)]):
        n = len(held[0])
        q, *kv = ((new + P[n : n + len(new)]) @ W).split([W_q.shape[1], W_k.shape[1], W_v.shape[1]], dim=1)
        held = [torch.cat([old, part]) for old, part in zip(held, kv, strict=True)]
        scores = (q @ held[0].T / math.sqrt(q.shape[1])).tril(n)
        powers = scores.exp().tril(n)
        out.append(powers / powers.sum(1, keepdim=True) @ held[1])
    return torch.cat(out)
