"""Masks from what the sequences hold: padding, and several documents in one row."""

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from mha_course.masks._inputs import can_be_read, check_integer, integers, refuse


def padding(lengths: Integer[Tensor, " B"], S: int) -> Bool[Tensor, "B 1 1 S"]:
    """Hide the keys that lie beyond the end of each sequence.

    mask[b, 0, 0, s] = s < lengths[b]

    Args:
        lengths: (B,) integers, the number of real tokens of each sequence, in [0, S].
        S: number of keys, padding included.

    Returns:
        Bool tensor (B, 1, 1, S), True = a real token. Four axes, so that it broadcasts to
        (B, H, T, S); a mask with two axes always means (T, S).

    Raises:
        TypeError: lengths is not an integer tensor; S is not an integer.
        ValueError: lengths is not one-dimensional; S is negative; a length lies outside [0, S].
    """
    lengths = integers("lengths", lengths, "B")
    S = check_integer("S", S)
    if can_be_read(lengths):  # the text alone would make the compiled graph one for this S
        refuse((lengths < 0) | (lengths > S), lengths, f"lengths must lie in [0, S] = [0, {S}]")
    key = torch.arange(S, device=lengths.device)
    return (key < lengths.unsqueeze(-1))[:, None, None, :]


def padding_from_tokens(tokens: Integer[Tensor, "B S"], pad: int) -> Bool[Tensor, "B 1 1 S"]:
    """Hide the keys whose token is the padding token, wherever it stands.

    mask[b, 0, 0, s] = tokens[b, s] != pad

    Args:
        tokens: (B, S) integers. A tokenizer's attention_mask of ones and zeros will do, with pad 0.
        pad: the token that fills up a sequence. Where it occurs in the text as well (the end of
            text used as padding), `padding` with the lengths is the right one.

    Returns:
        Bool tensor (B, 1, 1, S), True = a real token.

    Raises:
        TypeError: tokens is not an integer tensor; pad is not an integer.
        ValueError: tokens has other axes than (B, S).
    """
    tokens = integers("tokens", tokens, "B", "S")
    if isinstance(pad, bool) or not isinstance(pad, int):
        raise TypeError(f"pad must be an integer, got {type(pad).__name__}")
    return (tokens != pad)[:, None, None, :]


def block_diagonal(lengths: Integer[Tensor, " N"], S: int | None = None) -> Bool[Tensor, "S S"]:
    """Let each token see its own document alone, where N documents stand one after another.

    mask[t, s] = document(t) == document(s)

    Args:
        lengths: (N,) integers, the number of tokens of each document, at least 0.
        S: number of tokens, at least the sum of the lengths; that sum if None, which has to be read
            from the tensor: give S under torch.compile. Tokens past the last document are padding:
            they see nothing, and nobody sees them.

    Returns:
        Bool tensor (S, S), True = may attend. Made causal by `& causal(S)`.

    Raises:
        TypeError: lengths is not an integer tensor; S is not an integer.
        ValueError: lengths is not one-dimensional; a length is negative; S is below their sum.
    """
    lengths = integers("lengths", lengths, "N")
    refuse(lengths < 0, lengths, "lengths must be at least 0")
    if S is None:
        S = int(lengths.sum())
    S = check_integer("S", S)
    if can_be_read(lengths) and lengths.sum() > S:
        raise ValueError(f"S must be at least the sum of the lengths, {lengths.sum().item()}, got {S}")
    ends = lengths.cumsum(0)  # (N,)
    position = torch.arange(S, device=lengths.device)
    document = (position.unsqueeze(-1) >= ends).sum(-1)  # (S,), N past the last
    real = document < lengths.shape[0]
    return (document.unsqueeze(-1) == document) & real


def block_diagonal_from_ids(ids: Integer[Tensor, "B S"]) -> Bool[Tensor, "B 1 S S"]:
    """Let each token see the tokens of its own document alone, given the document of each.

    mask[b, 0, t, s] = ids[b, t] == ids[b, s]

    Args:
        ids: (B, S) integers, the same for all tokens of a document, wherever they stand. Padding
            with an id of its own sees itself, and no document sees it.

    Returns:
        Bool tensor (B, 1, S, S), True = may attend. Made causal by `& causal(S)`.

    Raises:
        TypeError: ids is not an integer tensor.
        ValueError: ids has other axes than (B, S).
    """
    ids = integers("ids", ids, "B", "S")
    return (ids.unsqueeze(-1) == ids.unsqueeze(-2)).unsqueeze(1)
