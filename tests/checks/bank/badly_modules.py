"""Badly behaved modules and classes, and modules that are no attention."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.bank.right_item import Badly
from tests.checks.bank.right_mask_modules import Base


class Plain(Base):
    def forward(self, query, key, value, mask=None):
        s = self.scores(query, key)
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        return self.merge(s.softmax(-1), value)


class ChangesQuery(Plain):
    def forward(self, query, key, value, mask=None):
        out = super().forward(query, key, value, mask)
        query.data.add_(1.0)
        return out


class ChangesMask(Plain):
    def forward(self, query, key, value, mask=None):
        out = super().forward(query, key, value, mask)
        if mask is not None:
            mask.fill_(True)
        return out


class ChangesParameters(Plain):
    """Each call makes the value layer's weight a little smaller."""

    def forward(self, query, key, value, mask=None):
        out = super().forward(query, key, value, mask)
        self.W_V.weight.data.mul_(0.9)
        return out


class RunningMean(Plain):
    """The average of the outputs so far is subtracted."""

    def __init__(self, d_model=16, n_heads=4):
        super().__init__(d_model, n_heads)
        self.register_buffer("mean", torch.zeros(d_model))

    def forward(self, query, key, value, mask=None):
        out = super().forward(query, key, value, mask)
        self.mean = 0.5 * self.mean + 0.5 * out.detach().mean((0, 1))
        return out - self.mean


class KeepsFirstMask(Plain):
    """The first mask is kept for all later calls."""

    kept = None

    def forward(self, query, key, value, mask=None):
        if self.kept is None:
            self.kept = mask
        return super().forward(query, key, value, self.kept)


class NewLayerEachCall(Plain):
    """The output layer is made anew in each call."""

    def forward(self, query, key, value, mask=None):
        self.W_O = nn.Linear(self.d_model, self.d_model).to(query.dtype)
        return super().forward(query, key, value, mask)


class Noisy(Plain):
    def forward(self, query, key, value, mask=None):
        return super().forward(query + 0.1 * torch.randn_like(query), key, value, mask)


class RaisesInForward(Plain):
    def forward(self, query, key, value, mask=None):
        raise ValueError(f"expected an input of width 512, got {query.size(-1)}")


class LoopsInForward(Plain):
    def forward(self, query, key, value, mask=None):
        while True:
            query = query + 0


class ReturnsNothing(Plain):
    def forward(self, query, key, value, mask=None):
        super().forward(query, key, value, mask)


class ReturnsHeads(Plain):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


class RaisingAttribute(Plain):
    @property
    def num_heads(self):
        raise RuntimeError("ask somebody else")


class WordyAttribute(Plain):
    num_heads = "four"


class Unguessable(Plain):
    def forward(self, query, key, value, temperature, table):
        return super().forward(query / temperature, key + table, value)


class NoArguments(Plain):
    def forward(self):
        return torch.zeros(2, 5, 16)


class InitRaises(Plain):
    def __init__(self, embed_dim, num_heads):
        raise RuntimeError("no licence file")


class InitUnknown(Plain):
    def __init__(self, config, layer_idx):
        super().__init__(config.hidden_size, config.heads)


class ForgotSuper(nn.Module):
    def __init__(self, embed_dim, num_heads):
        self.q = nn.Linear(embed_dim, embed_dim)


class NoForward(nn.Module):
    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))


class FormulaModule(nn.Module):
    """The formula as a module without parameters."""

    def forward(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask)


class Lazy(nn.Module):
    """Layers that learn their input's width at the first call."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.LazyLinear(embed_dim) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for p, x in ((self.q, query), (self.k, key), (self.v, value))
        )
        return self.o(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class WholeBlock(nn.Module):
    """A decoder's block with a gated feed-forward: seven linear layers."""

    def __init__(self, d_model=16, n_heads=4):
        super().__init__()
        self.attn = Plain(d_model, n_heads)
        self.gate, self.up, self.down = nn.Linear(d_model, 32), nn.Linear(d_model, 32), nn.Linear(32, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        y = self.norm1(x)
        x = x + self.attn(y, y, y, mask)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def on_meta():
    with torch.device("meta"):
        return Plain()


def with_nan_weights():
    module = Plain()
    nn.init.constant_(module.W_K.weight, float("nan"))
    return module


ITEMS = [
    Badly("module_changes_query", ChangesQuery, "changes_input"),
    Badly("module_changes_mask", ChangesMask, "changes_input"),
    Badly("module_changes_parameters", ChangesParameters, "changes_parameters"),
    Badly("module_running_mean", RunningMean, "keeps_state"),
    Badly("module_keeps_first_mask", KeepsFirstMask, "keeps_state | mask_ignored"),
    Badly("module_new_layer_each_call", NewLayerEachCall, "changes_parameters"),
    Badly("module_noisy", Noisy, "nondeterministic"),
    Badly("module_raises", RaisesInForward, "raises"),
    Badly("module_raises_class", lambda: RaisesInForward, "raises"),
    Badly("module_loops", LoopsInForward, "endless_loop", {"seconds": 3}),
    Badly("module_returns_nothing", ReturnsNothing, "wrong_type"),
    Badly("module_returns_heads", ReturnsHeads, "wrong_shape"),
    Badly("module_raising_attribute", RaisingAttribute, "ok | not judged", note="right; its head count cannot be read"),
    Badly("module_wordy_attribute", WordyAttribute, "ok | not judged", note="right; its head count is no number"),
    Badly("module_unguessable", Unguessable, "not judged"),
    Badly("module_no_arguments", NoArguments, "not judged"),
    Badly("class_init_raises", lambda: InitRaises, "raises"),
    Badly("class_init_unknown", lambda: InitUnknown, "not judged"),
    Badly("class_forgot_super", lambda: ForgotSuper, "raises"),
    Badly("class_int", lambda: int, "not judged | TypeError"),
    Badly("class_dict", lambda: dict, "not judged | TypeError"),
    Badly("module_no_forward", NoForward, "raises | not judged"),
    Badly("module_without_parameters", FormulaModule, "ok | not judged", note="right as a function"),
    Badly("module_identity", nn.Identity, "not judged | no_projections"),
    Badly("module_linear", lambda: nn.Linear(16, 16), "not judged"),
    Badly("module_embedding", lambda: nn.Embedding(16, 16), "not judged | raises"),
    Badly("module_lstm", lambda: nn.LSTM(16, 16, batch_first=True), "not judged"),
    Badly("module_convolution", lambda: nn.Conv1d(16, 16, 3, padding=1), "not judged | raises"),
    Badly("module_encoder_layer", lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), "not judged"),
    Badly("module_block", WholeBlock, "not judged"),
    Badly("module_lazy", Lazy, "ok | not judged", note="right once its widths are known"),
    Badly("module_meta", on_meta, "not judged | raises"),
    Badly("module_nan_weights", with_nan_weights, "ok | returns_nan | not judged", note="right with other weights"),
]
