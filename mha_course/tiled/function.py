"""`attention` in tiles for PyTorch's autograd: what is kept between the passes, and what is not supported."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad

from mha_course.dot_product import check_call, without_autocast
from mha_course.masks._inputs import check_integer
from mha_course.tiled.backward import backward
from mha_course.tiled.forward import forward
from mha_course.tiled.tiles import Plan

NO_SECOND = "tiled.attention has no second derivatives: use mha_course.attention, which has"


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    block_q: int = 256,
    block_k: int = 256,
) -> Float[Tensor, "B H T Dv"]:
    """Compute what `mha_course.attention` computes, a tile of the scores at a time.

    out = softmax(scale * q k^T + score_bias, -inf where mask is False) v

    No tensor of T x S numbers is held, forwards or backwards: memory grows with T + S. Kept for the backward
    pass, which computes the weights again, are the inputs, out and two numbers a row. Query head h
    reads head h // (H / Hkv) of k and v, which are not repeated. Sums are kept in float32 where q is
    float16 or bfloat16; under autocast q, k and v are first cast to its type. With is_causal, tiles
    in the future are skipped.

    A row that may attend to nothing gets output 0 and gradient 0. Finite values in hidden keys and
    values never reach the output. NaN or infinity behind a mask goes where it goes in
    `mha_course.attention`, except from tiles that are skipped: from there it goes nowhere.

    Dropout draws one number from PyTorch's global CPU generator; which weights it drops depends on
    that number, the sizes, block_q, block_k and the device.

    It has no second derivatives and no forward mode. Under torch.vmap it runs once for each sample, with
    dropout for randomness="same" alone. torch.compile unrolls the loops over the tiles, into one graph
    unless there is dropout.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, Hkv, S, D); Hkv divides H.
        v: values (B, Hkv, S, Dv); Dv need not equal D.
        mask: bool, True = may attend, broadcasts to (B, H, T, S).
        score_bias: added to the scaled scores, broadcasts to (B, H, T, S); its gradient is summed to its shape.
        scale: factor on q k^T, 1 / sqrt(D) if None.
        is_causal: query t may attend to keys 0 to t only, and where mask lets it too. T = S.
        dropout_p: probability of dropping a weight, in [0, 1].
        block_q, block_k: rows and columns of a tile, at least 1.

    Returns:
        out (B, H, T, Dv) in the type of q.

    Raises:
        TypeError: q, k, v are not floating point tensors of one type; mask is not bool;
            score_bias is not floating point; scale or dropout_p is not a number; is_causal is not a
            bool; block_q or block_k is not an integer.
        ValueError: q, k or v without four axes; D = 0; q and k of different width; k and v of
            different length or number of heads; different B; Hkv that does not divide H; tensors on
            different devices; mask or score_bias that does not broadcast to (B, H, T, S); scale
            that is not finite; is_causal with T != S; dropout_p outside [0, 1]; block_q or block_k below 1.
        NotImplementedError: a second derivative or a forward-mode derivative is asked for, by
            torch.func.hessian in PyTorch's words; dropout under torch.vmap with randomness="different".

    Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2: Br is block_q, Bc is block_k.
    """
    check_call(q, k, v, mask, score_bias, scale, is_causal, dropout_p)
    refuse_forward_mode(q, k, v, score_bias)
    block_q, block_k = (check_integer(name, n, 1) for name, n in (("block_q", block_q), ("block_k", block_k)))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    seed = draw_seed() if dropout_p > 0 else 0
    plan = Plan(scale, is_causal, dropout_p, seed, block_q, block_k)
    q, k, v = (autocast(x) for x in (q, k, v))
    mask, score_bias = (x if x is None else x[(None,) * (4 - x.ndim)] for x in (mask, score_bias))
    return Tiled.apply(q, k, v, mask, score_bias, plan)[0]


def refuse_forward_mode(*tensors: Tensor | None) -> None:
    """Raise if a tensor carries a forward-mode tangent, in clearer words than PyTorch's.

    A jvp method of the autograd.Function could do it too, but torch.compile does not take such a one.
    """
    if torch.compiler.is_compiling():
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("tiled.attention has no forward mode (jvp): use mha_course.attention, which has")


def autocast(x: Tensor) -> Tensor:
    """Cast as autocast casts the inputs of F.scaled_dot_product_attention; outside of it, return x."""
    device = x.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return x.to(torch.get_autocast_dtype(device)) if on and x.dtype != torch.float64 else x


def draw_seed() -> int:
    """One number of PyTorch's global CPU generator, whatever the default device."""
    seed = torch.randint(2**62, (), device="cpu")
    try:
        return int(seed)
    except RuntimeError as error:
        raise NotImplementedError(
            'tiled.attention draws one number for all samples of a vmap: pass randomness="same" to vmap'
        ) from error


class Tiled(torch.autograd.Function):
    """The two passes as one differentiable function."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, score_bias: Tensor | None, plan: Plan) -> Any:
        """Out, and the maximum and total of each row."""
        with without_autocast(q.device):
            return forward(q, k, v, mask, score_bias, plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs as given and the outputs."""
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*output, *tensors)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        """The gradients of those inputs that need one."""
        return *Gradients.apply(dout, *ctx.saved_tensors, ctx.plan, ctx.needs_input_grad), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """One call for each sample."""
        return each_sample(Tiled, info.batch_size, in_dims, args)


class Gradients(torch.autograd.Function):
    """The backward pass, a function of its own so that a second derivative can be refused in clear words."""

    @staticmethod
    def forward(
        dout: Tensor,
        out: Tensor,
        maximum: Tensor,
        total: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        score_bias: Tensor | None,
        plan: Plan,
        needed: tuple[bool, ...],
    ) -> Any:
        """The gradients of q, k, v, mask (None) and score_bias."""
        need_q, need_k, need_v, _, need_bias, _ = needed
        needs = (need_q, need_k, need_v, need_bias)
        with without_autocast(dout.device):
            dq, dk, dv, dbias = backward(dout, out, maximum, total, q, k, v, mask, score_bias, plan, needs)
        return dq, dk, dv, None, dbias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Refuse."""
        raise NotImplementedError(NO_SECOND)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """One call for each sample."""
        return each_sample(Gradients, info.batch_size, in_dims, args)


def each_sample(function: Any, n: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> Any:
    """Apply a function n times and stack the results: the loops over tiles know no further axis.

    Without samples, one of zeros tells the shapes.
    """

    def one(x: Any, dim: int | None, i: int) -> Any:
        if not isinstance(dim, int):
            return x
        return x.select(dim, i) if n else x.new_zeros(x.movedim(dim, 0).shape[1:])

    def sample(i: int) -> Any:
        return function.apply(*(one(x, dim, i) for x, dim in zip(args, in_dims, strict=True)))

    samples = map(sample, range(max(n, 1)))
    outs = [None if xs[0] is None else torch.stack(xs)[:n] for xs in zip(*samples, strict=True)]
    return tuple(outs), tuple(None if x is None else 0 for x in outs)
