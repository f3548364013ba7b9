"""Wrong solutions of the exercises of notebook 06 about rotary positions."""

import torch

from tests.checks.bank_exercises import CHANGED, GRADIENT, wrong

FREQ = r"frequen|exponent|rate|wavelength|2i|speed|period|angle|slow|fast"


def angles(x, offset, base=10000.0, step=1.0):
    d = x.shape[-1]
    rate = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d * step)
    return (offset + torch.arange(x.shape[-2], dtype=torch.float64))[:, None] * rate


def turn(x, a):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * a.cos() - odd * a.sin(), even * a.sin() + odd * a.cos()], dim=-1).flatten(-2)


@wrong("rotary", "pairs entry i with i + D/2", r"half|halves|D/2|D / 2")
def half_split(x, offset):
    a = angles(x, offset)
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * a.cos() - two * a.sin(), one * a.sin() + two * a.cos()], dim=-1)


@wrong(
    "rotary",
    "angles for neighbours, but halves are rotated: the pairings differ",
    r"mix|other pairs|mismatch|different pairs|not the same pairs",
)
def pairings_differ(x, offset):
    a = angles(x, offset).repeat_interleave(2, dim=-1)
    one, two = x.chunk(2, dim=-1)
    return x * a.cos() + torch.cat([-two, one], dim=-1) * a.sin()


class Cached:
    def __init__(self):
        self.tables = {}

    def __call__(self, x, offset):
        if x.shape[-2:] not in self.tables:
            self.tables[x.shape[-2:]] = angles(x, offset)
        return turn(x, self.tables[x.shape[-2:]])


_cached = Cached()


@wrong(
    "rotary",
    "a cached table keyed by length: the first offset stays",
    r"offset|earlier call|first call|remember|cach|state|kept",
)
def table_keyed_by_length(x, offset):
    return _cached(x, offset)


@wrong("rotary", "offset not used", r"offset")
def without_offset(x, offset):
    return turn(x, angles(x, 0))


@wrong("rotary", "turns the other way", r"direction|sign|clockwise|other way|backward|minus|negative|wrong way")
def clockwise(x, offset):
    return turn(x, -angles(x, offset))


@wrong("rotary", "the exponent lacks the factor 2", FREQ)
def exponent_halved(x, offset):
    return turn(x, angles(x, offset, step=0.5))


@wrong("rotary", "all first entries, then all second ones", r"interleav|concat|order|half|halves|side by side|place")
def not_interleaved_again(x, offset):
    a = angles(x, offset)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * a.cos() - odd * a.sin(), even * a.sin() + odd * a.cos()], dim=-1)


@wrong("rotary", "base 1000", r"\bbase\b")
def small_base(x, offset):
    return turn(x, angles(x, offset, base=1000.0))


@wrong("rotary", "the heads are numbered, not the tokens", r"head|ax[ei]s")
def numbers_the_heads(x, offset):
    return turn(x.transpose(1, 2), angles(x.transpose(1, 2), offset)).transpose(1, 2)


@wrong("rotary", "positions begin at 1", r"position|offset|start|begin|from 1|one place")
def rotary_from_one(x, offset):
    return turn(x, angles(x, offset + 1))


@wrong(
    "rotary", "a plus in place of the minus: a reflection mix, lengths change", r"sign|plus|minus|length|norm|rotation"
)
def plus_for_minus(x, offset):
    a = angles(x, offset)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * a.cos() + odd * a.sin(), even * a.sin() + odd * a.cos()], dim=-1).flatten(-2)


@wrong("rotary", "adds sinusoids instead of turning", r"\badd|instead of (rotat|turn)|sinus|norm|length")
def adds_sinusoids(x, offset):
    a = angles(x, offset)
    return x + torch.stack([a.sin(), a.cos()], dim=-1).flatten(-2)


@wrong("rotary", "writes the turned first entries into x and uses them for the second", CHANGED + r"|already|new first")
def turned_in_place(x, offset):
    a = angles(x, offset)
    x[..., 0::2] = x[..., 0::2] * a.cos() - x[..., 1::2] * a.sin()
    x[..., 1::2] = x[..., 0::2] * a.sin() + x[..., 1::2] * a.cos()
    return x


@wrong("rotary", "right, but written into the caller's x", CHANGED)
def written_into_x(x, offset):
    x.copy_(turn(x.clone(), angles(x, offset)))
    return x


@wrong("rotary", "float32", r"float64|float32|dtype|precision|type")
def rotary_in_float32(x, offset):
    return turn(x.float(), angles(x, offset).float())


@wrong("rotary", "through NumPy's complex numbers: no gradient", GRADIENT)
def complex_numpy(x, offset):
    z = torch.view_as_complex(x.detach().unflatten(-1, (-1, 2)).contiguous()).numpy()
    z = z * torch.exp(1j * angles(x, offset)).numpy()
    return torch.view_as_real(torch.from_numpy(z)).flatten(-2)


@wrong("rotary", "the odd entries are detached", GRADIENT)
def half_detached(x, offset):
    a = angles(x, offset)
    even, odd = x[..., 0::2], x[..., 1::2].detach()
    return torch.stack([even * a.cos() - odd * a.sin(), even * a.sin() + odd * a.cos()], dim=-1).flatten(-2)


@wrong(
    "rotary", "no offset, and the other way", r"(?is)(?=.*offset)(?=.*(direction|sign|way|clockwise|minus|backward))"
)
def no_offset_and_backwards(x, offset):
    return turn(x, -angles(x, 0))
