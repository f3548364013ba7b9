"""A small decoder: embedded tokens, a stack of blocks and a read-out, as in GPT-2."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.block import Block, Norm, check_norm
from mha_course.cache import KVCache
from mha_course.masks._inputs import check_integer, integers, refuse
from mha_course.multihead import MultiHeadAttention
from mha_course.positions import Learned, Rotary

Positions = Literal["learned", "rotary"] | None
STD, WIDTH = 0.02, 768  # of GPT-2


class Decoder(nn.Module):
    """Say for every place of a sequence which token comes next, from the tokens up to it.

    x = dropout(embedding[tokens] + position);   x = block(x) for every block;   logits = read_out(norm(x))

    Depth 0 is allowed: the logits then depend on the token (and the learned position) itself alone, a bigram model.
    With norm="post" there is no last norm, since every block ends with one.

    It starts as GPT-2 does: matrices and tables N(0, s^2), and the matrices that write to the residual stream
    (`attention.out_proj` and `mlp.down`) sqrt(2 num_layers) smaller, so that the stream's spread does not grow with
    depth; biases 0; norms with weight 1. GPT-2's s is .02 at its width 768; here s = .02 sqrt(768 / E), so that a
    narrow model starts with maps as strong as those (.02 at E = 32 barely moves).

    Parameters, with a bias, hidden = 4 E and Hkv = H: V E (twice if not tied), max_length E if learned, and
    12 E^2 + 13 E for each block; 2 E for the last norm.

    Args:
        vocabulary: V, number of tokens.
        embed_dim: E.
        num_heads: H.
        num_layers: number of blocks, 0 or more.
        positions: "learned", a table of max_length places that is added to the embeddings; "rotary", in every
            attention, with no last place; None, no positions, so that only the causal mask knows of order.
        max_length: places of the learned table; only for "learned", and needed there.
        norm, hidden, activation, dropout, bias, num_kv_heads, backend: of every `Block`; the embedded tokens are
            dropped out as well.
        tied: whether the read-out uses the embedding's matrix. It never has a bias.
        device, dtype: of the parameters.

    Raises:
        TypeError: a size is not an integer; dropout is not a number.
        ValueError: num_layers below 0, another size below 1; H does not divide E; Hkv does not divide H; another
            positions, norm or activation; "rotary" with an odd E / H; max_length missing for "learned", or given
            without; dropout lies outside [0, 1]; backend is neither a known name nor callable.

    Source: Radford et al. 2019 (GPT-2), section 2.3: pre-norm, last norm, smaller writes to the stream. Tied read-out:
        Press and Wolf 2017.
    """

    def __init__(
        self,
        vocabulary: int,
        embed_dim: int,
        num_heads: int,
        num_layers: int,
        *,
        positions: Positions = "learned",
        max_length: int | None = None,
        norm: Norm = "pre",
        hidden: int | None = None,
        activation: Literal["gelu", "relu"] = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
        num_kv_heads: int | None = None,
        backend: Literal["sdpa", "explicit"] | Callable[..., Tensor] = "sdpa",
        tied: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = check_integer("vocabulary", vocabulary, least=1)
        num_layers = check_integer("num_layers", num_layers)
        check_norm(norm)
        if positions not in ("learned", "rotary", None):
            raise ValueError(f'positions must be "learned", "rotary" or None, got {positions!r}')
        if positions == "learned" and max_length is None:
            raise ValueError('max_length is needed with positions "learned", got None')
        if positions != "learned" and max_length is not None:
            raise ValueError(f'max_length is for positions "learned" alone, got {max_length} with {positions!r}')

        block = partial(
            Block,
            embed_dim,
            num_heads,
            norm=norm,
            hidden=hidden,
            activation=activation,
            dropout=dropout,
            bias=bias,
            num_kv_heads=num_kv_heads,
            backend=backend,
        )
        head_dim = block(device="meta").attention.head_dim  # what a block refuses is refused at depth 0 too
        if positions == "rotary" and head_dim % 2:
            what = f"got {embed_dim} / {num_heads}"
            raise ValueError(f'embed_dim / num_heads must be even with positions "rotary", {what}')
        rotary = Rotary(head_dim) if positions == "rotary" else None
        self.dropout = dropout
        self.embedding = nn.Embedding(self.vocabulary, embed_dim, device=device, dtype=dtype)
        self.positions: nn.Module = nn.Identity()
        if max_length is not None:
            self.positions = Learned(max_length, embed_dim, device=device, dtype=dtype)
        self.blocks = nn.ModuleList(block(rotary=rotary, device=device, dtype=dtype) for _ in range(num_layers))
        self.norm: nn.Module = nn.Identity()
        if norm == "pre":
            self.norm = nn.LayerNorm(embed_dim, bias=bias, device=device, dtype=dtype)
        self.read_out = nn.Linear(embed_dim, self.vocabulary, bias=False, device=device, dtype=dtype)
        self.tied = tied
        self.register_load_state_dict_post_hook(_tie)  # with assign=True each name gets a tensor of its own
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as GPT-2 starts."""
        _tie(self)  # `to_empty` from the meta device gives each name a tensor of its own
        std = STD * math.sqrt(WIDTH / self.embedding.embedding_dim)
        small = std / math.sqrt(2 * max(len(self.blocks), 1))
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" in name:
                nn.init.ones_(parameter)
            else:
                writes = name.endswith(("attention.out_proj.weight", "mlp.down.weight"))
                nn.init.normal_(parameter, std=small if writes else std)

    def forward(
        self,
        tokens: Integer[Tensor, "B T"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        cache: Sequence[KVCache] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the logits of the token that follows each place, from the tokens up to it.

        Args:
            tokens: integers (B, T) from 0 to V - 1.
            mask: bool, True = may attend, besides the causal mask (`masks.padding` for example); broadcasts to
                (B, H, T, T), with a cache to (B, H, T, S).
            cache: one for each block, as `new_cache` makes them: tokens then go on from the length tokens that were
                given before, and are added to them; S = length + T. See `MultiHeadAttention.forward`.

        Returns:
            logits (B, T, V).

        Raises:
            TypeError: tokens is not an integer tensor; mask is not bool; cache is not made of KVCaches, or they have
                another type than the projected keys.
            ValueError: tokens has another number of axes, or holds a number that is not a token; T (or S) is above
                max_length; mask does not broadcast to (B, H, T, T). (At depth 0 nobody reads the mask.) Another number
                of caches than of blocks, one of them twice, or they differ in length; what a cache refuses.
            RuntimeError: a gradient would have to pass through the cache.

        Where a block fails, those before it forget the new tokens as well, unless a ring has dropped others for them.
        """
        tokens = integers("tokens", tokens, "B", "T")
        outside = (tokens < 0) | (tokens >= self.vocabulary)
        refuse(outside, tokens, f"tokens must lie between 0 and {self.vocabulary - 1} (V = {self.vocabulary})")
        past, caches = _aligned(cache, len(self.blocks))
        x = self.embedding(tokens)  # (B, T, E)
        if not isinstance(self.positions, nn.Identity):
            x = self.positions(x, offset=past)
        x = F.dropout(x, self.dropout, self.training)
        try:
            for block, kept in zip(self.blocks, caches, strict=True):
                x = block(x, mask=mask, is_causal=True, cache=kept)
        except BaseException:
            _go_back(caches, past)
            raise
        return self.read_out(self.norm(x))  # (B, T, V)

    def new_cache(self, batch_size: int, max_len: int) -> list[KVCache]:
        """Make an empty cache for each block, with room for max_len tokens, of the parameters' type and device.

        Raises:
            TypeError: a size is not an integer.
            ValueError: batch_size is negative; max_len is below 1.
        """
        weight = self.embedding.weight
        # of each block, since a block may stand twice
        layers = (layer for block in self.blocks for layer in block.modules() if isinstance(layer, MultiHeadAttention))
        make = partial(KVCache, dtype=weight.dtype, device=weight.device)
        return [make(batch_size, layer.num_kv_heads, max_len, layer.head_dim) for layer in layers]

    def extra_repr(self) -> str:
        """The dropout; the rest is said by the parts."""
        return f"dropout={self.dropout}"


def _aligned(cache: Sequence[KVCache] | None, count: int) -> tuple[int, Sequence[KVCache | None]]:
    """How many tokens there were before, and what each block kept of them; raise if they do not fit each other."""
    if cache is None:
        return 0, [None] * count
    if not isinstance(cache, list | tuple) or not all(isinstance(kept, KVCache) for kept in cache):
        raise TypeError(f"cache must be a list of KVCaches, one for each block, got {cache!r}")
    if not count or len(set(map(id, cache))) != count or len(cache) != count:
        raise ValueError(f"cache must have one KVCache for each of {count} blocks (at least 1), got {cache!r}")
    kinds = {(kept.length, kept.k.shape[0], kept.k.dtype) for kept in cache}
    if len(kinds) > 1:
        raise ValueError(f"the caches must be alike in length, batch size and type, got {sorted(kinds, key=str)}")
    return cache[0].length, cache


def _go_back(caches: Sequence[KVCache | None], length: int) -> None:
    """Let all caches hold `length` tokens, if they can."""
    for kept in caches:
        if kept is not None and kept.length > length:
            with suppress(ValueError):  # a ring that dropped some
                kept.crop(length)


def _tie(model: Decoder, _: object = None) -> None:
    """Let the read-out use the embedding's matrix, if it should."""
    if model.tied:
        model.read_out.weight = model.embedding.weight
