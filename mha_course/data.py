"""Data sets that are drawn, not downloaded."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


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
    if not isinstance(generator, torch.Generator):  # None would draw from the global one
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    key = torch.randn(batch, keys, width, generator=generator, dtype=torch.float32)
    place = torch.randint(keys, (batch,), generator=generator)
    label = torch.randint(classes, (batch, keys), generator=generator)
    rows = torch.arange(batch)
    query = key[rows, place] @ R.T + noise * torch.randn(batch, width, generator=generator, dtype=torch.float32)
    return Retrieval(query[:, None], key, F.one_hot(label, classes).to(key.dtype), label[rows, place])


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


def _check_size(name: str, size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name} must be an integer, got {type(size).__name__}")
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")
