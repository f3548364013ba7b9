"""Right attention that the first versions of the check called wrong or could not read: kernels, tables, few maps."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right


def attend(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


def heads_of(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


class SplitWeights(nn.Module):
    """Three weights of their own and one bias for all three."""

    def __init__(self, embed_dim=12, num_heads=3, kdim=10, vdim=7):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj_weight = nn.Parameter(torch.randn(embed_dim, embed_dim))
        self.k_proj_weight = nn.Parameter(torch.randn(embed_dim, kdim))
        self.v_proj_weight = nn.Parameter(torch.randn(embed_dim, vdim))
        self.in_proj_bias = nn.Parameter(torch.randn(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, mask=None):
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = self.in_proj_bias.chunk(3)
        given = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (heads_of(F.linear(x, w, b), self.num_heads) for x, w, b in given)
        return self.out_proj(joined(attend(q, k, v, mask)))


class PairedBias(nn.Module):
    """A bias for keys and values together, beside two maps."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(dim, dim)) for _ in range(3))
        self.q_bias, self.kv_bias = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(2 * dim))
        self.wo = nn.Parameter(torch.randn(dim, dim))

    def forward(self, x, context, mask=None):
        b, c = self.kv_bias.chunk(2)
        q, k, v = x @ self.wq + self.q_bias, context @ self.wk + b, context @ self.wv + c
        q, k, v = (heads_of(y, self.heads) for y in (q, k, v))
        return joined(attend(q, k, v, mask)) @ self.wo


class KerasPort(nn.Module):
    """Kernels (E, H, D), values of a width of their own, query, value and key in this order, no number of heads."""

    def __init__(self, dim=14, heads=2, key_dim=6, value_dim=5):
        super().__init__()
        self.query_kernel = nn.Parameter(torch.randn(dim, heads, key_dim))
        self.key_kernel = nn.Parameter(torch.randn(dim, heads, key_dim))
        self.value_kernel = nn.Parameter(torch.randn(dim, heads, value_dim))
        self.output_kernel = nn.Parameter(torch.randn(heads, value_dim, dim))
        self.query_bias = nn.Parameter(torch.randn(heads, key_dim))
        self.key_bias = nn.Parameter(torch.randn(heads, key_dim))
        self.value_bias = nn.Parameter(torch.randn(heads, value_dim))
        self.output_bias = nn.Parameter(torch.randn(dim))

    def forward(self, query, value, key=None, attention_mask=None):
        key = value if key is None else key
        q = torch.einsum("abc,cde->abde", query, self.query_kernel) + self.query_bias
        k = torch.einsum("abc,cde->abde", key, self.key_kernel) + self.key_bias
        v = torch.einsum("abc,cde->abde", value, self.value_kernel) + self.value_bias
        s = torch.einsum("aecd,abcd->acbe", k, q / math.sqrt(q.size(-1)))
        if attention_mask is not None:
            s = s + (1.0 - attention_mask[:, None].to(s.dtype)) * -1e9
        out = torch.einsum("acbe,aecd->abcd", s.softmax(-1), v)
        return torch.einsum("abcd,cde->abe", out, self.output_kernel) + self.output_bias


class FlaxKernels(nn.Module):
    """Kernels (E, H, D) without biases and without a number of heads."""

    def __init__(self, features=20, num=5):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.randn(features, num, features // num)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(num, features // num, features))

    def forward(self, inputs_q, inputs_kv=None, mask=None):
        inputs_kv = inputs_q if inputs_kv is None else inputs_kv
        q = torch.einsum("bte,ehd->bhtd", inputs_q, self.query)
        k, v = (torch.einsum("bse,ehd->bhsd", inputs_kv, w) for w in (self.key, self.value))
        return torch.einsum("bhtd,hde->bte", attend(q, k, v, mask), self.out)


class HeadKernels(nn.Module):
    """Kernels (H, E, D), and one flat map at the end."""

    def __init__(self, dim=20, heads=5, width=4):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(heads, dim, width)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(heads, width)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.randn(heads, width, dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x, mask=None):
        q, k, v = (
            torch.einsum("bte,hed->bhtd", x, w) + b[:, None]
            for w, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        return torch.einsum("bhtd,hde->bte", attend(q, k, v, mask), self.W_O) + self.b_O


class BareKernels(nn.Module):
    """Kernels (E, H, D) and no output map at all: only the width of the inputs tells E from H."""

    def __init__(self, dim=10, heads=2, width=5):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(dim, heads, width)) for _ in range(3))

    def forward(self, x, mask=None):
        q, k, v = (torch.einsum("bte,ehd->bhtd", x, w) for w in (self.wq, self.wk, self.wv))
        return joined(attend(q, k, v, mask))


