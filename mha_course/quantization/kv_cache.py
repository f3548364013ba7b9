"""A KV cache of bytes: keys and values as int8, with a scale for each token of each head."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from mha_course.cache import KVCache
from mha_course.quantization._inputs import check_finite
from mha_course.quantization.affine import Affine, dequantize, quantize
from mha_course.quantization.calibration import find_affine


class Int8KVCache(KVCache):
    """Keep keys and values as 8-bit codes; give them back in floating point.

    k is about scale_k code_k, with scale_k = max |k| / 127 over the D numbers of one token in one head

    A token takes Hkv (D + Dv + 8) bytes: a byte for each number, and two float32 scales a head. It is quantized once,
    when it comes; what `update` returns is computed from the codes at every call, a copy. So the memory that is held
    is small, and the step is no faster: kernels that are read the codes themselves.

    Args:
        batch_size, num_kv_heads, max_len, head_dim, v_head_dim, device: see `KVCache`.
        dtype: of the keys and values that come and go.

    Attributes:
        length, window: see `KVCache`.

    Raises:
        TypeError, ValueError: see `KVCache`.

    Source: Sheng et al. 2023 (FlexGen), section 5.2, with 8 bits instead of 4, and a head's token as the group.
    """

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
        super().__init__(batch_size, num_kv_heads, max_len, head_dim, v_head_dim=v_head_dim, dtype=dtype, device="meta")
        with torch.inference_mode(False):
            one = torch.zeros((), dtype=self._k.dtype, device=device)
            shapes = self._k.shape, self._v.shape
            # of the sizes and type that are asked of new tokens; a single number in memory
            self._k, self._v = one.expand(shapes[0]), one.expand(shapes[1])
            self._codes = [torch.zeros(shape, dtype=torch.int8, device=device) for shape in shapes]
            self._scales = [torch.ones(*shape[:3], 1, dtype=torch.float32, device=device) for shape in shapes]

    @property
    def k(self) -> Float[Tensor, "B Hkv S D"]:
        """The keys that are held, in floating point, a copy."""
        return self._read(0)

    @property
    def v(self) -> Float[Tensor, "B Hkv S Dv"]:
        """The values that are held, in floating point, a copy."""
        return self._read(1)

    @property
    def nbytes(self) -> int:
        """Memory of codes and scales in bytes, the same whether it is full or empty."""
        return sum(x.nbytes for x in (*self._codes, *self._scales))

    def update(
        self, k: Float[Tensor, "B Hkv T D"], v: Float[Tensor, "B Hkv T Dv"], *, owner: object = None
    ) -> tuple[Float[Tensor, "B Hkv S D"], Float[Tensor, "B Hkv S Dv"]]:
        """Quantize T new tokens, append them and return all, S = length + T. What is refused changes nothing.

        Args:
            k, v, owner: see `KVCache.update`.

        Returns:
            Keys (B, Hkv, S, D) and values (B, Hkv, S, Dv), from the codes, the new ones too.

        Raises:
            TypeError, RuntimeError: see `KVCache.update`.
            ValueError: see there; k or v holds NaN or infinity.
        """
        self._check(k, v, owner)
        end = self._room(k.shape[2])
        k, v = check_finite("k", k.detach()), check_finite("v", v.detach())
        affines = [find_affine(x, 8, per="channel") for x in (k, v)]
        for x, affine, codes, scales in zip((k, v), affines, self._codes, self._scales, strict=True):
            codes[:, :, self.length : end] = quantize(x, affine)
            scales[:, :, self.length : end] = affine.scale
        self._advance(end, owner)
        return self.k, self.v

    def reorder(self, indices: Integer[Tensor, " B"]) -> None:
        """Let sample b go on from what sample indices[b] holds; see `KVCache.reorder`.

        Args:
            indices: integers (B,) from 0 to B - 1.

        Raises:
            TypeError, ValueError: see `KVCache.reorder`.
        """
        indices = self._samples(indices)
        for held in (*self._codes, *self._scales):
            held.copy_(held[indices])

    def _read(self, which: int) -> Tensor:
        codes, scale = self._codes[which][:, :, : self.length], self._scales[which][:, :, : self.length]
        zero = torch.zeros_like(scale, dtype=torch.int32)
        return dequantize(codes, Affine(scale, zero, 8, True)).to(self._k.dtype)
