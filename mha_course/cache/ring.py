"""A cache for a window: the newest token takes the place of the one that no query will see any more."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_course.cache._inputs import check_integer
from mha_course.cache.preallocated import KVCache


class RingCache(KVCache):
    """Keep the last `window` tokens and, if asked, the first few: a stream without end in fixed memory.

    slot of the token at position p = p if p < sinks, else sinks + (p - sinks) mod window

    The keys lie in the ring in no order, which softmax does not mind; positions were turned into them before. With
    this cache `MultiHeadAttention` equals itself without one under `masks.sliding_window(N, window)`, to which the
    sinks are added. Positions stay those in the text; Xiao et al. number what is held anew at every step.

    Args:
        batch_size, num_kv_heads, head_dim, v_head_dim, dtype, device: see `KVCache`.
        window: number of tokens that a query sees, its own included.
        sinks: number of first tokens that are never dropped, besides the window.

    Attributes:
        length: number of tokens so far, and hence the position of the next. More than are held.
        window, sinks: as given.

    Raises:
        TypeError: a size is not an integer; dtype is not a floating point type.
        ValueError: batch_size or sinks is negative, another size below 1.

    Source: Jiang et al. 2023 (Mistral 7B), section 2, "rolling buffer cache". Sinks: Xiao et al. 2023, section 3.2.
    """

    window: int

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        window: int,
        head_dim: int,
        *,
        sinks: int = 0,
        v_head_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.window, self.sinks = check_integer("window", window, least=1), check_integer("sinks", sinks)
        slots = self.sinks + self.window
        super().__init__(batch_size, num_kv_heads, slots, head_dim, v_head_dim=v_head_dim, dtype=dtype, device=device)

    def update(
        self, k: Float[Tensor, "B Hkv T D"], v: Float[Tensor, "B Hkv T Dv"], *, owner: object = None
    ) -> tuple[Float[Tensor, "B Hkv S D"], Float[Tensor, "B Hkv S Dv"]]:
        """Append T new tokens, drop what they push out, and return the keys that they may see.

        Args:
            k, v, owner: see `KVCache.update`.

        Returns:
            Keys (B, Hkv, S, D) and values (B, Hkv, S, Dv), at the places of `positions(T)`. For T = 1 what is held
            then, a view. Else what was held and, behind it, all T: the first of them sees what the last pushes out.

        Raises:
            TypeError, ValueError, RuntimeError: see `KVCache.update`; there is always room.
        """
        self._check(k, v, owner)
        T, end = k.shape[2], self.length + k.shape[2]
        before = None if T == 1 else (torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2))
        new = torch.arange(self.length, end, device=k.device)
        stay = torch.cat([new[: max(self.sinks - self.length, 0)], new[-self.window :]])  # one may stand twice
        slots = torch.where(stay < self.sinks, stay, self.sinks + (stay - self.sinks) % self.window)
        stay = stay - self.length
        self._k[:, :, slots], self._v[:, :, slots] = k[:, :, stay], v[:, :, stay]
        self._advance(end, owner)
        return (self.k, self.v) if before is None else before

    def positions(self, T: int) -> Integer[Tensor, " S"]:
        """Say at which position each key stands that `update` will return for T new tokens."""
        if T == 1:
            return self._held(self.length + 1)
        new = torch.arange(self.length, self.length + T, device=self._k.device)
        return torch.cat([self._held(self.length), new])

    def mask(self, T: int) -> Bool[Tensor, "T S"] | None:
        """Say which keys each of T new tokens may see: the window that ends with it, and the sinks.

        Args:
            T: number of new tokens, before `update` gets them.

        Returns:
            Bool tensor (T, S), True = may attend, for the keys as `update` will return them. None where no mask is
            needed: a single token sees them all, and in an empty cache T = S where nothing is dropped.
        """
        if T <= 1 or (self.length == 0 and T <= self._k.shape[2]):
            return None
        key = self.positions(T)
        query = torch.arange(self.length, self.length + T, device=key.device).unsqueeze(-1)  # (T, 1)
        return (key <= query) & ((query - key < self.window) | (key < self.sinks))

    def crop(self, length: int) -> None:
        """Forget all tokens but the first `length`, as long as none of these was dropped.

        Raises:
            TypeError: length is not an integer.
            ValueError: length is negative, or more than came; a token was dropped, and length is not 0.
        """
        if self.length > self._k.shape[2] and check_integer("length", length):
            raise ValueError(f"length must be 0, as the first tokens are no longer held, got {length}")
        super().crop(length)

    def _held(self, length: int) -> Integer[Tensor, " S"]:
        """The position of the token in each slot once there have been `length` tokens."""
        slot = torch.arange(min(length, self._k.shape[2]), device=self._k.device)
        return torch.where(slot < self.sinks, slot, length - 1 - (length - 1 - slot) % self.window)
