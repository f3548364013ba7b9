"""Linformer: R mixtures of all keys instead of S keys."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course import dot_product
from mha_course.linear._inputs import check_call, check_device, refuse
from mha_course.masks._inputs import check_integer


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    key_mix: Float[Tensor, "R S"],
    value_mix: Float[Tensor, "R S"],
) -> Float[Tensor, "B H T Dv"]:
    """Attend to R mixtures of the keys and values: O(T R) scores instead of O(T S).

    out = softmax(scale * q (key_mix k)^T) (value_mix v)

    Each mixture holds all positions, later ones too: there is no causal form and nothing to mask, and
    S is fixed by the shape of the mixtures. How far the output is from the exact one depends on them;
    they are learned. For normal q, k, v of variance 1, S = 256, D = 64, R = 64 it is, relative to the
    exact output's norm, 2.2 with random mixtures as `Linformer` starts with, and 0.73 with
    averages of 4 neighbours; the plain average of all values is 0.80 away. Random mixtures do not
    come close at R = S either, though no information is lost then (1.4).

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, Dv).
        mask, score_bias: must be None; a mixture has no position.
        scale: factor on the scores, 1 / sqrt(D) if None.
        is_causal: must be False.
        dropout_p: probability of dropping a weight, applied whenever it is above 0.
        key_mix: (R, S), what each mixture takes of each key.
        value_mix: (R, S), likewise of each value.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; key_mix or value_mix is not a
            tensor of that type (under autocast: of any floating point type); scale or dropout_p is not a
            number; is_causal is not a bool.
        ValueError: is_causal is True; mask or score_bias given; other than four axes; sizes that do
            not fit each other; key_mix or value_mix is not (R, S) or on another device; scale that is
            not finite; dropout_p outside [0, 1].

    Source: Wang et al. 2020, equation 7: E_i and F_i are key_mix and value_mix, n is S, k is R.
    """
    if is_causal is True:
        raise ValueError("is_causal must be False: a mixture holds later keys too, got True")
    check_call(q, k, v, is_causal)
    refuse("Linformer", mask=mask, score_bias=score_bias)
    for name, x in (("key_mix", key_mix), ("value_mix", value_mix)):
        if not isinstance(x, Tensor) or not (
            x.is_floating_point() if dot_product.autocasts(q.device) else x.dtype == q.dtype
        ):
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{name} must be a tensor of q's type, {q.dtype}, got {got}")
        check_device(name, x, q)
        if x.ndim != 2 or x.shape[1] != k.shape[2]:
            raise ValueError(f"{name} must be (R, S) with S = {k.shape[2]}, got {tuple(x.shape)}")
    if key_mix.shape != value_mix.shape:
        raise ValueError(
            f"key_mix and value_mix must have one R, got {tuple(key_mix.shape)} and {tuple(value_mix.shape)}"
        )
    # autocast may give a product another type than q's, which attention would refuse
    few_k, few_v = ((mix.to(q.dtype) @ x).to(q.dtype) for mix, x in ((key_mix, k), (value_mix, v)))
    return dot_product.attention(q, few_k, few_v, scale=scale, dropout_p=dropout_p).out


class Linformer(nn.Module):
    """`attention` with learned mixtures, a backend: MultiHeadAttention(E, H, backend=Linformer(S, R)).

    Both mixtures start as independent normal numbers of variance 1 / S, so that a mixture of
    independent keys has the variance of a key. One pair serves all heads.

    Args:
        length: S, the number of keys, always the same.
        rank: R, the number of mixtures.
        device, dtype: of the parameters.

    Raises:
        TypeError: length or rank is not an integer.
        ValueError: length or rank is below 1.

    Source: Wang et al. 2020, section 4, "headwise sharing". The proof of their theorem 2 has 1 / R.
    """

    def __init__(
        self,
        length: int,
        rank: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        length, rank = check_integer("length", length, least=1), check_integer("rank", rank, least=1)
        self.key_mix, self.value_mix = (
            nn.Parameter(torch.randn(rank, length, device=device, dtype=dtype) / length**0.5) for _ in range(2)
        )

    def forward(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S Dv"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        score_bias: Float[Tensor, "..."] | None = None,
        scale: float | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
    ) -> Float[Tensor, "B H T Dv"]:
        """Return `attention` with this module's mixtures; arguments and errors are its."""
        return attention(
            q,
            k,
            v,
            mask=mask,
            score_bias=score_bias,
            scale=scale,
            is_causal=is_causal,
            dropout_p=dropout_p,
            key_mix=self.key_mix,
            value_mix=self.value_mix,
        )

    def extra_repr(self) -> str:
        """The sizes."""
        rank, length = self.key_mix.shape
        return f"length={length}, rank={rank}"
