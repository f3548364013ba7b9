"""Sound attention by another formula: to be taken as right with a remark, or not judged, but accused of no fault."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Right
from tests.checks.bank.right_mask_modules import Base


class Slopes(Base):
    """Scores fall off with distance, by a slope of each head's own."""

    def forward(self, x):
        n = torch.arange(x.size(1), dtype=x.dtype)
        slopes = 2.0 ** (-8.0 / self.n_heads * torch.arange(1, self.n_heads + 1, dtype=x.dtype))
        s = self.scores(x, x) - slopes[:, None, None] * (n[:, None] - n).abs()
        return self.merge(s.softmax(-1), x)


class LearnedTemperature(Base):
    """Each head has a scale that is trained; it starts at the usual one."""

    def __init__(self, d_model=16, n_heads=4):
        super().__init__(d_model, n_heads)
        self.temperature = nn.Parameter(torch.ones(n_heads, 1, 1))

    def forward(self, query, key, value):
        return self.merge((self.scores(query, key) * self.temperature).softmax(-1), value)


class NormedQueries(Base):
    """Queries and keys are normalised, head by head, before they meet."""

    def __init__(self, d_model=16, n_heads=4):
        super().__init__(d_model, n_heads)
        self.q_norm, self.k_norm = nn.LayerNorm(self.d_head), nn.LayerNorm(self.d_head)

    def forward(self, x):
        split = (self.n_heads, self.d_head)
        q, k = self.q_norm(self.W_Q(x).unflatten(-1, split)), self.k_norm(self.W_K(x).unflatten(-1, split))
        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.d_head)
        return self.merge(s.softmax(-1), x)


class Capped(Base):
    """Scores are kept within fifty by a hyperbolic tangent."""

    def forward(self, query, key, value):
        return self.merge((50 * torch.tanh(self.scores(query, key) / 50)).softmax(-1), value)


class WithZeroKey(Base):
    """One more key of score zero and value zero, so that a head may attend to nothing."""

    def forward(self, query, key, value):
        s = F.pad(self.scores(query, key), (1, 0))
        return self.merge(s.softmax(-1)[..., 1:], value)


class Window(Base):
    """Each query sees itself and the three keys before it."""

    def forward(self, x):
        n = torch.arange(x.size(1))
        far = (n[:, None] - n > 3) | (n > n[:, None])
        return self.merge(self.scores(x, x).masked_fill(far, -torch.inf).softmax(-1), x)


class RelativeBias(Base):
    """A trained bias for each distance and head, no scale beside it: the first weights are drawn smaller."""

    def __init__(self, d_model=16, n_heads=4):
        super().__init__(d_model, n_heads, bias=False)
        nn.init.normal_(self.W_Q.weight, std=(d_model * self.d_head) ** -0.5)
        self.table = nn.Embedding(63, n_heads)

    def forward(self, x):
        n = torch.arange(x.size(1))
        bias = self.table((n - n[:, None]).clamp(-31, 31) + 31).permute(2, 0, 1)
        s = self.scores(x, x) * math.sqrt(self.d_head) + bias
        return self.merge(s.softmax(-1), x)


ITEMS = [
    Right("variant_slopes", Slopes, remark="position|distance"),
    Right("variant_learned_temperature", LearnedTemperature, remark="scale|temperature"),
    Right("variant_normed_queries", NormedQueries, remark="norm"),
    Right("variant_capped", Capped),
    Right("variant_zero_key", WithZeroKey),
    Right("variant_window", Window, remark="window|position|causal"),
    Right("variant_relative_bias", RelativeBias, remark="position|distance"),
    Right("variant_added_key", lambda: nn.MultiheadAttention(16, 4, add_bias_kv=True, batch_first=True)),
    Right("variant_added_zero", lambda: nn.MultiheadAttention(16, 4, add_zero_attn=True, batch_first=True)),
]
