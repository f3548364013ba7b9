"""Positions: what tells attention, which sees a set of tokens, in which order they stand.

Absolute schemes are added to the embeddings: `sinusoidal`, `Sinusoidal`, `Learned`. Relative ones act in every
attention: `alibi` and `T5Bias` give a `score_bias`, `Rotary` turns queries and keys.

Position p of the first token is `offset`, 0 unless earlier tokens are in a cache. All positions are computed in
float32 (sinusoids and rotations in float64 where the result is) and only then converted: bfloat16 cannot even count to
300. In float32 a turned entry is off by 5e-5 at position 1,000, by .01 at 100,000.
"""

from mha_course.positions.absolute import Learned, Sinusoidal, sinusoidal
from mha_course.positions.relative import T5Bias, alibi, alibi_slopes, t5_buckets
from mha_course.positions.rotary import Rotary, rotary_frequencies

__all__ = [
    "Learned",
    "Rotary",
    "Sinusoidal",
    "T5Bias",
    "alibi",
    "alibi_slopes",
    "rotary_frequencies",
    "sinusoidal",
    "t5_buckets",
]
