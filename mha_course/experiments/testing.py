"""Experiments of notebook 09: which test of attention finds which fault, and what gradients tell."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from mha_course.experiments.scaling_training import at_least
from mha_course.experiments.testing_modules import DETACHED, FAULTY, NOTHING, RIGHT, Causal, patients, reference
from mha_course.experiments.testing_numbers import drop, matmul_and_bmm, refused, rounding
from mha_course.experiments.testing_training import Trained, copy_two_back, most_copied, overfit, train_all
from mha_course.masks import causal, padding, to_blocked
from mha_course.multihead import MultiHeadAttention
from mha_course.positions import Rotary

__all__ = [
    "DETACHED",
    "FAULTY",
    "LOSSES",
    "NOTHING",
    "RIGHT",
    "Equality",
    "Gap",
    "Trained",
    "WithNorm",
    "copy_two_back",
    "drop",
    "equality",
    "gap",
    "gradcheck",
    "gradients",
    "key_bias",
    "looks_fine",
    "matmul_and_bmm",
    "most_copied",
    "overfit",
    "patients",
    "reach",
    "reference",
    "refused",
    "rotary_and_not",
    "rounding",
    "train_all",
]

LOSSES = ("sum", "sum of squares", "random weights")


class Gap(NamedTuple):
    """How far a module is from `MultiHeadAttention` with the same weights; 0: no difference, NaN: its numbers are.

    Attributes:
        out: largest difference of an output.
        gradient: largest difference of a gradient of the parameters or of x.
    """

    out: float
    gradient: float


def gap(module: Causal, x: Float[Tensor, "B T E"], *, seed: int = 0) -> Gap:
    """Compare outputs and gradients with those of `testing_modules.reference`.

    loss = sum of r out, r ~ N(0, 1), in which no gradient cancels, as one may in out.sum().

    Args:
        module: one of `testing_modules.patients`.
        x: (B, T, E).
        seed: of r.

    Returns:
        Gap(out, gradient).
    """
    results = []
    for model, options in ((module, {}), (reference(module), {"is_causal": True})):
        leaf = x.clone().requires_grad_()
        out = model(leaf, **options)
        r = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
        named = dict(model.named_parameters())
        inputs = [named[name] for name in sorted(named)] + [leaf]
        found = torch.autograd.grad((r * out).sum(), inputs, allow_unused=True, materialize_grads=True)
        results.append((out.detach(), torch.cat([g.flatten() for g in found])))
    (out, gradient), (true_out, true_gradient) = results
    return Gap((out - true_out).abs().max().item(), (gradient - true_gradient).abs().max().item())


def looks_fine(module: nn.Module, x: Float[Tensor, "B T E"]) -> bool:
    """Run the test that many repositories have: the output is of the shape of x, and finite."""
    with torch.no_grad():
        out = module(x)
    return out.shape == x.shape and bool(out.isfinite().all())


def key_bias(module: nn.Module, x: Float[Tensor, "B T E"], *, seed: int = 0, **options: Any) -> float:
    """Measure the gradient of k_proj.bias, over that of q_proj.bias or v_proj.bias, whichever is larger.

    With keys k_s + c instead of k_s every score of query t grows by q_t . c / sqrt(D), whichever key it is of, and
    the softmax over the keys does not see what is added to all of them. So the gradient is 0 but for rounding, unless
    the keys are turned by position after the bias, or the softmax is over something else, or k is used elsewhere.

    Args:
        module: with q_proj, k_proj and v_proj that have biases.
        x: (B, T, E).
        seed: of r in the loss, the sum of r out.
        options: of the module's forward.

    Returns:
        Largest entry over the largest entry, no sign; NaN if no bias has a gradient.
    """
    found = gradients(module, x, seed=seed, **options)
    return found["k_proj.bias"] / (max(found["q_proj.bias"], found["v_proj.bias"]) or math.nan)


def gradients(
    module: nn.Module, x: Float[Tensor, "B T E"], *, loss: str = LOSSES[2], seed: int = 0, **options: Any
) -> dict[str, float]:
    """Measure the largest entry, without its sign, of the gradient of every parameter.

    Args:
        module: takes x.
        x: what it is given.
        loss: one of LOSSES: of out, of out^2, or of r out with r ~ N(0, 1).
        seed: of r.
        options: of the module's forward.

    Returns:
        By the name of the parameter; 0 where the loss does not depend on it.

    Raises:
        ValueError: another loss.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {LOSSES}, got {loss!r}")
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    out = module(x, **options)
    if loss == "random weights":
        r = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
        value = (r * out).sum()
    else:
        value = out.sum() if loss == "sum" else out.square().sum()
    found = torch.autograd.grad(value, list(named.values()), allow_unused=True, materialize_grads=True)
    return {name: g.abs().max().item() for name, g in zip(named, found, strict=True)}


