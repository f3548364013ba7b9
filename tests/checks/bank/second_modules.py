"""Modules for the second bank: ports of well-known code. Each is right when wrong is empty; wrong names slips."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

_uniform = nn.init.uniform_


@dataclass
class Config:
    """What a model's settings file would say."""

    n_embd: int = 12
    n_head: int = 3
    block_size: int = 64
    dropout: float = 0.0


class Conv1D(nn.Module):
    """A linear map whose weight is stored input first, as in old checkpoints."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) / math.sqrt(nx))
        self.bias = nn.Parameter(torch.randn(nf) * 0.1)

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class GptAttention(nn.Module):
    """Causal self-attention with one fused map and a buffer of ones and zeros."""

    def __init__(self, config, wrong=""):
        super().__init__()
        self.config, self.wrong = config, wrong.split()
        self.c_attn, self.c_proj = Conv1D(3 * config.n_embd, config.n_embd), Conv1D(config.n_embd, config.n_embd)
        n = config.block_size
        ones = torch.ones(n, n, dtype=torch.bool)
        self.register_buffer("bias", torch.tril(ones, diagonal=1 if "peek" in self.wrong else 0).view(1, 1, n, n))

    def forward(self, x):
        B, T, C = x.shape
        nh = self.config.n_head
        q, k, v = (t.view(B, T, nh, C // nh).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        w = q @ k.transpose(-2, -1)
        if "unscaled" not in self.wrong:
            w = w / math.sqrt(C if "wide" in self.wrong else v.size(-1))
        b = self.bias[:, :, :T, :T].to(w.dtype)
        if "zeros" in self.wrong:
            w = (w * b).softmax(-1)
        elif "late" in self.wrong:
            w = w.softmax(-1) * b
        else:
            w = (w * b + -1e9 * (1 - b)).softmax(-1)
        y = w @ v
        y = y.contiguous().view(B, T, C) if "flat" in self.wrong else y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class BertAttention(nn.Module):
    """Encoder self-attention with a key padding mask of ones and zeros, returning a tuple."""

    def __init__(self, hidden_size=16, num_attention_heads=4, wrong=""):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = num_attention_heads, hidden_size // num_attention_heads
        self.all_head_size, self.wrong = hidden_size, wrong.split()
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        q, k, v = (self.transpose_for_scores(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            m = attention_mask.to(scores.dtype)
            m = m[:, None, :, None] if "rows" in self.wrong else m[:, None, None, :]
            far = -3.0 if "weak" in self.wrong else torch.finfo(scores.dtype).min
            scores = scores + (1.0 - m) * far
        if "dropout_scores" in self.wrong:
            probs = self.dropout(scores).softmax(-1)
        else:
            probs = F.dropout(scores.softmax(-1), 0.1, training=True if "always" in self.wrong else self.training)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).reshape(*hidden_states.shape)
        if "residual" in self.wrong:
            return self.dense(context) + hidden_states, probs
        return (self.dense(context), probs) if output_attentions else (self.dense(context),)


class KerasAttention(nn.Module):
    """Kernels of shape (E, H, D); the call takes query, value, key in this order."""

    def __init__(self, dim=12, num_heads=2, key_dim=6, wrong=""):
        super().__init__()
        self.num_heads, self.key_dim, self.wrong = num_heads, key_dim, wrong.split()
        for role in ("query", "key", "value"):
            setattr(self, f"{role}_kernel", nn.Parameter(torch.randn(dim, num_heads, key_dim) / dim**0.5))
            setattr(self, f"{role}_bias", nn.Parameter(torch.randn(num_heads, key_dim) * 0.3))
        self.output_kernel = nn.Parameter(torch.randn(num_heads, key_dim, dim) / dim**0.5)
        self.output_bias = nn.Parameter(torch.randn(dim) * 0.3)

    def _dense(self, x, role):
        y = torch.einsum("abc,cde->abde", x, getattr(self, f"{role}_kernel"))
        return y if "no_bias" in self.wrong and role == "value" else y + getattr(self, f"{role}_bias")

    def forward(self, query, value, key=None, attention_mask=None):
        key = value if key is None else key
        source = key if "value_lost" in self.wrong else value
        q, k = self._dense(query, "query"), self._dense(key, "key")
        v = self._dense(source, "key" if "tied" in self.wrong else "value")
        scores = torch.einsum("aecd,abcd->acbe", k, q * (1.0 / math.sqrt(float(self.key_dim))))
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None].to(scores.dtype)) * -1e9
        probs = scores.softmax(-2 if "axis" in self.wrong else -1)
        out = torch.einsum("acbe,aecd->abcd", probs, v)
        return torch.einsum("abcd,cde->abe", out, self.output_kernel) + self.output_bias


class FairseqAttention(nn.Module):
    """Time first; heads are folded into the batch; key_padding_mask is True where hidden."""

    def __init__(self, embed_dim=12, num_heads=3, wrong=""):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scaling, self.wrong = self.head_dim**-0.5, wrong.split()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def _shape(self, x):
        L, B, _ = x.shape
        if "mixed" in self.wrong:
            return x.contiguous().view(B * self.num_heads, L, self.head_dim)
        return x.contiguous().view(L, B * self.num_heads, self.head_dim).transpose(0, 1)

    def forward(self, query, key, value, key_padding_mask=None):
        T, B, E = query.shape
        q = self._shape(self.q_proj(query) * self.scaling)
        k, v = self._shape(self.k_proj(query if "stream" in self.wrong else key)), self._shape(self.v_proj(value))
        w = torch.bmm(q, k.transpose(1, 2))
        if "twice" in self.wrong:
            w = w * self.scaling
        if key_padding_mask is not None:
            pad = key_padding_mask.to(torch.bool)
            H = self.num_heads
            pad = pad.repeat(H, 1) if "order" in self.wrong else pad.repeat_interleave(H, 0)
            w = w.masked_fill(pad[:, None, :], float("-inf"))
        o = torch.bmm(torch.softmax(w, -1), v)
        if "unmerged" in self.wrong:
            return self.out_proj(o.reshape(T, B, E))
        return self.out_proj(o.transpose(0, 1).contiguous().view(T, B, E))


class FunctionalAttention(nn.Module):
    """Stacked weights handed to F.multi_head_attention_forward; batch first outside."""

    def __init__(self, d_model=16, nhead=2, wrong=""):
        super().__init__()
        self.d_model, self.nhead, self.wrong = d_model, nhead, wrong.split()
        self.in_proj_weight = nn.Parameter(_uniform(torch.empty(3 * d_model, d_model), -0.4, 0.4))
        self.in_proj_bias = nn.Parameter(_uniform(torch.empty(3 * d_model), -0.4, 0.4))
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, attn_mask=None):
        if attn_mask is not None:
            B, T, S = query.size(0), query.size(1), key.size(1)
            hidden = attn_mask if "upside" in self.wrong else ~attn_mask
            hidden = hidden.expand(B, self.nhead, T, S)
            attn_mask = (hidden.transpose(0, 1) if "order" in self.wrong else hidden).reshape(B * self.nhead, T, S)
        if "batch" not in self.wrong:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        bias = None if "no_bias" in self.wrong else self.in_proj_bias
        out, _ = F.multi_head_attention_forward(
            query, key, value, self.d_model, self.nhead, self.in_proj_weight, bias, None, None,
            "zero" in self.wrong, 0.2, self.out_proj.weight, self.out_proj.bias,
            training="train" in self.wrong or self.training, attn_mask=attn_mask, need_weights=False,
        )  # fmt: skip
        return out if "batch" in self.wrong else out.transpose(0, 1)


class LlamaAttention(nn.Module):
    """Grouped heads, no biases, scaled_dot_product_attention at the end."""

    def __init__(self, args=None, wrong=""):
        super().__init__()
        self.args = args or SimpleNamespace(dim=16, n_heads=4, n_kv_heads=2)
        self.n_heads, self.n_kv_heads, self.wrong = self.args.n_heads, self.args.n_kv_heads, wrong.split()
        dim, self.head_dim = self.args.dim, self.args.dim // self.n_heads
        self.n_rep = self.n_heads // self.n_kv_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def repeat_kv(self, x):
        if "tiled" in self.wrong:
            return x.repeat(1, 1, self.n_rep, 1)
        B, S, h, d = x.shape
        return x[:, :, :, None, :].expand(B, S, h, self.n_rep, d).reshape(B, S, h * self.n_rep, d)

    def forward(self, x, mask=None):
        B, T, _ = x.shape
        xq = self.wq(x).view(B, T, self.n_heads, -1)
        xk, xv = (self.repeat_kv(f(x).view(B, T, self.n_kv_heads, -1)) for f in (self.wk, self.wv))
        if "qknorm" in self.wrong:
            xq, xk = F.normalize(xq, dim=-1), F.normalize(xk, dim=-1)
        if "token" not in self.wrong:
            xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        scale = self.head_dim**0.5 if "inverse" in self.wrong else None
        if "unasked" in self.wrong:
            o = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask, is_causal=mask is None)
        elif "token" in self.wrong:
            o = F.scaled_dot_product_attention(xq, xk, xv)
        else:
            o = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask, scale=scale)
        return self.wo((o if "token" in self.wrong else o.transpose(1, 2)).reshape(B, T, -1))


class LucidAttention(nn.Module):
    """Inner width apart from the model's width; pattern reshapes written by hand; context is optional."""

    def __init__(self, dim=10, heads=4, dim_head=3, wrong=""):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.wrong = heads, wrong.split()
        self.scale = (dim if "dim" in self.wrong else dim_head) ** -0.5
        self.to_q, self.to_kv = nn.Linear(dim, inner, bias=False), nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(0.1))

    def split(self, t, swapped=False):
        """b n (h d) -> b h n d."""
        if swapped:
            return t.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)
        return t.unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        kv = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = self.to_q(x), kv[0], kv[1]
        if "from_x" in self.wrong:
            v = self.to_kv(x).chunk(2, dim=-1)[1]
        q, k, v = self.split(q), self.split(k, "swapped" in self.wrong), self.split(v)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            bad = torch.finfo(dots.dtype).max if "max" in self.wrong else -torch.finfo(dots.dtype).max
            if "lost" in self.wrong:
                dots.masked_fill(~mask[:, None, None, :], bad)
            else:
                dots = dots.masked_fill(~mask[:, None, None, :], bad)
        attn = dots.softmax(dim=1) if "dim1" in self.wrong else dots.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v).permute(0, 2, 1, 3).flatten(2)
        return self.to_out(out)
