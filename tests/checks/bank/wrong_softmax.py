"""Modules whose weights are not a softmax over the keys."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .item import Item, collector

ITEMS: list[Item] = []
wrong = collector(ITEMS)


@wrong("softmax_over_queries", size=(24, 4), said="softmax over axis 1 of folded heads (B H, T, S)")
class FoldedAxisOne(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.fc_q = nn.Linear(d_model, d_model)
        self.fc_k = nn.Linear(d_model, d_model)
        self.fc_v = nn.Linear(d_model, d_model)
        self.fc_o = nn.Linear(d_model, d_model)

    def fold(self, x):
        return torch.cat(x.split(self.d_k, dim=2), dim=0)

    def forward(self, queries, keys, values):
        q, k, v = self.fold(self.fc_q(queries)), self.fold(self.fc_k(keys)), self.fold(self.fc_v(values))
        att = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(self.d_k), dim=1)
        return self.fc_o(torch.cat(att.bmm(v).chunk(self.h, dim=0), dim=2))


@wrong("softmax_over_queries", said="nn.Softmax(dim=2) on (B, H, T, S)")
class SoftmaxModuleDimTwo(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.softmax = nn.Softmax(dim=2)
        self.q = nn.Linear(embed_dim, embed_dim)
        self.k = nn.Linear(embed_dim, embed_dim)
        self.v = nn.Linear(embed_dim, embed_dim)
        self.o = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (layer(x).view(b, n, self.num_heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / (e // self.num_heads) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e30)
        weights = self.softmax(scores)
        return self.o((weights @ v).transpose(1, 2).reshape(b, n, e)), weights


@wrong("softmax_over_heads", size=(32, 4), said="softmax over axis 1, which is the heads'")
class AxisOneIsHeads(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=2))
        att = F.softmax(q @ k.mT * k.size(-1) ** -0.5, dim=1)
        return self.c_proj((att @ v).transpose(1, 2).flatten(2))


@wrong("softmax_over_batch", size=(16, 4), said="softmax over axis 0, which is the samples'")
class AxisZeroIsBatch(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.query_layers = nn.ModuleList([nn.Linear(embed_dim, self.head_dim) for _ in range(num_heads)])
        self.key_layers = nn.ModuleList([nn.Linear(embed_dim, self.head_dim) for _ in range(num_heads)])
        self.value_layers = nn.ModuleList([nn.Linear(embed_dim, self.head_dim) for _ in range(num_heads)])
        self.out_layer = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        outs = []
        for i in range(self.num_heads):
            q, k, v = self.query_layers[i](x), self.key_layers[i](x), self.value_layers[i](x)
            outs.append(torch.softmax(q @ k.mT / math.sqrt(self.head_dim), dim=0) @ v)
        return self.out_layer(torch.cat(outs, -1))


class Weighted(nn.Module):
    """Heads by einsum; the class below turns scores into weights."""

    def __init__(self, emb, heads):
        super().__init__()
        self.heads = heads
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)

    def weights(self, scores):
        raise NotImplementedError

    def forward(self, x):
        b, t, e = x.size()
        q = self.toqueries(x).view(b, t, self.heads, e // self.heads)
        k = self.tokeys(x).view(b, t, self.heads, e // self.heads)
        v = self.tovalues(x).view(b, t, self.heads, e // self.heads)
        w = self.weights(torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(e // self.heads))
        return self.unifyheads(torch.einsum("bhts,bshd->bthd", w, v).reshape(b, t, e))


@wrong("softmax_over_all", size=(24, 4), said="one softmax over all pairs of a query and a key")
class OneSoftmaxForAll(Weighted):
    def weights(self, scores):
        return torch.softmax(scores.flatten(2), dim=-1).view_as(scores)


@wrong("no_softmax", size=(32, 2), said="the scores are the weights")
class ScoresAsWeights(Weighted):
    def weights(self, scores):
        return scores


@wrong("exp_not_normalized", size=(16, 2), said="exponentials that are never divided by their sum")
class NeverDivided(Weighted):
    def weights(self, scores):
        return scores.exp()


@wrong("sigmoid_weights", size=(24, 3), said="a sigmoid of every score in place of the softmax")
class SigmoidEach(Weighted):
    def weights(self, scores):
        return torch.sigmoid(scores)


@wrong("softmax_twice", size=(32, 4), said="the weights go through a second softmax")
class SoftmaxOfWeights(Weighted):
    def weights(self, scores):
        weights = F.softmax(scores, dim=-1)
        return F.softmax(weights, dim=-1)


@wrong("log_softmax", size=(32, 4), said="log_softmax in place of softmax")
class LogWeights(Weighted):
    def weights(self, scores):
        return F.log_softmax(scores, dim=-1)


@wrong("hard_max", size=(24, 4), said="all the weight goes to the largest score")
class OneHot(Weighted):
    def weights(self, scores):
        return F.one_hot(scores.argmax(dim=-1), scores.size(-1)).to(scores.dtype)


@wrong("weights_transposed", size=(32, 4), said="the weights are transposed before the product with v")
class WeightsTurned(Weighted):
    def weights(self, scores):
        return scores.softmax(dim=-1).transpose(2, 3)
