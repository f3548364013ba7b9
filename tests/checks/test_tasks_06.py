"""Right and wrong solutions of notebook 06: rotary positions."""

import math

import pytest
import torch

from mha_course import positions
from mha_course.checks import check


def angles_of(x, offset, power=lambda i, D: 2 * i / D, base=10000.0):
    """Angles (T, D / 2)."""
    D = x.shape[-1]
    inv_freq = base ** -power(torch.arange(D // 2, dtype=x.dtype), D)
    return torch.outer(torch.arange(offset, offset + x.shape[2], dtype=x.dtype), inv_freq)


def rotary(x, offset, angles=None):
    angles = angles_of(x, offset) if angles is None else angles
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * angles.cos() - x[..., 1::2] * angles.sin()
    out[..., 1::2] = x[..., 0::2] * angles.sin() + x[..., 1::2] * angles.cos()
    return out


def rotary_by_complex_numbers(x, offset):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    angles = angles_of(x, offset)
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(3)


def rotary_by_loops(x, offset):
    B, H, T, D = x.shape
    out = torch.zeros(B, H, T, D, dtype=torch.float64)
    for t in range(T):
        for i in range(D // 2):
            angle = (offset + t) / 10000 ** (2 * i / D)
            c, s = math.cos(angle), math.sin(angle)
            a, b = x[:, :, t, 2 * i], x[:, :, t, 2 * i + 1]
            out[:, :, t, 2 * i] = c * a - s * b
            out[:, :, t, 2 * i + 1] = s * a + c * b
    return out


def rotary_by_matrices(x, offset):
    D = x.shape[-1]
    generator = torch.zeros(D, D, dtype=x.dtype)
    for i in range(D // 2):
        generator[2 * i + 1, 2 * i] = 10000 ** (-2 * i / D)
        generator[2 * i, 2 * i + 1] = -(10000 ** (-2 * i / D))
    turns = torch.stack([torch.matrix_exp((offset + t) * generator) for t in range(x.shape[2])])
    return torch.einsum("tij,bhtj->bhti", turns, x)


def rotary_by_einsum(x, offset):
    angles = angles_of(x, offset)
    turn = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1).unflatten(-1, (2, 2))
    return torch.einsum("tpij,bhtpj->bhtpi", turn, x.unflatten(-1, (-1, 2))).reshape(x.shape)


def rotate_every_two(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotary_by_two_tables(x, offset):
    angles = angles_of(x, offset).repeat_interleave(2, dim=-1)
    return x * angles.cos() + rotate_every_two(x) * angles.sin()


def rotary_with_angles_in_float32(x, offset):
    inv_freq = 1.0 / (10000 ** (torch.arange(0, x.shape[-1], 2).float() / x.shape[-1]))
    angles = torch.outer(torch.arange(x.shape[2]) + offset, inv_freq)
    return rotary(x, offset, angles)


ROTARY_RIGHT = [
    rotary,
    rotary_by_complex_numbers,
    rotary_by_loops,
    rotary_by_matrices,
    rotary_by_einsum,
    rotary_by_two_tables,
    rotary_with_angles_in_float32,
    lambda x, offset: positions.Rotary(x.shape[-1], interleaved=True)(x, offset=offset),
]


def turned(turn=lambda a, b, c, s: (a * c - b * s, a * s + b * c), angles=angles_of):
    """Neighbours turned: stack and flatten."""

    def fn(x, offset):
        turns = angles(x, offset)
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        return torch.stack(turn(*pairs.unbind(-1), turns.cos(), turns.sin()), -1).reshape(x.shape)

    return fn


def scaled_angles(factor):
    return turned(angles=lambda x, offset: angles_of(x, offset) * factor(x))


def llama(x, offset):
    angles = torch.cat([angles_of(x, offset)] * 2, dim=-1)
    return x * angles.cos() + rotate_half(x) * angles.sin()


def mixed(x, offset):
    angles = torch.cat([angles_of(x, offset)] * 2, dim=-1)
    return x * angles.cos() + rotate_every_two(x) * angles.sin()


def mixed_the_other_way(x, offset):
    angles = angles_of(x, offset).repeat_interleave(2, dim=-1)
    return x * angles.cos() + rotate_half(x) * angles.sin()


def one_angle_a_feature(factor):
    def fn(x, offset):
        D = x.shape[-1]
        out = torch.zeros_like(x)
        for j in range(D):
            angle = (offset + torch.arange(x.shape[2])) / 10000 ** (factor * j / D)
            if j % 2 == 0:
                out[..., j] = x[..., j] * torch.cos(angle) - x[..., j + 1] * torch.sin(angle)
            else:
                out[..., j] = x[..., j] * torch.cos(angle) + x[..., j - 1] * torch.sin(angle)
        return out

    return fn


def halves_at_the_end(x, offset):
    z = rotary_by_complex_numbers(x, offset).unflatten(-1, (-1, 2))
    return torch.cat([z[..., 0], z[..., 1]], dim=-1)


def halves_at_the_start(x, offset):
    z = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angles_of(x, offset))
    return torch.view_as_real(z).flatten(-2)


def overwritten(x, offset):
    c, s = angles_of(x, offset).cos(), angles_of(x, offset).sin()
    out = x.clone()
    out[..., 0::2] = out[..., 0::2] * c - out[..., 1::2] * s
    out[..., 1::2] = out[..., 0::2] * s + out[..., 1::2] * c
    return out


def overwritten_in_x(x, offset):
    c, s = angles_of(x, offset).cos(), angles_of(x, offset).sin()
    a, b = x[..., 0::2], x[..., 1::2]
    x[..., 0::2] = a * c - b * s
    x[..., 1::2] = a * s + b * c
    return x


def along(axis):
    return lambda x, offset: rotary(x.transpose(2, axis), offset).transpose(2, axis)


def half_of_the_pairs(x, offset):
    out = rotary_by_loops(x, offset)
    n = x.shape[-1] // 4 * 2
    return torch.cat([out[..., :n], x[..., n:]], dim=-1)


def half_of_the_features(x, offset):
    D = x.shape[-1]
    inv_freq = 10000 ** (-torch.arange(0, D // 2, 2).double() / (D // 2))
    angles = torch.outer(torch.arange(x.shape[2]) + offset, inv_freq)[:, : D // 4]
    n = 2 * angles.shape[1]
    return torch.cat([rotary(x[..., :n], offset, angles), x[..., n:]], dim=-1)


MIXED = "two layouts are mixed"
ROTARY_WRONG = [
    (lambda x, offset: positions.Rotary(x.shape[-1])(x, offset=offset), "the pairs are (x[i], x[i + D/2])"),
    (llama, "the pairs are (x[i], x[i + D/2])"),
    (halves_at_the_end, "the pairs are turned right, but come back in two halves"),
    (halves_at_the_start, "the pairs are taken from two halves"),
    (mixed, MIXED),
    (mixed_the_other_way, MIXED),
    (one_angle_a_feature(1), "the two numbers of a pair are turned by different angles"),
    (one_angle_a_feature(2), "the two numbers of a pair are turned by different angles"),
    (turned(lambda a, b, c, s: (a * c + b * s, b * c - a * s)), "the pairs are turned the other way round"),
    (scaled_angles(lambda x: -1), "the pairs are turned the other way round"),
    (turned(lambda a, b, c, s: (a * c - b * s, b * c - a * s)), "this is no rotation"),
    (turned(lambda a, b, c, s: (a * c + b * s, b * c + a * s)), "this is no rotation"),
    (turned(lambda a, b, c, s: (a * c - b * s, -(a * s + b * c))), "this is a reflection, not a rotation: the second"),
    (turned(lambda a, b, c, s: (a * c + b * s, a * s - b * c)), "this is a reflection, not a rotation: at position 0"),
    (turned(lambda a, b, c, s: (a * s - b * c, a * c + b * s)), "sine and cosine have changed places"),
    (overwritten, "the second number of a pair is computed from the new first"),
    (overwritten_in_x, "the second number of a pair is computed from the new first"),
    (turned(lambda a, b, c, s: (a * c, b * c)), "the sine part is missing"),
    (turned(lambda a, b, c, s: (a + s, b + c)), "sines and cosines are added"),
    (lambda x, offset: x, "x comes back as it was"),
    (lambda x, offset: rotary(x, 0), "the offset is ignored"),
    (lambda x, offset: rotary(x, -offset), "the offset is subtracted"),
    (turned(angles=lambda x, offset: angles_of(x, offset)[:1]), "all rows are turned by the angle of the first"),
    (lambda x, offset: rotary_by_loops(x, offset + 1), "positions start at 1"),
    (scaled_angles(lambda x: 1 / x.shape[2]), "the position is divided by the number of rows"),
    (along(1), "the positions run along the heads"),
    (along(0), "the positions run along the samples"),
    (turned(angles=lambda x, o: angles_of(x, o, lambda i, D: i / D)), "the power is i / D"),
    (turned(angles=lambda x, o: angles_of(x, o, base=100.0)), "the power is i / D"),
    (turned(angles=lambda x, o: angles_of(x, o, lambda i, D: 2 * i / (D // 2))), "the power is 4i / D"),
    (
        turned(angles=lambda x, o: angles_of(x, o, lambda i, D: torch.linspace(0, 1, D // 2))),
        "the frequencies are spaced so that the last one",
    ),
    (
        turned(angles=lambda x, o: angles_of(x, o, lambda i, D: 2 * i) * x.shape[-1]),
        "the power of 10000 is divided by D, not its exponent",
    ),
    (turned(angles=lambda x, o: angles_of(x, o, lambda i, D: 2 * (i + 1) / D)), "pairs are counted from 1"),
    (turned(angles=lambda x, o: angles_of(x, o)[:, :1]), "all pairs are turned by the angle of the first"),
    (turned(angles=lambda x, o: angles_of(x, o, lambda i, D: -2 * i / D)), "the position is multiplied by the power"),
    (turned(angles=lambda x, o: angles_of(x, o).flip(-1)), "the frequencies are in the wrong order"),
    (turned(angles=lambda x, o: angles_of(x, o, base=1000.0)), "the base is 1000,"),
    (turned(angles=lambda x, o: angles_of(x, o, base=math.e)), "the base is e"),
    (turned(angles=lambda x, o: angles_of(x, o, base=5e5)), "the base is 500000"),
    (half_of_the_pairs, "only the first half of the pairs is turned"),
    (half_of_the_features, "only the first half of the pairs is turned"),
    (scaled_angles(lambda x: math.pi / 180), "the angles are taken for degrees"),
    (scaled_angles(lambda x: 2 * math.pi), "the angles are multiplied by 2 pi"),
    (lambda x, offset: rotary(x, offset) * x.shape[-1] ** -0.5, "the result is divided by the square root of D"),
    (lambda x, offset: rotary(x * x.shape[-1] ** 0.5, offset), "the result is multiplied by the square root of D"),
    # not named
    (lambda x, offset: rotary(x, offset + 2), "the numbers differ"),
    (lambda x, offset: rotary(x, offset).float(), "rotated has type float32, expected float64, the type of the inputs"),
    (lambda x, offset: rotary_by_complex_numbers(x, offset).unflatten(-1, (-1, 2)), "rotated has the wrong shape"),
    (lambda x, offset: rotary(x, offset).squeeze(), "rotated has the wrong shape"),
    (lambda x, offset: rotary(x, offset).transpose(1, 2), "rotated has the wrong shape"),
    (lambda x: rotary(x, 0), "it cannot be called as fn(x, offset)"),
    (lambda x, offset: x * angles_of(x, offset), "it raises RuntimeError: The size of tensor a (6)"),
]


@pytest.mark.parametrize("fn", ROTARY_RIGHT)
def test_right(fn):
    verdict = check("rotary", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), ROTARY_WRONG)
def test_wrong(fn, fault):
    verdict = check("rotary", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_places_name_heads_and_tokens_as_x_may_be_queries_or_keys():
    def one_off(x, offset):
        out = rotary(x, offset)
        out[1, 2, 3, 4] += 0.5
        return out

    assert check("rotary", one_off).evidence == (
        "largest difference 0.50 in rotated, sample 1, head 2, token 3, feature 4 (counted from 0), "
        "case 1 (B, H, T, D = 2, 3, 5, 6; offset 7)"
    )


def test_turning_x_in_place_is_a_fault():
    verdict = check("rotary", lambda x, offset: x.copy_(rotary(x, offset)))
    assert verdict.fault == "it changes its input x in place"
    assert "also, it changes its input x in place" in check("rotary", overwritten_in_x).evidence


def test_shapes_are_said_in_letters():
    verdict = check("rotary", lambda x, offset: rotary(x, offset).transpose(1, 2))
    assert verdict.evidence.startswith("shape (B, T, H, D) = (2, 5, 3, 6), expected (B, H, T, D) = (2, 3, 5, 6)")
