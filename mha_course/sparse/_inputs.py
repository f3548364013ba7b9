"""What the attentions here ask of their arguments; the same for all of them."""

from jaxtyping import Bool, Float
from torch import Tensor

from mha_course import dot_product


def check_call(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    mask: Bool[Tensor, "..."] | None,
    score_bias: Float[Tensor, "..."] | None,
    scale: float | None,
    is_causal: bool,
    dropout_p: float,
) -> tuple[Float[Tensor, "B H S D"], Float[Tensor, "B H S Dv"]]:
    """Raise for what is wrong; return k and v with one head for each of q's."""
    dot_product.check_call(q, k, v, mask, score_bias, scale, is_causal, dropout_p)
    groups = q.shape[1] // max(k.shape[1], 1)
    if groups > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))  # (B, H, S, D)
    return k, v
