"""A small decoder: embedded tokens, a stack of blocks and a read-out, as in GPT-2."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.block import Block, Norm, check_norm
from mha_course.masks._inputs import check_integer, integers, refuse
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
        self, tokens: Integer[Tensor, "B T"], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Return the logits of the token that follows each place, from the tokens up to it.

        Args:
            tokens: integers (B, T) from 0 to V - 1.
            mask: bool, True = may attend, besides the causal mask (`masks.padding` for example); broadcasts to
                (B, H, T, T).

        Returns:
            logits (B, T, V).

        Raises:
            TypeError: tokens is not an integer tensor; mask is not bool.
            ValueError: tokens has another number of axes, or holds a number that is not a token; T is above max_length;
                mask does not broadcast to (B, H, T, T). (At depth 0 nobody reads the mask.)
        """
        tokens = integers("tokens", tokens, "B", "T")
        outside = (tokens < 0) | (tokens >= self.vocabulary)
        refuse(outside, tokens, f"tokens must lie between 0 and {self.vocabulary - 1} (V = {self.vocabulary})")
        x = F.dropout(self.positions(self.embedding(tokens)), self.dropout, self.training)  # (B, T, E)
        for block in self.blocks:
            x = block(x, mask=mask, is_causal=True)
        return self.read_out(self.norm(x))  # (B, T, V)

    def extra_repr(self) -> str:
        """The dropout; the rest is said by the parts."""
        return f"dropout={self.dropout}"


def _tie(model: Decoder, _: object = None) -> None:
    """Let the read-out use the embedding's matrix, if it should."""
    if model.tied:
        model.read_out.weight = model.embedding.weight