class WithNorm(nn.Module):
    """An attention whose output goes through a LayerNorm, as in every post-norm block."""

    def __init__(self, attention: nn.Module, embed_dim: int) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        """Attend, then normalise."""
        return self.norm(self.attention(x))


def reach(
    module: nn.Module, x: Float[Tensor, "B T E"], sample: int, token: int, **options: Any
) -> Float[np.ndarray, "B T"]:
    """Measure the gradient of out[sample, token].sum() in every token of every sample.

    Args:
        module: takes x.
        x: (B, T, E).
        sample, token: whose output is summed.
        options: of the module's forward.

    Returns:
        (B, T), the largest entry of a token's gradient, without its sign.
    """
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(module(leaf, **options)[sample, token].sum(), leaf)
    return found.abs().amax(-1).numpy()


def gradcheck(module: nn.Module, x: Float[Tensor, "B T E"], **options: Any) -> bool:
    """Compare the gradients of x and of all parameters with differences of outputs.

    `torch.autograd.gradcheck` moves every number by 1e-6 up and down. It tells whether backward belongs to forward,
    not whether forward is right.

    Args:
        module: float64 parameters, frozen or not.
        x: (B, T, E), float64.
        options: of the module's forward.

    Returns:
        Whether they agree within gradcheck's tolerance.
    """
    names, values = zip(*module.named_parameters(), strict=True)
    leaves = [p.detach().clone().requires_grad_() for p in values]

    def out(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, parameters, strict=True)), (x,), options)

    return torch.autograd.gradcheck(out, (x.clone().requires_grad_(), *leaves), raise_exception=False)


def rotary_and_not(*, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """Measure `key_bias` of a causal `MultiHeadAttention` (E = 32, H = 4) without rotary positions, and with them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 12, 32, generator=generator, dtype=dtype)
    found = []
    for rotary in (None, Rotary(8)):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = MultiHeadAttention(32, 4, rotary=rotary, dtype=dtype)
        found.append(key_bias(module, x, seed=seed, is_causal=True))
    return found[0], found[1]


class Equality(NamedTuple):
    """Largest difference between our module and nn.MultiheadAttention, one a seed; x ~ N(0, 1).

    Attributes:
        copied: weights copied, masks converted, dropout off.
        mask_kept: the causal mask given to PyTorch without conversion, over the rows that are not NaN.
        nan_rows: number of output rows that are NaN then.
        dropout_on: both modules in training mode with dropout .1.
        own_weights: each with its own start, from one seed.
    """

    copied: Float[np.ndarray, " seeds"]
    mask_kept: Float[np.ndarray, " seeds"]
    nan_rows: Float[np.ndarray, " seeds"]
    dropout_on: Float[np.ndarray, " seeds"]
    own_weights: Float[np.ndarray, " seeds"]


def equality(*, seeds: int = 8, dtype: torch.dtype = torch.float32) -> Equality:
    """Compare `MultiHeadAttention.from_torch` with its origin, and what happens if one step is left out.

    B = 2, T = 12, E = 32, H = 4, x ~ N(0, 1), causal and with 12 and 9 tokens: padding hides the last three of the
    second sample.

    Args:
        seeds: how many pairs of modules and inputs.
        dtype: of both.

    Returns:
        Equality, (seeds,) each.

    Raises:
        TypeError: seeds is not an integer.
        ValueError: seeds below 1.
    """
    at_least("seeds", seeds, 1)
    return Equality(*np.array([_compare(seed, dtype) for seed in range(seeds)]).T)


def _compare(seed: int, dtype: torch.dtype) -> list[float]:
    may, keep = causal(12), padding(torch.tensor([12, 9]), 12)  # (T, T), (B, 1, 1, T)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        theirs = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True, dtype=dtype)
        theirs.in_proj_bias.normal_(std=0.1)
        theirs.out_proj.bias.normal_(std=0.1)
        x = torch.randn(2, 12, 32, dtype=dtype)
        torch.default_generator.manual_seed(seed)
        own = MultiHeadAttention(32, 4, dtype=dtype)
        ours = MultiHeadAttention.from_torch(theirs)
        masks = {"attn_mask": to_blocked(may), "key_padding_mask": to_blocked(keep[:, 0, 0])}
        dropped = ours(x, mask=may & keep) - theirs(x, x, x, **masks, need_weights=False)[0]
        theirs.eval()
        ours.eval()
        out = theirs(x, x, x, **masks, need_weights=False)[0]
        right = ours(x, mask=may & keep)
        kept = theirs(x, x, x, attn_mask=may, need_weights=False)[0] - ours(x, mask=may)
        other = own(x, mask=may & keep) - out
    nan = kept.isnan().any(-1)
    sizes = [right - out, kept[~nan], dropped, other]
    copied, mask_kept, dropout_on, own_weights = (d.abs().max().item() for d in sizes)
    return [copied, mask_kept, nan.sum().item(), dropout_on, own_weights]
