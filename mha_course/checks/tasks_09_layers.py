"""Layers that a leak probe is tried on: some leak, each in a way that a careless probe misses."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course import masks
from mha_course.dot_product import attention

Tokens = Float[Tensor, "B T E"]


class Masked(nn.Module):
    """Attention of tokens to each other, causal or in a window of that many tokens."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tokens) -> Tokens:
        """Attend."""
        return attention(x, x, x, mask=self.mask(x)).out

    def mask(self, x: Tokens) -> Bool[Tensor, "..."]:
        """Who may attend to whom."""
        T = x.shape[1]
        return masks.causal(T) if self.window is None else masks.sliding_window(T, self.window)


class Padded(Masked):
    """Causal attention; of sample b, token b is hidden from the others, counted round."""

    def mask(self, x: Tokens) -> Bool[Tensor, "..."]:
        """Who may attend to whom."""
        B, T = x.shape[:2]
        hidden = torch.arange(T) == torch.arange(B)[:, None, None] % T  # (B, 1, T)
        return super().mask(x) & (~hidden | torch.eye(T, dtype=torch.bool))


class AfterSoftmax(Masked):
    """Hidden weights are set to 0 after the softmax: the future stays in the denominator."""

    def forward(self, x: Tokens) -> Tokens:
        """Attend, then hide."""
        return attention(x, x, x).weights * self.mask(x) @ x


class OneAhead(Masked):
    """Causal, but for the last feature, which also sees the next token."""

    def forward(self, x: Tokens) -> Tokens:
        """Attend twice."""
        ahead = attention(x, x, x, mask=masks.band(x.shape[1], None, 1)).out
        return torch.cat([super().forward(x)[..., :-1], ahead[..., -1:]], -1)


class Tiny(Masked):
    """Causal, but for a trace of the mean of all tokens."""

    def forward(self, x: Tokens) -> Tokens:
        """Attend, and add the trace."""
        return super().forward(x) + 1e-11 * x.mean(1, keepdim=True)


class Directions(Masked):
    """Causal attention of the tokens' directions: their lengths make no difference."""

    def forward(self, x: Tokens) -> Tokens:
        """Attend."""
        return super().forward(x / (x.square().mean(-1, keepdim=True) + 1e-300).sqrt())


class RunningSum(nn.Module):
    """The sum of all tokens so far: without a weight of 0, so that NaN goes where it may alone."""

    def forward(self, x: Tokens) -> Tokens:
        """Add up."""
        return x.cumsum(1)


class Opposites(Masked):
    """The sum of causal attention, and minus it, for E = 2: the sum of a row never moves."""

    def forward(self, x: Tokens) -> Tokens:
        """Attend."""
        total = super().forward(x).sum(-1, keepdim=True)
        return torch.cat([total, -total], -1)
