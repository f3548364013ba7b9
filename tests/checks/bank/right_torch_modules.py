"""Right modules made of torch's own layer, and modules with the sequence axis first."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right


class OnlyOutput(nn.Module):
    """torch's layer behind a call of its own; a mask (T, S) or (B * H, T, S), True is hidden."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask=None):
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]


class Turned(nn.Module):
    """torch's layer, whose mask is turned round: (B, S), True is a token."""

    def __init__(self, embed_dim=12, num_heads=3):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, bias=False, batch_first=True)

    def forward(self, query, key, value, mask=None):
        return self.attn(query, key, value, key_padding_mask=None if mask is None else ~mask)[0]


class Expanded(nn.Module):
    """torch's layer, given one mask (B, H, T, S), True may attend."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.layer = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            shape = (query.size(0), self.num_heads, query.size(1), key.size(1))
            mask = ~mask.expand(shape).flatten(0, 1)
        out, weights = self.layer(query, key, value, attn_mask=mask, average_attn_weights=False)
        return out, weights


class CausalLayer(nn.MultiheadAttention):
    """A subclass that hides the future always."""

    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), dtype=x.dtype)
        return super().forward(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


class Functional(nn.Module):
    """Four layers, handed to torch's function."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, key, value):
        x = [t.transpose(0, 1) for t in (query, key, value)]
        out, _ = F.multi_head_attention_forward(
            *x, query.size(-1), self.num_heads, None, torch.cat([self.q.bias, self.k.bias, self.v.bias]), None, None,
            False, 0.0, self.o.weight, self.o.bias, self.training, use_separate_proj_weight=True,
            q_proj_weight=self.q.weight, k_proj_weight=self.k.weight, v_proj_weight=self.v.weight,
        )  # fmt: skip
        return out.transpose(0, 1)


class SequenceFirst(nn.Module):
    """(T, B, E) in and out, heads folded into the batch, padding (B, S) with True for hidden."""

    def __init__(self, embed_dim=16, num_heads=4, dropout=0.1):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scaling, self.dropout = self.head_dim**-0.5, dropout
        self.k_proj, self.v_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.q_proj, self.out_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None):
        tgt_len, bsz, _ = query.size()
        q = self.q_proj(query) * self.scaling
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = self.k_proj(key).contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(value).contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        w = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            w = w.view(bsz, self.num_heads, tgt_len, -1)
            w = w.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2), float("-inf")).flatten(0, 1)
        w = F.dropout(F.softmax(w, dim=-1), p=self.dropout, training=self.training)
        attn = torch.bmm(w, v).transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        return self.out_proj(attn)


class SequenceFirstMask(nn.Module):
    """(T, B, E) with einsum, of one input, and a mask that broadcasts to (B, H, T, S)."""

    def __init__(self, d_model=12, n_head=3):
        super().__init__()
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model, bias=False), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).unbind(2)
        s = torch.einsum("tbhd,sbhd->bhts", q, k) / q.size(-1) ** 0.5
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return self.proj(torch.einsum("bhts,sbhd->tbhd", s.softmax(-1), v).flatten(2))


ITEMS = [
    Right("torch_layer", lambda: nn.MultiheadAttention(16, 4, batch_first=True), remark="blocked|hidden"),
    Right("torch_layer_sequence_first", lambda: nn.MultiheadAttention(16, 4), remark="blocked|hidden"),
    Right("torch_layer_class", lambda: nn.MultiheadAttention, remark="blocked|hidden"),
    Right(
        "torch_layer_other_widths",
        lambda: nn.MultiheadAttention(12, 3, dropout=0.1, bias=False, kdim=10, vdim=7, batch_first=True),
        remark="blocked|hidden",
    ),
    Right("torch_only_output", OnlyOutput, remark="blocked|hidden"),
    Right("torch_turned", Turned),
    Right("torch_expanded", Expanded),
    Right("torch_subclass_causal", lambda: CausalLayer(16, 4), remark="causal"),
    Right("torch_function", Functional),
    Right("sequence_first", SequenceFirst, remark="blocked|hidden"),
    Right("sequence_first_stated", SequenceFirst, {"layout": "T B E", "mask": "blocked", "mask_axes": "B S"}),
    Right("sequence_first_mask", SequenceFirstMask),
]
