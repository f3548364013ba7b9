"""Right solutions of the exercises of notebook 14, in many styles."""

import numpy as np
import torch

from tests.checks.bank_exercises import right

channel, static = "quantize_per_channel", "static_scale"


@right(channel)
def with_where(W, bits):
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().amax(dim=1, keepdim=True) / qmax
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = torch.round(W / scale).clamp(-qmax, qmax).to(torch.int8)
    return codes, scale, codes * scale


@right(channel)
def with_masked_fill(W, bits):
    top = (1 << (bits - 1)) - 1
    biggest, _ = W.abs().max(dim=-1, keepdim=True)
    scale = (biggest / top).masked_fill(biggest == 0, 1.0)
    codes = (W / scale).round()
    return codes, scale, codes.mul(scale)


@right(channel)
def row_by_row(W, bits):
    qmax = 2 ** (bits - 1) - 1
    codes, scales = torch.zeros_like(W), []
    for i, row in enumerate(W):
        scale = max(abs(row.min().item()), abs(row.max().item())) / qmax
        if scale == 0:
            scale = 1.0
        scales.append(scale)
        codes[i] = torch.clamp(torch.round(row / scale), -qmax, qmax)
    scale = torch.tensor(scales, dtype=W.dtype).unsqueeze(1)
    return codes.to(torch.int8), scale, codes * scale


@right(channel)
def rounds_half_up(W, bits):
    """Adds a half and takes the floor; halves go up."""
    qmax = 2.0 ** (bits - 1) - 1
    amax = torch.linalg.vector_norm(W, ord=float("inf"), dim=1)
    scale = torch.where(amax > 0, amax / qmax, 1.0)[:, None]
    q = torch.floor(W / scale + 0.5)
    return q, scale, q * scale


@right(channel)
def rounds_half_away(W, bits):
    qmax = 2 ** (bits - 1) - 1
    m = W.abs().amax(1)
    s = m / qmax
    s[m == 0] = 1
    s = s.reshape(-1, 1)
    y = W / s
    codes = torch.sign(y) * torch.floor(y.abs() + 0.5)
    return codes, s, codes * s


@right(channel)
def by_numpy(W, bits):
    qmax = 2 ** (bits - 1) - 1
    w = W.numpy()
    scale = np.abs(w).max(axis=1, keepdims=True) / qmax
    scale[scale == 0] = 1
    codes = np.clip(np.rint(w / scale), -qmax, qmax)
    return torch.from_numpy(codes), torch.from_numpy(scale), torch.from_numpy(codes * scale)


@right(channel)
def by_levels(W, bits):
    """The nearest of all levels, looked for."""
    qmax = 2 ** (bits - 1) - 1
    scale = W.abs().max(1, keepdim=True).values / qmax
    scale = scale + (scale == 0).double()
    levels = torch.arange(-qmax, qmax + 1, dtype=W.dtype)
    nearest = (W[..., None] - scale[..., None] * levels).abs().argmin(-1)
    codes = levels[nearest]
    codes = torch.where(W == 0, torch.zeros_like(codes), codes)
    return codes.to(torch.int32), scale, codes * scale


@right(channel)
def multiplies_by_the_inverse(W, bits):
    qmax = 2 ** (bits - 1) - 1
    m = W.abs().amax(-1, keepdim=True)
    empty = m.eq(0)
    inverse = qmax / m.masked_fill(empty, qmax)
    scale = 1 / inverse
    codes = (W * inverse).round_()
    return codes.short(), scale, codes * scale


