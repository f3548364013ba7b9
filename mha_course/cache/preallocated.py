"""A cache in fixed memory: room for max_len tokens is taken once, and each new token is written behind the last."""

import copy
import weakref
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from mha_course.cache._inputs import check_dtype, check_integer, check_new, rows


class KVCache:
    """Keep the keys and values of up to max_len tokens, for one attention layer.

    k[:, :, length : length + T] = those of T new tokens;   length = length + T

    The memory is B Hkv max_len (D + Dv) numbers from the start to the end: nothing grows, nothing is copied. A cache is
    for inference: no gradient passes through what it holds. What `update` returns are views, which later calls change.

    Args:
        batch_size: B, at least 0.
        num_kv_heads: Hkv. Grouped heads are kept once, not once per query head.
        max_len: number of tokens that there is room for.
        head_dim: D, width of a key.
        v_head_dim: Dv, width of a value; D if None.
        dtype: of keys and values; PyTorch's default type if None.
        device: where they are kept.

    Attributes:
        length: number of tokens so far, and hence the position of the next.
        window: None, as each token may see all before it.

    Raises:
        TypeError: a size is not an integer; dtype is not a floating point type.
        ValueError: batch_size is negative, another size below 1.

    Source: Shazeer 2019, section 2.4, incremental attention: prev_K and prev_V are k and v, h is Hkv, there each
        step makes new ones by concatenation.
    """

    window: int | None = None

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        B, Hkv = check_integer("batch_size", batch_size), check_integer("num_kv_heads", num_kv_heads, least=1)
        slots, D = check_integer("max_len", max_len, least=1), check_integer("head_dim", head_dim, least=1)
        Dv = D if v_head_dim is None else check_integer("v_head_dim", v_head_dim, least=1)
        dtype = check_dtype(torch.get_default_dtype() if dtype is None else dtype)
        with torch.inference_mode(False):  # else it could not be written outside of inference mode
            self._k = torch.zeros(B, Hkv, slots, D, dtype=dtype, device=device)
            self._v = torch.zeros(B, Hkv, slots, Dv, dtype=dtype, device=device)
        self.length = 0
        self._owner: weakref.ref[Any] | None = None

    @property
    def k(self) -> Float[Tensor, "B Hkv S D"]:
        """The keys that are held, a view."""
        return self._k[:, :, : self.length]

    @property
    def v(self) -> Float[Tensor, "B Hkv S Dv"]:
        """The values that are held, a view."""
        return self._v[:, :, : self.length]

    @property
    def nbytes(self) -> int:
        """Memory of the cache in bytes, the same whether it is full or empty."""
        return self._k.nbytes + self._v.nbytes

    def update(
        self, k: Float[Tensor, "B Hkv T D"], v: Float[Tensor, "B Hkv T Dv"], *, owner: object = None
    ) -> tuple[Float[Tensor, "B Hkv S D"], Float[Tensor, "B Hkv S Dv"]]:
        """Append T new tokens and return all, S = length + T. What is refused changes nothing.

        Args:
            k: keys (B, Hkv, T, D).
            v: values (B, Hkv, T, Dv).
            owner: who writes, an attention module. While its tokens are held, another owner is refused.

        Returns:
            Keys (B, Hkv, S, D) and values (B, Hkv, S, Dv), views of the filled part.

        Raises:
            TypeError: k or v is not a tensor of the cache's type; owner is an object without weak references.
            ValueError: k or v has other sizes than the cache or is on another device; different lengths; tokens of
                another owner are held; no room for T more.
            RuntimeError: k or v requires gradients, and they are not switched off.
        """
        self._check(k, v, owner)
        T, start = k.shape[2], self.length
        end = self._room(T)
        self._k.narrow(2, start, T).copy_(k)
        self._v.narrow(2, start, T).copy_(v)
        self._advance(end, owner)
        return self._k.narrow(2, 0, end), self._v.narrow(2, 0, end)

    def mask(self, T: int) -> Bool[Tensor, "T S"] | None:
        """Say which keys each of T new tokens may see, itself and what came before it: lower right.

        mask[t, s] = s <= length + t

        Args:
            T: number of new tokens, before `update` gets them.

        Returns:
            Bool tensor (T, S), True = may attend, for the keys as `update` will return them. None where no mask is
            needed: a single token sees them all, and in an empty cache T = S.
        """
        if T <= 1 or self.length == 0:
            return None
        key = torch.arange(self.length + T, device=self._k.device)
        return key <= key[self.length :, None]

    def reset(self) -> None:
        """Forget all tokens. Any module may fill the cache anew."""
        self.length = 0

    def crop(self, length: int) -> None:
        """Forget all tokens but the first `length`: a draft that was refused, for example.

        Raises:
            TypeError: length is not an integer.
            ValueError: length is negative, or more than are held.
        """
        length = check_integer("length", length)
        if length > self.length:
            raise ValueError(f"length must be at most the {self.length} tokens held, got {length}")
        self.length = length

    def reorder(self, indices: Integer[Tensor, " B"]) -> None:
        """Let sample b go on from what sample indices[b] holds, as a beam search does: k[b] = k[indices[b]].

        Args:
            indices: integers (B,) from 0 to B - 1; one may stand several times.

        Raises:
            TypeError: indices is not an integer tensor.
            ValueError: indices has another size, or holds a number that is not a sample.
        """
        indices = self._samples(indices)
        k, v = self.k[indices], self.v[indices]  # both before either is written: there may be no memory for them
        self.k.copy_(k)
        self.v.copy_(v)

    def __repr__(self) -> str:
        """Sizes, type and how many tokens there are."""
        sizes = f"k={tuple(self._k.shape)}, v={tuple(self._v.shape)}, dtype={self._k.dtype}"
        return f"{type(self).__name__}({sizes}, length={self.length})"

    def __copy__(self) -> "KVCache":
        """A copy has memory of its own: two caches would write over each other's tokens."""
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to nobody: its first owner may be a copy as well."""
        return self.__dict__ | {"_owner": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy that is made in inference mode can be written outside of it too."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                state = copy.deepcopy(state)
        self.__dict__.update(state)

    def _check(self, k: Tensor, v: Tensor, owner: object) -> None:
        """Raise unless owner may write k and v."""
        check_new("k", k, self._k)
        check_new("v", v, self._v)
        if k.shape[2] != v.shape[2]:
            raise ValueError(f"k and v must have one length T, got {k.shape[2]} and {v.shape[2]}")
        holder = None if self._owner is None else self._owner()  # None if it is no more
        if owner is not None and holder is not owner:
            if self.length and self._owner is not None:
                raise ValueError(
                    "the cache holds tokens of another module: each layer needs its own (reset it to reuse)"
                )
            weakref.ref(owner)  # raises before anything is written

    def _room(self, T: int) -> int:
        """The length with T more tokens; raise unless there is room for them."""
        start, room = self.length, self._k.shape[2]
        if start + T > room:
            what = f"{start} tokens are held, max_len is {room}, got {T} more"
            raise ValueError(f"the cache is full: {what}: make a longer one, or drop some with crop or reset")
        return start + T

    def _samples(self, indices: Tensor) -> Tensor:
        """The indices as int64, on the cache's device; raise unless they name one sample for each."""
        B = self._k.shape[0]
        indices = rows("indices", indices, 1, B).to(self._k.device)
        if indices.shape[0] != B:
            raise ValueError(f"indices must have B = {B} entries, got {indices.shape[0]}")
        return indices

    def _advance(self, length: int, owner: object) -> None:
        self.length = length
        if owner is None:
            self._owner = None
        elif self._owner is None or self._owner() is not owner:
            self._owner = weakref.ref(owner)
