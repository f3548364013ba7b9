"""Experiments of notebook 11: what a fixed state recalls, Performer's error, how far sparse layers reach."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_course.dot_product import attention
from mha_course.linear import delta, performer
from mha_course.masks import causal, dilated, random_links, sliding_window
from mha_course.masks._inputs import check_bool, check_integer

SOFTMAX, SUM, DELTA = "softmax", "sum", "delta rule"
METHODS = (SOFTMAX, SUM, DELTA)
PATTERNS = ("all of the past", "a window", "a dilated window", "window and links")
SHARPNESS = 16.0  # softmax's scale for keys of length 1: e^16 between the key asked for and an orthogonal one


def recall(
    pairs: Sequence[int], *, D: int = 16, classes: int = 16, sequences: int = 200, seed: int = 0
) -> Float[np.ndarray, "pairs 3"]:
    """Measure how many of n values each method gives back when asked with their keys.

    Keys are random directions, values one-hot, one of `classes`. All n pairs are stored, then all n keys
    are asked for; an answer is right if its largest entry is the value's. Softmax keeps all
    pairs (its scale is 16); the sum of k v^T and the delta rule with beta = 1 keep D x classes
    numbers, whatever n.

    Args:
        pairs: numbers n of pairs.
        D: width of the keys.
        classes: number of different values.
        sequences: number of repetitions, each with keys and values of its own.
        seed: of keys and values.

    Returns:
        (pairs, 3), shares of right answers in the order of METHODS.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1.
    """
    D, classes = check_integer("D", D, least=1), check_integer("classes", classes, least=1)
    sequences = check_integer("sequences", sequences, least=1)
    generator = torch.Generator().manual_seed(seed)
    shares = np.empty((len(pairs), len(METHODS)))
    for i, count in enumerate(pairs):
        count = check_integer("pairs", count, least=1)
        k = F.normalize(torch.randn(sequences, 1, count, D, generator=generator), dim=-1)
        values = torch.randint(classes, (sequences, 1, count), generator=generator)
        answers = _answers(k, F.one_hot(values, classes).float(), k)
        shares[i] = [(answer.argmax(-1) == values).double().mean().item() for answer in answers]
    return shares


def overwriting(
    keys: int, *, D: int = 16, orthogonal: bool = True, sequences: int = 200, seed: int = 0
) -> Float[np.ndarray, "3 2"]:
    """Store a value under each key, then another one, and measure how often the new and the old come back.

    Values are one-hot and all different, so the answer's largest entry names the new value, the old one or
    another key's. Softmax and the sum keep both alike and do not know which came last: between equal
    entries the choice is a coin's.

    Args:
        keys: number n of keys, each written twice: all once, then all again.
        D: width of the keys, at least n if orthogonal.
        orthogonal: whether the keys are; random directions if not.
        sequences: number of repetitions.
        seed: of the keys and the coin.

    Returns:
        (3, 2), for each of METHODS the share of answers that are the new value and the old one.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1; more than D orthogonal keys.
    """
    keys, D = check_integer("keys", keys, least=1), check_integer("D", D, least=1)
    sequences = check_integer("sequences", sequences, least=1)
    if orthogonal and keys > D:
        raise ValueError(f"keys must be at most D = {D} if orthogonal, got {keys}")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(sequences, 1, D, max(keys, D), generator=generator)
    k = torch.linalg.qr(drawn).Q.mT[..., :keys, :] if orthogonal else F.normalize(drawn.mT[..., :keys, :], dim=-1)
    v = torch.eye(2 * keys).expand(sequences, 1, -1, -1)  # the first n are old, the others new
    coin = 1e-3 * torch.rand(sequences, 1, keys, 2 * keys, generator=generator)
    named = torch.stack(_answers(torch.cat([k, k], dim=2), v, k)).add(coin).argmax(-1)  # (3, sequences, 1, n)
    own = torch.arange(keys)
    shares = [(named == own + shift).double().mean((1, 2, 3)) for shift in (keys, 0)]
    return torch.stack(shares, dim=1).numpy()


def _answers(k: Tensor, v: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What each of METHODS answers to q after it has read all of k and v, in order."""
    length = k.shape[2]
    reads = torch.arange(length + q.shape[2]) < length  # the queries come last, and write nothing
    all_k, all_v = torch.cat([k, q], dim=2), F.pad(v, (0, 0, 0, q.shape[2]))
    corrected = delta.attention(all_k, all_k, all_v, mask=reads, is_causal=True)[:, :, length:]
    return attention(q, k, v, scale=SHARPNESS).out, q @ (k.mT @ v), corrected


