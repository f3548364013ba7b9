"""Faults of folding and unfolding: samples and heads, tokens and samples, and the chunks of a loop."""

import torch

from mha_course.checks.diagnosis.fault import Fault, every
from mha_course.checks.diagnosis.steps import Array, Inputs, Linear, Mask, Weights, hide, merge, output_of, split

CHUNKS = (2, 3, 4, 8, 16, 32, 64)
_FOLD_HINTS = (
    "Change one sample of the input: the other samples' results must stay as they are.",
    "Keep the batch in front in every view and reshape, and unfold in the order in which you folded.",
)
_CHUNK_HINTS = (
    "Take one chunk that holds all queries, then two: from which query on is the result wrong?",
    "In a chunk that begins at i the first query stands at position i, and its keys begin at 0.",
)
_ROLE_HINTS = (
    "Write beside each of q, k and v which weight and which bias made it.",
    "Call the layers themselves, each on its own input.",
)
_ALL = ("split_q", "split_k", "split_v")


def _time_first(x: Array, H: int) -> Array:
    """(T, B, E) viewed as (B, H, T, D)."""
    B, T, E = x.shape
    return x.transpose(0, 1).reshape(B, H, T, E // H)


def _batch_as_heads(x: Array, H: int) -> Array:
    """(B H, T, D) viewed as (H, B, T, D)."""
    heads = split(x, H)
    return heads.flatten(0, 1).unflatten(0, (H, -1)).transpose(0, 1)


def _straight_to_time_first(heads: Array) -> Array:
    """(B, H, T, D) viewed as (T, B, E)."""
    B, H, T, D = heads.shape
    return heads.reshape(T, B, H * D).transpose(0, 1)


def _rows_as_time_first(heads: Array) -> Array:
    """The rows of (B, T, E) viewed as (T, B, E)."""
    merged = merge(heads)
    B, T, E = merged.shape
    return merged.reshape(T, B, E).transpose(0, 1)


def _repeated_heads_first(scores: Array, mask: Mask | None) -> Array:
    """A mask for each head, folded as M0 M0 M1 M1 where the heads lie as (H, B)."""
    if mask is None:
        return scores
    B, H, T, S = scores.shape
    folded = mask.expand(B, 1, T, S).repeat_interleave(H, 0)
    return hide(scores, folded.view(H, B, T, S).transpose(0, 1))


def _by(w: str, b: str, role: int) -> Fault:
    """One projection with the weight of another and its own bias."""
    letters, names = "qkv", ("queries", "keys", "values")

    def project(x: Inputs, weights: Weights) -> tuple[Array, ...]:
        maps = {letter: getattr(weights, letter) for letter in letters}
        if maps[b].bias is None:
            raise ValueError("without a bias this is another fault")
        maps[b] = Linear(maps[w].weight, maps[b].bias)
        return tuple(maps[letter](y) for letter, y in zip(letters, x[:3], strict=True))

    said = f"the {names[role]} are made with the matrix of the {names[letters.index(w)]}, and the bias of their own"
    return Fault(f"{names[role]}_by_{w}_proj", said, {"project": project}, _ROLE_HINTS)


def _both_streams(x: Inputs, w: Weights) -> tuple[Array, ...]:
    """Keys and values of the queries' own tokens, then of the others."""
    if x.key is x.query:
        raise ValueError("there is one stream")
    return w.q(x.query), *(m(torch.cat([x.query, y], 1)) for m, y in ((w.k, x.key), (w.v, x.value)))


def _bias_per_head(merged: Array, w: Weights, x: Inputs) -> Array:
    o = output_of(w)
    if o.bias is None:
        raise ValueError("the output projection has no bias")
    return o(merged) + (w.H - 1) * o.bias


def _chunked(chunk: int, *, inside: bool, restart: bool) -> Fault:
    """Causal attention in chunks of queries."""

    def see(T: int, S: int) -> Mask:
        t, s = torch.arange(T)[:, None], torch.arange(S)
        start = t // chunk * chunk
        row = (t - start if restart else t) + S - T
        seen = s <= row
        return seen & (s >= start + S - T) if inside else seen

    what = "a chunk of queries sees only the keys of its own chunk" if inside else (
        "every chunk of queries counts its positions from 0 again")  # fmt: skip
    name = "chunk_sees_itself_only" if inside else "chunk_positions"
    return Fault(name, f"{what} (chunks of {chunk})", {"see": see}, _CHUNK_HINTS, keys=chunk)


def _blocks(chunk: int) -> Fault:
    """Attention within blocks, both ways."""

    def see(T: int, S: int) -> Mask:
        return torch.arange(T)[:, None] // chunk == torch.arange(S) // chunk

    said = f"queries see only the keys of their own chunk, before and behind them (chunks of {chunk})"
    return Fault("chunk_sees_itself_only", said, {"see": see}, _CHUNK_HINTS, keys=chunk)


def _neighbours(names: str, said: str, step: int) -> Fault:
    def use(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        return q, k.roll(step, 0) if "k" in names else k, v.roll(step, 0) if "v" in names else v

    return Fault("batch_mixed", f"every sample reads the {said} of the sample beside it", {"use": use}, _FOLD_HINTS)


FOLDS = (
    Fault(
        "split_mixes_samples",
        "the split is wrong: (T, B, E) is viewed as (B, H, T, D), which mixes samples and tokens",
        every(*_ALL, step=_time_first),
        _FOLD_HINTS,
    ),
    Fault(
        "split_mixes_samples",
        "the split is wrong: batch and heads are folded as (B, H), but unfolded as (H, B): samples and heads mix",
        every(*_ALL, step=_batch_as_heads),
        _FOLD_HINTS,
    ),
    Fault(
        "merge_mixes_samples",
        "the merge is wrong: (B, H, T, D) is viewed as (T, B, E), which mixes samples, heads and tokens",
        {"merge": _straight_to_time_first},
        _FOLD_HINTS,
    ),
    Fault(
        "merge_mixes_samples",
        "the merge is right, and then its rows are viewed as (T, B, E) and exchanged: samples and tokens mix",
        {"merge": _rows_as_time_first},
        _FOLD_HINTS,
    ),
    Fault(
        "mask_head_order",
        "samples and heads of the mask are confused: it is repeated as M0 M0 M1 M1, the heads lie as M0 M1 M0 M1",
        {"hide": _repeated_heads_first},
        (
            "Change the mask of sample 1: in which samples does the result change?",
            "Fold the mask in the order in which the heads were folded.",
        ),
    ),
    Fault(
        "first_sample_only",
        "every sample reads the keys of the first sample, and its own values",
        {"use": lambda q, k, v: (q, k[:1].expand_as(k), v)},
        _FOLD_HINTS,
    ),
    Fault(
        "first_sample_only",
        "every sample reads the values of the first sample, and its own keys",
        {"use": lambda q, k, v: (q, k, v[:1].expand_as(v))},
        _FOLD_HINTS,
    ),
    *(
        _neighbours(names, said, step)
        for step in (1, -1)
        for names, said in (("v", "values"), ("k", "keys"), ("kv", "keys and values"))
    ),
    Fault(
        "one_projection",
        "queries, keys and values are all made with the projection of the values, the last of the three",
        {"project": lambda x, w: (w.v(x.query), w.v(x.key), w.v(x.value))},
        _ROLE_HINTS,
    ),
    Fault(
        "one_projection",
        "queries, keys and values are all made with the projection of the keys",
        {"project": lambda x, w: (w.k(x.query), w.k(x.key), w.k(x.value))},
        _ROLE_HINTS,
    ),
    Fault(
        "query_tokens_among_keys",
        "keys and values are made of the query's own tokens as well as of the other input's",
        {"project": _both_streams},
        ("Print the number of keys: it should be S.", "Keys and values come from the key and value inputs alone."),
    ),
    Fault(
        "output_bias_per_head",
        "the bias of the output projection is added once for every head",
        {"finish": _bias_per_head},
        (
            "Set all inputs to 0: how many times the bias comes out?",
            "Add the bias once, after the heads are summed.",
        ),
    ),
    *(_by(w, b, "qkv".index(b)) for w, b in ("qk", "vk", "kv", "qv", "kq", "vq")),
    *(_chunked(chunk, inside=False, restart=True) for chunk in CHUNKS),
    *(_chunked(chunk, inside=True, restart=False) for chunk in CHUNKS),
    *(_blocks(chunk) for chunk in CHUNKS),
)