class Stacked(nn.Module):
    """One parameter (4, E, E) for all maps."""

    def __init__(self, width=24, n_heads=4):
        super().__init__()
        self.W, self.n_heads = nn.Parameter(torch.randn(4, width, width)), n_heads

    def forward(self, x, bias=None):
        q, k, v = (heads_of(x @ w, self.n_heads) for w in self.W[:3])
        s = q @ k.mT / math.sqrt(q.size(-1))
        return joined((s if bias is None else s + bias).softmax(-1) @ v) @ self.W[3]


class Table(nn.Module):
    """A causal table of a fixed size, cut to the length."""

    def __init__(self, n_embd=12, n_head=3, block_size=4, check=False):
        super().__init__()
        self.n_head, self.check, self.size = n_head, check, block_size
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("table", torch.ones(block_size, block_size).tril()[None, None])

    def forward(self, x):
        T = x.size(1)
        if self.check and self.size < T:
            raise ValueError(f"at most {self.size} tokens")
        q, k, v = (heads_of(y, self.n_head) for y in self.c_attn(x).chunk(3, -1))
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(self.table[..., :T, :T] == 0, -torch.inf)
        return self.c_proj(joined(s.softmax(-1) @ v))


class TableAndMask(Table):
    """A causal table of a fixed size beside the caller's mask."""

    def forward(self, x, attention_mask=None):
        T = x.size(1)
        q, k, v = (heads_of(y, self.n_head) for y in self.c_attn(x).chunk(3, -1))
        seen = self.table[..., :T, :T] != 0
        if attention_mask is not None:
            seen = seen & attention_mask[:, None, None].bool()
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~seen, torch.finfo(q.dtype).min)
        return self.c_proj(joined(s.softmax(-1) @ v))


_TABLE = torch.ones(4, 4, dtype=torch.bool).tril()


def short_table(q, k, v):
    """A function with a causal table of four rows."""
    return attend(q, k, v, _TABLE[: q.size(-2), : k.size(-2)])


class Whole(nn.Module):
    """Plain, with a method that is the whole attention and one that is its middle alone."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def attend(self, q, k, v, mask=None):
        return attend(q, k, v, mask)

    def run(self, query, key, value, mask=None):
        q, k, v = (
            heads_of(f(x), self.heads) for f, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(joined(self.attend(q, k, v, mask)))

    forward = run


class Plain:
    """No module."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def attend(self, q, k, v, mask=None):
        return attend(q * self.scale, k, v, mask)