def performer_error(
    features: Sequence[int],
    spread: float,
    *,
    D: int = 16,
    S: int = 64,
    repeats: int = 30,
    orthogonal: bool = True,
    seed: int = 0,
) -> Float[np.ndarray, "features repeats"]:
    """Measure how far Performer's output is from that of exact attention, for normal q, k, v.

    error = |performer - exact| / |exact|, over all T = S rows together

    Args:
        features: numbers M of random features.
        spread: standard deviation of the numbers in q and k; those in v have 1.
        D: width of q, k, v.
        S: number of queries and of keys.
        repeats: number of draws of q, k, v and features. For one seed they are the same q, k, v
            whatever M.
        orthogonal: whether features are orthogonal, D at a time.
        seed: of the draws.

    Returns:
        (features, repeats).

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1.
    """
    problems = _problems(spread, D, S, repeats, seed)
    errors = np.empty((len(features), repeats))
    for r, (q, k, v) in enumerate(problems):
        exact = attention(q, k, v).out
        for i, count in enumerate(features):
            generator = torch.Generator().manual_seed(1_000_000 + 1000 * seed + r)
            drawn = performer.orthogonal_features(count, D, generator=generator)
            if not orthogonal:
                drawn = torch.randn(count, D, generator=generator)
            errors[i, r] = _relative(performer.attention(q, k, v, features=drawn), exact)
    return errors


def uniform_error(
    spread: float, *, D: int = 16, S: int = 64, repeats: int = 30, seed: int = 0
) -> Float[np.ndarray, " repeats"]:
    """Measure the same error of the plain average of all values, which looks at no key: the baseline.

    Args:
        spread, D, S, repeats, seed: as in `performer_error`, for the same q, k, v.

    Returns:
        (repeats,).

    Raises:
        TypeError, ValueError: as `performer_error`.
    """
    problems = _problems(spread, D, S, repeats, seed)
    return np.array([_relative(v.mean(2, keepdim=True), attention(q, k, v).out) for q, k, v in problems])


def _problems(spread: float, D: int, S: int, repeats: int, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    sizes = {"D": D, "S": S, "repeats": repeats}
    for name, n in sizes.items():
        check_integer(name, n, least=1)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(repeats, 3, 1, 1, S, D, generator=generator)
    return [(spread * q, spread * k, v) for q, k, v in drawn]


def _relative(x: Tensor, exact: Tensor) -> float:
    return ((x - exact).norm() / exact.norm()).item()


def reach(masks: Sequence[Bool[Tensor, "T T"]]) -> Bool[np.ndarray, "layers T"]:
    """Find which tokens the last token's output depends on after each layer of a stack.

    reach[l, s] = there is a path from the last token to s through masks l, l - 1, ..., 0

    What passes a layer unchanged through the residual connection counts as well. It says what may
    arrive, not how much does.

    Args:
        masks: one bool (T, T) for each layer, the first layer first.

    Returns:
        (layers, T), True = reached. Row sums are the receptive field in tokens.

    Raises:
        TypeError: a mask is not a bool tensor.
        ValueError: no mask; a mask that is not (T, T), with one T of at least 1.
    """
    if not masks:
        raise ValueError("masks must hold at least one mask, got none")
    for mask in masks:
        check_bool("masks", mask)
        T = masks[0].shape[0]
        if tuple(mask.shape) != (T, T) or T < 1:
            raise ValueError(f"masks must be (T, T) with one T, got {[tuple(x.shape) for x in masks]}")
    depends = torch.eye(len(masks[0]))
    rows = []
    for mask in masks:
        depends = (depends + mask.float() @ depends).clamp(max=1)
        rows.append(depends[-1] > 0)
    return torch.stack(rows).numpy()


def patterns(T: int) -> Bool[Tensor, "4 T T"]:
    """Make one causal mask of each of PATTERNS: about five keys for each token but in the first."""
    generator = torch.Generator().manual_seed(0)
    links = sliding_window(T, 3) | random_links(T, 2, generator=generator)
    return torch.stack([causal(T), sliding_window(T, 5), dilated(T, 5, 3), links])


def gradients(way: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Run a training step's attention: forward, and back to every input."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(way(*leaves).sum(), leaves)
