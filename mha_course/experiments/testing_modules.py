"""Causal self-attention for notebook 09, and ten modules that differ from it by one fault each."""

import math
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.experiments.heads_layout import wrong_merge, wrong_split
from mha_course.experiments.scaling_training import at_least
from mha_course.multihead import MultiHeadAttention

Tokens = Float[Tensor, "B T E"]
Heads = Float[Tensor, "B H T D"]
Square = Float[Tensor, "B H T T"]

RIGHT, NOTHING, DETACHED = "right", "no attention", "scores detached"


class Causal(nn.Module):
    """Multi-head causal self-attention in five steps; a faulty module replaces one of them.

    Its parameters have the names and the start of those of `MultiHeadAttention`. x is (B, T, E), heads are
    (B, H, T, D), scores and weights (B, H, T, T).

    Args:
        embed_dim: E.
        num_heads: H, a divisor of E.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1; H does not divide E.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        at_least("embed_dim", embed_dim, 1)
        at_least("num_heads", num_heads, 1)
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim, got {num_heads} and {embed_dim}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tokens) -> Tokens:
        """Attend from every token to itself and those before it."""
        return self.out_proj(self.merge(self.attend(x)[1]))

    def attend(self, x: Tokens) -> tuple[Square, Heads]:
        """Return the weights and the heads."""
        q, k, v = self.project(x)
        weights = self.weigh(self.score(q, k))
        return weights, weights @ v

    def project(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return q, k and v."""
        return self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))

    def split(self, x: Tokens) -> Heads:
        """Cut into heads."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def score(self, q: Heads, k: Heads) -> Square:
        """Return the scaled scores."""
        return q @ k.mT / math.sqrt(q.shape[-1])

    def weigh(self, scores: Square) -> Square:
        """Mask, then softmax over the keys."""
        return hide(scores).softmax(-1)

    def merge(self, heads: Heads) -> Tokens:
        """Put the heads side by side."""
        return heads.transpose(1, 2).flatten(2)


def hide(scores: Square, ahead: int = 0) -> Square:
    """Put -inf where a key comes more than `ahead` places after its query."""
    later = torch.ones_like(scores, dtype=torch.bool).triu(1 + ahead)
    return scores.masked_fill(later, -math.inf)


class ScaledByWidth(Causal):
    """Scores over sqrt(E) instead of sqrt(D): too small by sqrt(H)."""

    def score(self, q: Heads, k: Heads) -> Square:
        """Return the scores."""
        return q @ k.mT / math.sqrt(self.embed_dim)


class OverQueries(Causal):
    """Softmax over the other axis: what a key gives sums to 1, not what a query takes."""

    def weigh(self, scores: Square) -> Square:
        """Mask, then softmax over the queries."""
        return hide(scores).softmax(-2)


class OverAllHeads(Causal):
    """One softmax over the keys of all heads, which then share a sum of 1."""

    def weigh(self, scores: Square) -> Square:
        """Mask, then softmax over heads and keys."""
        rows = hide(scores).transpose(1, 2)  # (B, T, H, T)
        return rows.flatten(2).softmax(-1).view_as(rows).transpose(1, 2)


class MaskedLate(Causal):
    """The mask after the softmax, whose sum has seen the later keys."""

    def weigh(self, scores: Square) -> Square:
        """Softmax, then mask."""
        return scores.softmax(-1).tril()


class OneAhead(Causal):
    """A mask that starts one place late."""

    def weigh(self, scores: Square) -> Square:
        """Mask from the second later key on, then softmax."""
        return hide(scores, ahead=1).softmax(-1)


class MaskThrownAway(Causal):
    """`hide` returns new scores, which nobody keeps."""

    def weigh(self, scores: Square) -> Square:
        """Softmax of the scores as they were."""
        hide(scores)
        return scores.softmax(-1)


class KeysAsQueries(Causal):
    """Queries from the projection of the keys: q = k."""

    def project(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return k, k and v."""
        return self.split(self.k_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))


class KeysValuesSwapped(Causal):
    """Keys from the projection of the values and values from that of the keys."""

    def project(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return q, v and k."""
        return self.split(self.q_proj(x)), self.split(self.v_proj(x)), self.split(self.k_proj(x))


class WrongSplit(Causal):
    """Heads cut by a reshape alone, see `heads_layout.wrong_split`."""

    def split(self, x: Tokens) -> Heads:
        """Cut into what has the shape of heads."""
        return wrong_split(x, self.num_heads)


class WrongMerge(Causal):
    """Heads merged by a reshape alone, see `heads_layout.wrong_merge`."""

    def merge(self, heads: Heads) -> Tokens:
        """Bring into the shape of the input."""
        return wrong_merge(heads)


class NoAttention(Causal):
    """The same vector at every place, whatever x is: what the rest of a model can do alone."""

    def forward(self, x: Tokens) -> Tokens:
        """Return the bias of out_proj."""
        return self.out_proj(torch.zeros_like(x))


class ScoresDetached(Causal):
    """Scores without a graph: every number is right, no gradient reaches queries and keys."""

    def score(self, q: Heads, k: Heads) -> Square:
        """Return the scaled scores, cut off."""
        return super().score(q, k).detach()


FAULTY: Mapping[str, type[Causal]] = {
    "scaled by sqrt(E)": ScaledByWidth,
    "keys, values swapped": KeysValuesSwapped,
    "keys as queries": KeysAsQueries,
    "softmax over queries": OverQueries,
    "softmax over all heads": OverAllHeads,
    "mask after softmax": MaskedLate,
    "sees one ahead": OneAhead,
    "mask thrown away": MaskThrownAway,
    "wrong split": WrongSplit,
    "wrong merge": WrongMerge,
}
MODULES: Mapping[str, type[Causal]] = {RIGHT: Causal, **FAULTY, NOTHING: NoAttention, DETACHED: ScoresDetached}


def make(name: str, embed_dim: int, num_heads: int) -> Causal:
    """Make a module by its name in MODULES; another name is a ValueError, sizes as for `Causal`."""
    if name not in MODULES:
        raise ValueError(f"name must be one of {tuple(MODULES)}, got {name!r}")
    return MODULES[name](embed_dim, num_heads)


def patients(
    names: Iterable[str] = (RIGHT, *FAULTY),
    *,
    embed_dim: int = 8,
    num_heads: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Causal]:
    """Make modules that all have the same weights, in evaluation mode.

    Biases are drawn too, N(0, 1/4): where they are 0, as at the start of a training, a fault in one does not show.

    Args:
        names: which of MODULES.
        embed_dim, num_heads: E and H.
        seed: of the weights, drawn in float32.
        dtype: of the weights.

    Returns:
        A module by each name.

    Raises:
        TypeError: a size is not an integer.
        ValueError: another name; a size below 1; H does not divide E.
    """
    with torch.random.fork_rng(devices=[]):
        made = {name: make(name, embed_dim, num_heads) for name in names}
        torch.default_generator.manual_seed(seed)
        state = Causal(embed_dim, num_heads).state_dict()
        for name, x in state.items():
            if name.endswith("bias"):
                x.normal_(std=0.5)
    for module in made.values():
        module.load_state_dict(state)
    return {name: module.to(dtype).eval() for name, module in made.items()}


def reference(module: Causal) -> MultiHeadAttention:
    """Make a `MultiHeadAttention` with copies of the weights, to be called with is_causal=True."""
    ours = MultiHeadAttention(module.embed_dim, module.num_heads, device="meta")
    ours.load_state_dict({name: x.clone() for name, x in module.state_dict().items()}, assign=True)
    return ours.eval()