class Channels(nn.Module):
    """(B, C, L), with convolutions of size 1."""

    def __init__(self, channels=12, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.proj = (nn.Conv1d(channels, channels, 1) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (heads_of(f(x).mT, self.num_heads) for f in (self.query, self.key, self.value))
        return self.proj(joined(attend(q, k, v, mask)).mT)


class Pixels(nn.Module):
    """(B, C, rows, columns), one fused convolution of size 1."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Conv2d(dim, 3 * dim, 1, bias=False), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        B, _, rows, columns = x.shape
        q, k, v = (y.reshape(B, self.heads, -1, rows * columns) for y in self.to_qkv(x).chunk(3, 1))
        s = torch.einsum("bhdi,bhdj->bhij", q * q.size(2) ** -0.5, k)
        out = torch.einsum("bhij,bhdj->bhdi", s.softmax(-1), v)
        return self.to_out(out.reshape(B, -1, rows, columns))


class ConvInside(nn.Module):
    """(B, T, E) outside, convolutions of size 1 inside."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Conv1d(dim, dim, kernel_size=1) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        q, k, v = (heads_of(f(x.mT).mT, self.heads) for f, x in ((self.q, query), (self.k, key), (self.v, value)))
        return self.o(joined(attend(q, k, v, mask)).mT).mT


class Unbatched(nn.Module):
    """(T, E), one sequence."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        T, E = x.shape
        q, k, v = self.qkv(x).view(T, 3, self.heads, E // self.heads).permute(1, 2, 0, 3)
        return self.out(attend(q, k, v, mask).transpose(0, 1).reshape(T, E))


def in_bfloat16(q, k, v, mask=None):
    return attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask).to(q.dtype)


def in_float16(q, k, v, mask=None):
    return attend(q.half(), k.half(), v.half(), mask).type_as(q)


class LowScores(Whole):
    """The scores alone in bfloat16."""

    def attend(self, q, k, v, mask=None):
        s = (q.bfloat16() @ k.bfloat16().mT).to(q) / math.sqrt(q.size(-1))
        return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


class FloatWeights(Whole):
    """Softmax in float32, and its weights go on in float32 as the values do."""

    def attend(self, q, k, v, mask=None):
        s = (q @ k.mT / math.sqrt(q.size(-1))).float()
        return (s if mask is None else s.masked_fill(~mask, -1e30)).softmax(-1) @ v.float()


def with_norms(norm):
    m = Whole()
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        norm(getattr(m, name))
    return m


def tied(**which):
    m = Whole()
    for name, other in which.items():
        setattr(m, name, getattr(m, other))
    return m


class OneMap(nn.Module):
    """One weight and one bias for queries, keys, values and output."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads, self.W, self.b = heads, nn.Parameter(torch.randn(dim, dim)), nn.Parameter(torch.randn(dim))

    def forward(self, x, mask=None):
        y = heads_of(x @ self.W + self.b, self.heads)
        return joined(attend(y, y, y, mask)) @ self.W + self.b


class SharedQueryKey(nn.Module):
    """One map for queries and keys."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.to_qk, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x, mask=None):
        q = heads_of(self.to_qk(x), self.heads)
        return self.to_out(joined(attend(q, q, heads_of(self.to_v(x), self.heads), mask)))


class OneKeyHead(nn.Module):
    """A fused map of all queries, one key and one value; only its width tells that."""

    def __init__(self, hidden=24, n_head=4):
        super().__init__()
        self.n_head, self.hidden, self.head_dim = n_head, hidden, hidden // n_head
        self.query_key_value = nn.Linear(hidden, hidden + 2 * self.head_dim)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = self.query_key_value(hidden_states).split((self.hidden, self.head_dim, self.head_dim), -1)
        return self.dense(joined(attend(heads_of(q, self.n_head), k[:, None], v[:, None], attention_mask)))


class FewKeyHeads(nn.Module):
    """Two key heads for six query heads; only the widths tell that."""

    def __init__(self, dim=24, heads=6):
        super().__init__()
        self.heads, self.few = heads, 2
        self.wq, self.wk, self.wv = nn.Linear(dim, dim), nn.Linear(dim, dim // 3), nn.Linear(dim, dim // 3)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = heads_of(self.wq(x), self.heads), heads_of(self.wk(x), self.few), heads_of(self.wv(x), self.few)
        k, v = (y.repeat_interleave(self.heads // self.few, 1) for y in (k, v))
        return self.wo(joined(attend(q, k, v, mask)))


def torch_layer(**options):
    return nn.MultiheadAttention(16, 4, kdim=11, vdim=13, **options)


ITEMS = [
    Right("third_torch_other_widths", lambda: torch_layer(batch_first=True), remark="blocked|hidden"),
    Right("third_torch_other_widths_sequence_first", torch_layer, remark="blocked|hidden"),
    Right("third_split_weights", SplitWeights),
    Right("third_paired_bias", PairedBias),
    Right("third_keras_port", KerasPort),
    Right("third_keras_port_wide", lambda: KerasPort(21, 3, 5, 8)),
    Right("third_flax_kernels", FlaxKernels),
    Right("third_head_kernels", HeadKernels),
    Right("third_bare_kernels", BareKernels),
    Right("third_stacked", Stacked),
    Right("third_table", Table, remark="causal"),
    Right("third_table_checked", lambda: Table(check=True), remark="causal"),
    Right("third_table_of_three", lambda: Table(12, 2, 3), remark="causal"),
    Right("third_table_four_heads", lambda: Table(16, 4, 4), remark="causal"),
    Right("third_table_of_six", lambda: Table(12, 3, 6), remark="causal"),
    Right("third_table_and_mask", TableAndMask, remark="causal"),
    Right("third_short_table_function", lambda: short_table, remark="causal"),
    Right("third_bound_forward", lambda: Whole().forward),
    Right("third_bound_other", lambda: Whole().run),
    Right("third_bound_middle", lambda: Whole().attend),
    Right("third_bound_plain", lambda: Plain().attend),
    Right("third_channels", Channels),
    Right("third_channels_stated", Channels, {"layout": "B E T"}),
    Right("third_pixels", Pixels),
    Right("third_conv_inside", ConvInside),
    Right("third_unbatched", Unbatched),
    Right("third_unbatched_stated", Unbatched, {"layout": "T E", "mask_axes": "T S"}),
    Right("third_bfloat16", lambda: in_bfloat16, remark="bfloat16"),
    Right("third_float16", lambda: in_float16, remark="float16"),
    Right("third_bfloat16_scores", LowScores, remark="bfloat16"),
    Right("third_float32", FloatWeights),
    Right("third_weight_norm", lambda: with_norms(nn.utils.parametrizations.weight_norm)),
    Right("third_spectral_norm", lambda: with_norms(nn.utils.parametrizations.spectral_norm)),
    Right("third_old_spectral_norm", lambda: with_norms(nn.utils.spectral_norm)),
    Right("third_tied_keys", lambda: tied(k_proj="q_proj")),
    Right("third_tied_keys_and_values", lambda: tied(v_proj="k_proj")),
    Right("third_tied_all", lambda: tied(k_proj="q_proj", v_proj="q_proj", out_proj="q_proj")),
    Right("third_one_map", OneMap),
    Right("third_shared_query_key", SharedQueryKey),
    Right("third_one_key_head", OneKeyHead),
    Right("third_few_key_heads", FewKeyHeads),
]
