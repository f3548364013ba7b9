"""Modules whose dropout is in the wrong place, on at the wrong time, or absent."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


class Dropped(nn.Module):
    """Self-attention with a dropout rate; the class below turns scores and values into the result."""

    def __init__(self, embed_dim, num_heads, dropout=0.3):
        super().__init__()
        self.num_heads = num_heads
        self.p = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def mix(self, scores, v):
        raise NotImplementedError

    def forward(self, x, mask=None):
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.out_proj(self.mix(scores, v).transpose(1, 2).flatten(2))


@wrong(
    "dropout_before_softmax",
    size=(24, 4),
    dropout=0.5,
    said="dropout on the scores: a dropped score is 0, not a weight of 0",
)
class DropsScores(Dropped):
    def mix(self, scores, v):
        return torch.softmax(self.dropout(scores), dim=-1) @ v


@wrong("dropout_in_eval", size=(32, 4), said="F.dropout without training=self.training")
class FunctionalAlwaysOn(Dropped):
    def mix(self, scores, v):
        return F.dropout(scores.softmax(-1), p=self.p) @ v


@wrong("dropout_missing", size=(16, 2), dropout=0.5, said="the dropout layer is made and never called")
class LayerNeverCalled(Dropped):
    def mix(self, scores, v):
        return scores.softmax(-1) @ v


@wrong(
    "dropout_not_rescaled",
    size=(24, 3),
    dropout=0.5,
    said="weights are dropped by hand, the kept ones are not divided by 1 - p",
)
class KeptNotRescaled(Dropped):
    def mix(self, scores, v):
        weights = scores.softmax(-1)
        if self.training:
            weights = weights * (torch.rand_like(weights) >= self.p)
        return weights @ v


@wrong("dropout_on_values", size=(32, 2), dropout=0.5, said="values are dropped, weights are not")
class DropsValues(Dropped):
    def mix(self, scores, v):
        return scores.softmax(-1) @ self.dropout(v)


@wrong("dropout_in_eval", said="dropout_p is passed to F.scaled_dot_product_attention in evaluation too")
class RatePassedAlways(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.2):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.out_proj(y.transpose(1, 2).flatten(2))