@right(channel)
def clamps_to_the_lowest_int8(W, bits):
    """No row reaches -qmax - 1, so that the wider clamp does nothing."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scale = torch.maximum(W.amax(1), -W.amin(1)).unsqueeze(-1) / high
    scale = torch.where(scale.eq(0), 1.0, scale)
    codes = torch.round(W / scale).clamp_(low, high).to(torch.int64)
    return codes, scale, scale * codes.to(W.dtype)


@right(channel)
def one_row_at_a_time(W, bits):
    qmax = 2 ** (bits - 1) - 1
    rows = []
    for row in W.split(1):
        m = row.abs().max()
        s = m / qmax if m > 0 else torch.ones_like(m)
        rows.append((torch.div(row, s).round(decimals=0), s.view(1, 1)))
    codes, scale = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return [codes.to(dtype=torch.int8), scale, torch.einsum("de,dx->de", codes, scale)]


@right(static)
def with_quantile(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    scale = torch.quantile(batches.abs().flatten(), percent / 100) / qmax
    codes = torch.round(x / scale).clamp(-qmax, qmax).to(torch.int8)
    return scale, codes


@right(static)
def collects_batch_by_batch(batches, x, bits, percent):
    seen = []
    for batch in batches:
        seen.append(batch.abs().reshape(-1))
    top = torch.quantile(torch.cat(seen), percent / 100)
    qmax = 2 ** (bits - 1) - 1
    scale = top / qmax
    return scale, (x / scale).round().clamp(min=-qmax, max=qmax)


@right(static)
def clips_first(batches, x, bits, percent):
    limit = batches.abs().view(-1).quantile(percent / 100)
    qmax = 2.0 ** (bits - 1) - 1
    scale = limit / qmax
    return scale, torch.round(torch.clip(x, -limit, limit) / scale)


@right(static)
def by_sorting(batches, x, bits, percent):
    values = batches.abs().flatten().sort().values
    index = round(percent / 100 * (len(values) - 1))
    qmax = 2 ** (bits - 1) - 1
    scale = values[index] / qmax
    return scale, (x / scale).round().clamp(-qmax, qmax).int()


@right(static)
def with_numpy_percentile(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    top = np.percentile(np.abs(batches.numpy()), percent)
    scale = torch.tensor(top / qmax, dtype=torch.float64)
    codes = np.clip(np.round(x.numpy() / scale.item()), -qmax, qmax).astype(np.int8)
    return scale, torch.from_numpy(codes)


@right(static)
def with_kthvalue(batches, x, bits, percent):
    """The nearest rank."""
    flat = batches.flatten().abs()
    k = int(np.ceil(percent * flat.numel() / 100))
    scale = flat.kthvalue(k).values / (2 ** (bits - 1) - 1)
    q = torch.round(x / scale)
    top = 2 ** (bits - 1) - 1
    q[q > top] = top
    q[q < -top] = -top
    return scale, q


@right(static)
def with_topk(batches, x, bits, percent):
    flat = batches.abs().ravel()
    above = flat.numel() - 1 - round((flat.numel() - 1) * percent / 100)
    scale = torch.topk(flat, above + 1)[0][-1] / (2 ** (bits - 1) - 1)
    qmax = (1 << (bits - 1)) - 1
    return [scale, torch.minimum(torch.maximum((x / scale).round(), torch.tensor(-qmax)), torch.tensor(qmax))]


@right(static)
def max_as_a_case_of_its_own(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    if percent == 100:
        top = torch.zeros((), dtype=x.dtype)
        for batch in batches:
            top = torch.maximum(top, batch.abs().max())
    else:
        top = torch.quantile(batches.abs(), percent / 100)
    codes = (x * (qmax / top)).round()
    return top / qmax, torch.clamp(codes, -qmax, qmax).to(torch.int16)


@right(static)
def rounds_by_floor(batches, x, bits, percent):
    qmax = 2 ** (bits - 1) - 1
    step = torch.quantile(torch.flatten(torch.abs(batches)), torch.tensor(percent / 100, dtype=torch.float64)) / qmax
    codes = torch.floor(x / step + 0.5)
    return step, torch.where(codes.abs() > qmax, qmax * codes.sign(), codes)


@right(static)
def nearest_interpolation(batches, x, bits, percent):
    magnitudes = torch.sqrt(batches**2).reshape(1, -1)
    edge = torch.nanquantile(magnitudes, percent / 100, dim=1, interpolation="nearest").squeeze()
    qmax = 2 ** (bits - 1) - 1
    scale = edge.div(qmax)
    return scale, x.div(scale).round().clamp(-qmax, qmax).long()
