"""Data sets that are drawn, not downloaded."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

NO_ANSWER = -100  # as a target: what F.cross_entropy leaves out by default


class Retrieval(NamedTuple):
    """A batch of `retrieval`; as (*inputs, target) it is a batch for `training.fit`.

    Attributes:
        query: (B, 1, width), the question.
        key: (B, S, width), one of which the question asks for.
        value: (B, S, classes), the class of each key, one-hot.
        target: (B,), the class of the key that is asked for, 0 to classes - 1.
    """

    query: Float[Tensor, "B 1 width"]
    key: Float[Tensor, "B S width"]
    value: Float[Tensor, "B S classes"]
    target: Int[Tensor, " B"]


class Sequences(NamedTuple):
    """A batch of `copy_back` or `latest_marked`; as (*inputs, target) it is a batch for `training.fit`.

    Attributes:
        tokens: (B, T), 0 to vocabulary - 1.
        target: (B, T), the token to name at each place, NO_ANSWER where there is none.
    """

    tokens: Int[Tensor, "B T"]
    target: Int[Tensor, "B T"]


def retrieval(
    batch: int,
    keys: int,
    *,
    width: int = 32,
    classes: int = 16,
    noise: float = 0.3,
    rotation: Float[Tensor, "width width"] | None = None,
    generator: torch.Generator,
) -> Retrieval:
    """Draw questions that only the right key answers: find the key that the query was made from, name its class.

    key_s ~ N(0, I)
    query = R key_p + noise * e,   e ~ N(0, I),   p uniform over the S places
    value_s = one-hot of a class drawn uniformly, target = class of value_p

    The rotation R is the same in every sequence; a model with q = x W_q has to learn W_q W_k^T = R, up to a factor.
    Two keys may have one class.

    Args:
        batch: sequences B.
        keys: keys S of a sequence.
        width: width of query and keys.
        classes: number of classes.
        noise: standard deviation of what is added to an entry of the query.
        rotation: R (width, width); `random_rotation(width)` if None.
        generator: source of all that is drawn.

    Returns:
        Retrieval(query, key, value, target).

    Raises:
        TypeError: a size is not an integer; noise is not a number; rotation is not a float32 tensor;
            generator is not a torch.Generator.
        ValueError: a size below 1; noise below 0 or not finite; rotation of another shape.
    """
    for name, size in (("batch", batch), ("keys", keys), ("width", width), ("classes", classes)):
        _check_size(name, size)
    if isinstance(noise, bool) or not isinstance(noise, int | float):
        raise TypeError(f"noise must be a number, got {type(noise).__name__}")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be finite and at least 0, got {noise}")
    if rotation is not None and not isinstance(rotation, Tensor):
        raise TypeError(f"rotation must be a tensor, got {type(rotation).__name__}")
    R = random_rotation(width) if rotation is None else rotation
    if R.dtype != torch.float32:
        raise TypeError(f"rotation must be float32, got {R.dtype}")
    if R.shape != (width, width):
        raise ValueError(f"rotation must have shape {(width, width)}, got {tuple(R.shape)}")
    _check_generator(generator)
    key = torch.randn(batch, keys, width, generator=generator, dtype=torch.float32)
    place = torch.randint(keys, (batch,), generator=generator)
    label = torch.randint(classes, (batch, keys), generator=generator)
    rows = torch.arange(batch)
    query = key[rows, place] @ R.T + noise * torch.randn(batch, width, generator=generator, dtype=torch.float32)
    return Retrieval(query[:, None], key, F.one_hot(label, classes).to(key.dtype), label[rows, place])


def copy_back(batch: int, length: int, *, back: int = 2, vocabulary: int = 16, generator: torch.Generator) -> Sequences:
    """Draw tokens, all independent and uniform, and ask at each place for the one that stood `back` places earlier.

    target_t = token_(t - back); the first `back` places have no answer.

    Where the answer stands depends on the place alone; no token says anything about it. A guess is right in one of
    `vocabulary` cases.

    Args:
        batch: sequences B.
        length: tokens T of a sequence.
        back: how far back the answer stands, at least 0.
        vocabulary: number of different tokens.
        generator: source of all that is drawn.

    Returns:
        Sequences(tokens, target).

    Raises:
        TypeError: a size or back is not an integer; generator is not a torch.Generator.
        ValueError: a size below 1; back below 0.
    """
    for name, size in (("batch", batch), ("length", length), ("vocabulary", vocabulary)):
        _check_size(name, size)
    _check_size("back", back, least=0)
    _check_generator(generator)
    tokens = torch.randint(vocabulary, (batch, length), generator=generator)
    target = torch.full_like(tokens, NO_ANSWER)
    target[:, back:] = tokens[:, : max(length - back, 0)]
    return Sequences(tokens, target)


def latest_marked(
    batch: int, length: int, *, vocabulary: int = 16, share: float = 0.125, generator: torch.Generator
) -> Sequences:
    """Draw tokens, some of them marked, and ask at each place for the value of the latest marked one.

    token_t = value_t + marked_t * vocabulary / 2,   value_t uniform over 0 ... vocabulary / 2 - 1
    target_t = value_s for the last s <= t with marked_s; there is no answer before the first marked token

    A token shows its mark and its value. The answer stands at no fixed distance: d places back with probability
    share * (1 - share)^d, wherever in the sequence. Who sees the mark but not the order can only guess among all
    marked tokens so far.

    Args:
        batch: sequences B.
        length: tokens T of a sequence.
        vocabulary: number of different tokens, even: each value without the mark and with it.
        share: probability that a token is marked, in (0, 1].
        generator: source of all that is drawn.

    Returns:
        Sequences(tokens, target).

    Raises:
        TypeError: a size is not an integer; share is not a number; generator is not a torch.Generator.
        ValueError: a size below 1; vocabulary is odd; share outside (0, 1].
    """
    for name, size in (("batch", batch), ("length", length), ("vocabulary", vocabulary)):
        _check_size(name, size)
    if vocabulary % 2:
        raise ValueError(f"vocabulary must be even, each value without the mark and with it, got {vocabulary}")
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise TypeError(f"share must be a number, got {type(share).__name__}")
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}")
    _check_generator(generator)
    value = torch.randint(vocabulary // 2, (batch, length), generator=generator)
    marked = torch.rand(batch, length, generator=generator, dtype=torch.float64) < share
    latest = torch.where(marked, torch.arange(length), -1).cummax(1).values  # (B, T), -1 before the first
    target = value.gather(1, latest.clamp(min=0)).masked_fill(latest < 0, NO_ANSWER)
    return Sequences(value + marked * (vocabulary // 2), target)


def random_rotation(width: int, seed: int = 0) -> Float[Tensor, "width width"]:
    """Draw a rotation, uniform over all of them: Q R = G Gaussian, the signs of R's diagonal and of det Q put in.

    Args:
        width: rows and columns.
        seed: which one.

    Returns:
        (width, width), R R^T = I and det R = 1, float32.

    Raises:
        TypeError: width is not an integer.
        ValueError: width below 1.

    Source: Mezzadri 2007, "How to generate random matrices from the classical compact groups".
    """
    _check_size("width", width)
    gaussian = torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).double()
    Q, R = torch.linalg.qr(gaussian)
    Q = Q * R.diagonal().sign()
    Q[:, 0] *= Q.det().sign()
    return Q.float()


def _check_size(name: str, size: int, least: int = 1) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name} must be an integer, got {type(size).__name__}")
    if size < least:
        raise ValueError(f"{name} must be at least {least}, got {size}")


def _check_generator(generator: torch.Generator) -> None:
    if not isinstance(generator, torch.Generator):  # None would draw from the global one
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
