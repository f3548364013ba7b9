"""Right solutions of the exercises of notebook 15, in many styles."""

import math
from collections import OrderedDict

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.checks.bank_exercises import right

flops, roofline = "attention_flops", "roofline_seconds"


@right(flops)
def with_formulas(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 2 * B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@right(flops)
def with_heads(B, S, E, H):
    D = E // H
    per_head = 2 * S * D * S
    proj = 2 * (B * S) * E * (H * D)
    return {
        "q_proj": proj,
        "k_proj": proj,
        "v_proj": proj,
        "scores": B * H * per_head,
        "weighted sum": B * H * per_head,
        "out_proj": proj,
    }


@right(flops)
def as_floats(B, S, E, H):
    D = E / H
    proj = 2.0 * B * S * E**2
    return {
        "q_proj": proj,
        "k_proj": proj,
        "v_proj": proj,
        "scores": 2.0 * B * H * S**2 * D,
        "weighted sum": 2.0 * B * H * S**2 * D,
        "out_proj": proj,
    }


@right(flops)
def with_underscore(B, S, E, H):
    def product(n, k, m, batch=1):
        return 2 * batch * n * k * m

    D = E // H
    return dict(
        q_proj=product(B * S, E, E),
        k_proj=product(B * S, E, E),
        v_proj=product(B * S, E, E),
        scores=product(S, D, S, batch=B * H),
        weighted_sum=product(S, S, D, batch=B * H),
        out_proj=product(B * S, E, E),
    )


@right(flops)
def in_a_loop(B, S, E, H):
    steps = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        steps[name] = 2 * B * S * E * E
    for name in ("scores", "weighted sum"):
        steps[name] = 2 * B * S * S * E
    return steps


@right(flops)
def with_shapes(B, S, E, H):
    D = E // H
    shapes = OrderedDict(
        [
            ("q_proj", (B, S, E, E)),
            ("k_proj", (B, S, E, E)),
            ("v_proj", (B, S, E, E)),
            ("scores", (B * H, S, D, S)),
            ("weighted sum", (B * H, S, S, D)),
            ("out_proj", (B, S, E, E)),
        ]
    )
    return OrderedDict((name, 2 * math.prod(shape)) for name, shape in shapes.items())


@right(flops)
def with_numpy(B, S, E, H):
    counts = 2 * np.array([B * S * E * E] * 3 + [B * S * S * E] * 2 + [B * S * E * E])
    return dict(zip(["q_proj", "k_proj", "v_proj", "scores", "weighted sum", "out_proj"], counts, strict=True))


@right(flops)
def with_torch(B, S, E, H):
    projection = torch.tensor([B, S, E, E]).prod() * 2
    scores = torch.tensor([B, H, S, S, E // H]).prod() * 2
    return {
        **{f"{x}_proj": projection for x in "qkv"},
        "scores": scores,
        "weighted sum": scores,
        "out_proj": projection,
    }


@right(flops)
def with_the_counter(B, S, E, H):
    def count(fn):
        with FlopCounterMode(display=False) as counter:
            fn()
        return counter.get_total_flops()

    x, W = torch.empty(B, S, E), torch.empty(E, E)
    q = torch.empty(B, H, S, E // H)
    weights = torch.empty(B, H, S, S)
    proj = count(lambda: F.linear(x, W))
    return {
        "q_proj": proj,
        "k_proj": proj,
        "v_proj": proj,
        "scores": count(lambda: q @ q.mT),
        "weighted sum": count(lambda: weights @ q),
        "out_proj": proj,
    }


@right(flops)
def by_loops(B, S, E, H):
    D = E // H
    scores = 0
    for _ in range(B * H):
        for _ in range(S):
            for _ in range(S):
                scores += D + D
    proj = sum(2 * E for _ in range(B * S) for _ in range(E))
    return {"scores": scores, "weighted sum": scores, "q_proj": proj, "k_proj": proj, "v_proj": proj, "out_proj": proj}


@right(roofline)
def longer_of_two(flops, bytes_moved, peak, bandwidth):
    t_compute = flops / peak
    t_memory = bytes_moved / bandwidth
    if t_compute > t_memory:
        return t_compute, "compute"
    return t_memory, "memory"


@right(roofline)
def with_max(flops, bytes_moved, peak, bandwidth):
    return max((flops / peak, "compute"), (bytes_moved / bandwidth, "memory"))


@right(roofline)
def with_a_dict(flops, bytes_moved, peak, bandwidth):
    times = {"compute": flops / peak, "memory": bytes_moved / bandwidth}
    bound = max(times, key=times.get)
    return times[bound], bound


@right(roofline)
def with_intensity(flops, bytes_moved, peak, bandwidth):
    intensity = flops / bytes_moved
    ridge = peak / bandwidth
    bound = "compute" if intensity >= ridge else "memory"
    seconds = flops / peak if bound == "compute" else bytes_moved / bandwidth
    return seconds, bound


@right(roofline)
def with_attainable(flops, bytes_moved, peak, bandwidth):
    if flops == 0:
        return bytes_moved / bandwidth, "memory"
    attainable = min(peak, bandwidth * flops / bytes_moved)
    return flops / attainable, "compute" if attainable == peak else "memory"


@right(roofline)
def with_numpy_max(flops, bytes_moved, peak, bandwidth):
    times = np.array([flops, bytes_moved]) / np.array([peak, bandwidth])
    return times.max(), ("compute", "memory")[int(times.argmax())]


@right(roofline)
def with_tensors(flops, bytes_moved, peak, bandwidth):
    t = torch.tensor([flops / peak, bytes_moved / bandwidth], dtype=torch.float64)
    seconds, i = t.max(dim=0)
    return seconds, ["compute", "memory"][i]


@right(roofline)
def as_a_list(flops, bytes_moved, peak, bandwidth):
    seconds = max(flops / peak, bytes_moved / bandwidth)
    bound = ["memory", "compute"][seconds == flops / peak]
    return [seconds, bound]


@right(roofline)
def with_capitals(flops, bytes_moved, peak, bandwidth):
    compute, memory = flops / peak, bytes_moved / bandwidth
    return max(compute, memory), "Compute" if compute > memory else "Memory"


@right(roofline)
def sorted_times(flops, bytes_moved, peak, bandwidth):
    times = sorted([(flops * 1.0 / peak, "compute"), (bytes_moved * 1.0 / bandwidth, "memory")])
    return tuple(times[-1])


@right(roofline)
def cross_product(flops, bytes_moved, peak, bandwidth):
    if flops * bandwidth > bytes_moved * peak:
        return flops / peak, "compute"
    else:
        return bytes_moved / bandwidth, "memory"
