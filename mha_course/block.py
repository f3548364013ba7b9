"""The block of a transformer: attention and an MLP that each add to a residual stream, normalised before or after."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.cache import KVCache
from mha_course.masks._inputs import check_integer
from mha_course.multihead import MultiHeadAttention
from mha_course.multihead._inputs import check_input, size

Norm = Literal["pre", "post"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


class MLP(nn.Module):
    """Change every token by itself: out = down(activation(up(x))).

    The weights start as nn.Linear draws them.

    Args:
        embed_dim: E, width of x and out.
        hidden: width between up and down.
        activation: "gelu" (the exact one) or "relu".
        bias: whether up and down have one.
        device, dtype: of the parameters.

    Raises:
        TypeError: embed_dim or hidden is not an integer.
        ValueError: embed_dim or hidden is below 1; another activation.

    Source: Vaswani et al. 2017, section 3.3: E is d_model, hidden is d_ff. GELU: Hendrycks and Gimpel 2016.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden: int,
        *,
        activation: Literal["gelu", "relu"] = "gelu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim = check_integer("embed_dim", embed_dim, least=1)
        hidden = check_integer("hidden", hidden, least=1)
        if activation not in tuple(ACTIVATIONS):  # a list has no hash
            raise ValueError(f'activation must be "gelu" or "relu", got {activation!r}')
        self.activation = activation
        linear = partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        self.up, self.down = linear(embed_dim, hidden), linear(hidden, embed_dim)

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        """Return what is to be added to x (B, T, E)."""
        return self.down(ACTIVATIONS[self.activation](self.up(x)))

    def extra_repr(self) -> str:
        """The activation."""
        return f"activation={self.activation!r}"


class Block(nn.Module):
    """Let tokens exchange by attention, then change each by itself, and add both to the residual stream.

    norm="pre":   x = x + attention(attention_norm(x));   out = x + mlp(mlp_norm(x))
    norm="post":  x = attention_norm(x + attention(x));   out = mlp_norm(x + mlp(x))

    In a stack of pre-norm blocks the stream itself is never normalised: each block adds to it, and its end needs a
    norm of its own (`models.Decoder` has one). A post-norm block normalises the sum, and so the skip as well.

    The weights start as `MultiHeadAttention` and `MLP` draw theirs, a norm with weight 1 and bias 0.

    Args:
        embed_dim: E, width of the stream.
        num_heads: H.
        norm: "pre" or "post".
        hidden: width of the MLP's hidden layer; 4 E if None.
        activation: "gelu" or "relu".
        dropout: probability of dropping an attention weight, and an entry of what either half adds to the stream, in
            training mode only. With 1 nothing is ever added in training: a pre-norm block then returns x.
        bias: whether the linear maps and the norms have one.
        num_kv_heads, backend, rotary: see `MultiHeadAttention`.
        device, dtype: of the parameters.

    Raises:
        TypeError: a size is not an integer; dropout is not a number; rotary cannot be called.
        ValueError: another norm or activation; a size below 1; H does not divide E; Hkv does not divide H; dropout lies
            outside [0, 1]; backend is neither a known name nor callable.

    Source: post-norm: Vaswani et al. 2017, section 3.1, LayerNorm(x + Sublayer(x)). Pre-norm: Xiong et al. 2020,
        "On layer normalization in the transformer architecture", table 1. `nn.TransformerEncoderLayer` computes the
        same (norm_first=True is "pre") but for one more dropout, behind its activation.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        norm: Norm = "pre",
        hidden: int | None = None,
        activation: Literal["gelu", "relu"] = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
        num_kv_heads: int | None = None,
        backend: Literal["sdpa", "explicit"] | Callable[..., Tensor] = "sdpa",
        rotary: Callable[..., Tensor] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_norm(norm)
        self.attention = MultiHeadAttention(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            dropout=dropout,
            backend=backend,
            rotary=rotary,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        embed_dim = self.attention.embed_dim
        self.mlp = MLP(
            embed_dim,
            size("hidden", hidden, 4 * embed_dim),
            activation=activation,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.attention_norm = nn.LayerNorm(embed_dim, bias=bias, device=device, dtype=dtype)
        self.mlp_norm = nn.LayerNorm(embed_dim, bias=bias, device=device, dtype=dtype)
        self.norm, self.dropout = norm, dropout

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        score_bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Pass the stream through the block.

        Args:
            x: (B, T, E).
            mask: bool, True = may attend, broadcasts to (B, H, T, T); two axes mean (T, T).
            score_bias: added to the scaled scores, broadcasts to (B, H, T, T).
            is_causal: token t may attend to tokens 0 to t only, and where mask lets it too.
            cache: see `MultiHeadAttention.forward`; with it mask and score_bias are for T queries and S keys.

        Returns:
            out (B, T, E).

        Raises:
            TypeError: x is not a floating point tensor, or not of the type of the parameters (outside autocast); what
                `MultiHeadAttention.forward` raises of mask, score_bias, is_causal, cache and backend.
            ValueError: x has another number of axes or another width; likewise.
            RuntimeError: a gradient would have to pass through the cache.
        """
        check_input("x", x, "T", "E", self.attention.embed_dim, self.attention.q_proj)
        attend = partial(self.attention, mask=mask, score_bias=score_bias, is_causal=is_causal, cache=cache)
        if self.norm == "pre":
            x = x + self._drop(attend(self.attention_norm(x)))
            return x + self._drop(self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x + self._drop(attend(x)))
        return self.mlp_norm(x + self._drop(self.mlp(x)))

    def extra_repr(self) -> str:
        """Where the norms stand, and the dropout."""
        return f"norm={self.norm!r}, dropout={self.dropout}"

    def _drop(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        return F.dropout(x, self.dropout, self.training)


def check_norm(norm: str) -> None:
    """Raise unless norm is "pre" or "post"."""
    if norm not in ("pre", "post"):
        raise ValueError(f'norm must be "pre" or "post", got {norm!r}')
