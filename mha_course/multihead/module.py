"""Multi-head attention as a module: project, split into heads, attend, merge, project."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course.cache import KVCache
from mha_course.dot_product import attention, check_addend, check_number
from mha_course.masks._inputs import check_integer
from mha_course.multihead._inputs import (
    check_backend,
    check_cache,
    check_heads,
    check_input,
    check_lengths,
    size,
    turn,
)
from mha_course.multihead.cached import append
from mha_course.multihead.steps import Attend, and_causal, merge_heads, one_per_query_head, sdpa, split_heads

Maybe = Tensor | None


class MultiHeadTrace(NamedTuple):
    """What one call of `MultiHeadAttention.trace` computed on its way.

    Attributes:
        q: (B, H, T, D), projected, split and, with `rotary`, turned.
        k: (B, Hkv, S, D), likewise. Query head h reads head h // (H / Hkv) of k and v.
        v: (B, Hkv, S, D), projected and split.
        scores, weights: (B, H, T, S), as in `AttentionTrace`.
        heads: (B, H, T, D), weights times the head of v that each reads, before they are merged.
        out: (B, T, E), what `forward` returns.
    """

    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B Hkv S D"]
    v: Float[Tensor, "B Hkv S D"]
    scores: Float[Tensor, "B H T S"]
    weights: Float[Tensor, "B H T S"]
    heads: Float[Tensor, "B H T D"]
    out: Float[Tensor, "B T E"]


class MultiHeadAttention(nn.Module):
    """Attend with several heads at once, each to its own projection of the inputs.

    q, k, v = split(q_proj(query)), split(k_proj(key)), split(v_proj(value))
    heads = softmax(q k^T / sqrt(D) + score_bias, -inf where mask is False) v
    out = out_proj(merge(heads))

    Feature i of a projection belongs to head i // D. With Hkv < H, query head h reads key and value
    head h // (H / Hkv). A query that may attend to nothing gets heads 0, hence out = out_proj.bias,
    and adds nothing to any other gradient. NaN or infinity behind a mask does reach the output,
    because 0 times NaN is NaN, and with "sdpa" so does a hidden score that overflows; other finite
    values do not. Hide keys by mask or by -inf: where all of a row's score_bias is a large finite
    number, such as -1e9, PyTorch's fused kernel returns the right numbers with wrong gradients. It
    has no second derivatives and no forward mode either; "explicit" has all of these.

    The weights start Xavier-uniform in each of the four matrices, the biases at 0, so inputs of
    variance 1 give queries and keys of variance 1 where E = Ek = H D. (nn.MultiheadAttention draws
    q, k and v as one matrix, sqrt(2) smaller, when kdim and vdim equal embed_dim, and its
    out_proj as nn.Linear does, sqrt(3) smaller.)

    Args:
        embed_dim: E, width of query and out.
        num_heads: H.
        num_kv_heads: Hkv, a divisor of H (grouped-query attention; 1: multi-query); H if None.
        head_dim: D; E / H if None.
        kdim, vdim: Ek and Ev, widths of key and value; E if None.
        bias: whether the four projections have one.
        dropout: probability of dropping a weight after the softmax, in training mode only.
        backend: how q, k, v become heads. "sdpa": `F.scaled_dot_product_attention`. "explicit":
            `attention`, step by step. Or a callable `(q, k, v, *, mask, score_bias, scale,
            is_causal, dropout_p) -> out` with the meaning of these as in `forward`, scale None, and
            H heads in q, k and v alike. May be set later: `module.backend = "explicit"`.
        rotary: turns q and k by position, `(x: (B, H, T, D)) -> x` of the same shape and type. With a cache
            it is also told offset=, the position of the first token.
        device, dtype: of the parameters.

    Raises:
        TypeError: a size is not an integer; dropout is not a number; rotary cannot be called.
        ValueError: a size is below 1; H does not divide E and head_dim is None; Hkv does not divide H;
            dropout lies outside [0, 1]; backend is neither a known name nor callable.

    Source: Vaswani et al. 2017, section 3.2.2: E is d_model, D is d_k = d_v, H is h, the projections
        W^Q, W^K, W^V, W^O. Grouped heads: Ainslie et al. 2023, section 2.2. Xavier: Glorot and
        Bengio 2010, equation 16.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: Literal["sdpa", "explicit"] | Attend = "sdpa",
        rotary: Callable[..., Tensor] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim = check_integer("embed_dim", embed_dim, least=1)
        num_heads = check_integer("num_heads", num_heads, least=1)
        self.num_kv_heads = size("num_kv_heads", num_kv_heads, num_heads)
        self.kdim, self.vdim = size("kdim", kdim, embed_dim), size("vdim", vdim, embed_dim)
        if num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads must divide num_heads, got {num_kv_heads} and {num_heads}")
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim if head_dim is None, got {num_heads} and {embed_dim}")
        self.head_dim = size("head_dim", head_dim, embed_dim // num_heads)
        if not 0 <= check_number("dropout", dropout) <= 1:
            raise ValueError(f"dropout must lie in [0, 1], got {dropout}")
        if rotary is not None and not callable(rotary):
            raise TypeError(f"rotary must be callable, got {type(rotary).__name__}")
        check_backend(backend)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.backend, self.rotary = dropout, backend, rotary
        linear = partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        self.q_proj = linear(embed_dim, num_heads * self.head_dim)
        self.k_proj = linear(self.kdim, self.num_kv_heads * self.head_dim)
        self.v_proj = linear(self.vdim, self.num_kv_heads * self.head_dim)
        self.out_proj = linear(num_heads * self.head_dim, embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, Xavier-uniform in each matrix, and set the biases to 0."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Make a module that computes the same numbers from copies of the weights.

        Args:
            module: its dropout, training mode, type, device and frozen parameters are taken over.
                `batch_first` is not: here the batch always comes first.

        Raises:
            TypeError: module is not an nn.MultiheadAttention.
            ValueError: module has add_bias_kv or add_zero_attn, which there is nothing for here.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"module must be an nn.MultiheadAttention, got {type(module).__name__}")
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("module must have neither add_bias_kv nor add_zero_attn: they have no counterpart here")
        bias, widths = module.in_proj_bias is not None, {"kdim": module.kdim, "vdim": module.vdim}
        ours = cls(module.embed_dim, module.num_heads, **widths, bias=bias, dropout=module.dropout, device="meta")
        stacked = module.in_proj_weight
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = (*(separate if stacked is None else stacked.chunk(3)), module.out_proj.weight)
        biases = (*module.in_proj_bias.chunk(3), module.out_proj.bias) if bias else ()
        linears = (ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj)
        for name, theirs in (("weight", weights), ("bias", biases)):
            for linear, x in zip(linears, theirs, strict=False):
                setattr(linear, name, nn.Parameter(x.detach().clone(), x.requires_grad))
        return ours.train(module.training)

    def forward(
        self,
        query: Float[Tensor, "B T E"],
        key: Float[Tensor, "B S Ek"] | None = None,
        value: Float[Tensor, "B S Ev"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        score_bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Attend from query to key and value; to query itself where they are not given.

        Args:
            query: (B, T, E).
            key: (B, S, Ek), query if None.
            value: (B, S, Ev), key if None.
            mask: bool, True = may attend, broadcasts to (B, H, T, S); two axes mean (T, S).
            score_bias: added to the scaled scores, broadcasts to (B, H, T, S).
            is_causal: query t may attend to keys 0 to t only, and where mask lets it too. T = S, or with a
                cache 0 to length + t, the keys before it included.
            cache: what this module got before. The T new tokens are added to it, and attended to as well:
                S = length + T, for mask and score_bias too, whatever the cache dropped. One cache for each
                module; for self-attention, and without gradients.

        Returns:
            out (B, T, E).

        Raises:
            TypeError: query, key or value is not a floating point tensor, or not of the type of the
                parameters (outside autocast); mask is not bool; score_bias is not floating point;
                is_causal is not a bool; backend or rotary returns no tensor, rotary another type;
                cache is not a KVCache, or has another type than the projected key.
            ValueError: value without key; query, key or value of another number of axes or width;
                different batch sizes; key and value of different length; mask or score_bias that does
                not broadcast to (B, H, T, S) or is on another device; is_causal with T != S;
                backend returns another shape than that of q; rotary another one than it got; with a
                cache: key or value besides query, no room for T more, another batch size, tokens of
                another module, a window without is_causal.
            RuntimeError: a gradient would have to pass through the cache.

        What is refused leaves the cache as it was, except for what a backend does or returns.
        """
        if self.backend == "explicit":
            return self.trace(query, key, value, mask=mask, score_bias=score_bias, is_causal=is_causal, cache=cache).out
        check_backend(self.backend)
        q, k, v, mask, score_bias, is_causal = self._inputs(query, key, value, mask, score_bias, is_causal, cache)
        attend = sdpa
        if callable(self.backend):
            attend, k, v = self.backend, one_per_query_head(k, q), one_per_query_head(v, q)
        dropout_p = self.dropout if self.training else 0.0
        heads = attend(q, k, v, mask=mask, score_bias=score_bias, scale=None, is_causal=is_causal, dropout_p=dropout_p)
        if attend is not sdpa:
            check_heads(heads, q)
        out_proj: Any = self._modules["out_proj"]  # as in `_inputs`
        return out_proj(merge_heads(heads))

    def trace(
        self,
        query: Float[Tensor, "B T E"],
        key: Float[Tensor, "B S Ek"] | None = None,
        value: Float[Tensor, "B S Ev"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        score_bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
    ) -> MultiHeadTrace:
        """Do what `forward` does, step by step and whatever the backend, and keep every step.

        Args, Raises: as in `forward`. In training, dropout is drawn anew.

        Returns:
            MultiHeadTrace(q, k, v, scores, weights, heads, out).
        """
        q, k, v, mask, score_bias, is_causal = self._inputs(query, key, value, mask, score_bias, is_causal, cache)
        scores, weights, heads = attention(
            q,
            one_per_query_head(k, q),
            one_per_query_head(v, q),
            mask=and_causal(mask, q) if is_causal else mask,
            score_bias=score_bias,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return MultiHeadTrace(q, k, v, scores, weights, heads, self.out_proj(merge_heads(heads)))

    def extra_repr(self) -> str:
        """The heads, their width and the backend."""
        heads = f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        return f"{heads}, dropout={self.dropout}, backend={self.backend!r}"

    def _inputs(
        self,
        query: Tensor,
        key: Maybe,
        value: Maybe,
        mask: Maybe,
        score_bias: Maybe,
        is_causal: bool,
        cache: KVCache | None,
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B Hkv S D"], Float[Tensor, "B Hkv S D"], Maybe, Maybe, bool]:
        """Check everything; project, split, turn, and add to the cache."""
        if key is None and value is not None:
            raise ValueError("value was given without key: give both, or key alone")
        key_name = "key" if key is not None else "key (query, as none was given)"
        value_name = "value" if value is not None else "value (key, as none was given)"
        key = query if key is None else key
        value = key if value is None else value
        parts: Any = self._modules  # self.q_proj would be searched for, which takes time for every token
        q_proj, k_proj, v_proj = parts["q_proj"], parts["k_proj"], parts["v_proj"]
        check_input("query", query, "T", "E", self.embed_dim, q_proj)
        if not (key is value is query and self.kdim == self.vdim == self.embed_dim):  # else that was all three
            check_input(key_name, key, "S", "Ek", self.kdim, k_proj)
            check_input(value_name, value, "S", "Ev", self.vdim, v_proj)
        check_lengths(query, key, value, is_causal)
        if cache is not None:
            check_cache(cache, query, key, value, is_causal)
        past = 0 if cache is None else cache.length
        q = split_heads(q_proj(query), self.head_dim)  # (B, H, T, D)
        k = split_heads(k_proj(key), self.head_dim)  # (B, Hkv, S, D)
        v = split_heads(v_proj(value), self.head_dim)  # (B, Hkv, S, D)
        if mask is not None or score_bias is not None:
            scores = (*q.shape[:-1], past + k.shape[-2])
            check_addend("mask", mask, scores, q)
            check_addend("score_bias", score_bias, scores, q)
        if self.rotary is not None:
            q, k = turn(self.rotary, q, k, **({} if cache is None else {"offset": past}))
        if cache is None:
            return q, k, v, mask, score_bias, is_causal
        return q, *append(cache, self, q, k, v, mask, score_bias, is_causal)
