"""The ways to read a module's weights as four projections: the usual one first, then others that are as valid."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mha_course.checks.diagnosis import projections
from mha_course.checks.diagnosis.projections import Found
from mha_course.checks.diagnosis.roles import Roles, assigned, shared, unstacked, with_one_output
from mha_course.checks.diagnosis.steps import Linear, Weights

_NAMED = "as its name says, "
MOST = 400  # ways that are tried


class Reading(NamedTuple):
    """One way to read the weights.

    Attributes:
        weights: the four maps, each cut as `steps.split` cuts.
        remark: what is to be said about the layout, "" for the usual one.
        fault: name of a fault that the shapes alone show, "" for none.
        used: names of the maps that it reads.
        shared: whether one map serves for several.
    """

    weights: Weights
    remark: str
    fault: str = ""
    used: frozenset[str] = frozenset()
    shared: bool = False

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of the inputs query, key and value."""
        w = self.weights
        return w.q.weight.shape[0], w.k.weight.shape[0], w.v.weight.shape[0]


class Unreadable(Exception):
    """The module's weights cannot be read as four projections; the message says why."""


def _reorder(linear: Linear, order: Tensor) -> Linear:
    return Linear(linear.weight[:, order], None if linear.bias is None else linear.bias[order])


def _join(maps: list[Linear]) -> Linear:
    """Maps of one role, one a head, side by side."""
    biases = [m.bias for m in maps if m.bias is not None]
    return Linear(torch.cat([m.weight for m in maps], -1), torch.cat(biases) if len(biases) == len(maps) else None)


def _stacked(maps: list[Linear]) -> Linear | None:
    """Output maps, one a head, as one."""
    if len({m.weight.shape[1] for m in maps}) > 1:
        return None
    biases = [m.bias for m in maps if m.bias is not None]
    return Linear(torch.cat([m.weight for m in maps]), torch.stack(biases).sum(0) if biases else None)


def _plain(found: Found, flipped: bool, made: str, H: int) -> Linear:
    """A found map as (in, out)."""
    w = found.weight
    if w.ndim == 3 and made == "o":  # (H, D, E), or (E, H, D)
        w = w.flatten(0, 1) if (w.shape[0] == H) != flipped else w.flatten(1).T
    elif w.ndim == 3:  # (H, E, D), or (E, H, D)
        w = w.transpose(0, 1).flatten(1) if (w.shape[0] == H) != flipped else w.flatten(1)
    elif found.bare and flipped:
        w = w.T
    return Linear(w, found.bias)


def _parts(fused: Linear, letters: str, H: int, Hkv: int) -> Iterator[tuple[dict[str, Linear], str]]:
    """The maps that a fused one holds: by its name's order, then by others; heads outside or inside."""
    width, n = fused.weight.shape[1], len(letters)
    heads = {"q": H, "k": Hkv, "v": Hkv}
    total = sum(heads[letter] for letter in letters)
    if width % total:
        return
    D = width // total
    for order in sorted(itertools.permutations(letters), key=lambda order: "".join(order) != letters):
        said = f"the fused projection holds {', '.join(order)} in this order, another layout of weights"
        if "".join(order) == letters:
            said = "" if letters in ("qkv", "kv") else f"{_NAMED}{said}"
        columns = torch.arange(width).split([heads[letter] * D for letter in order])
        yield {letter: _reorder(fused, c) for letter, c in zip(order, columns, strict=True)}, said
    if len({heads[letter] for letter in letters}) > 1:
        return
    per = heads[letters[0]]
    sizes, names = {"p": n, "h": per, "d": D}, {"p": "q, k, v"[: 3 * n - 2], "h": "head", "d": "feature"}
    if letters != "qkv":
        names["p"] = ", ".join(letters)
    for axes in itertools.permutations("phd"):
        if axes == ("p", "h", "d"):
            continue
        laid = torch.arange(width).view([sizes[axis] for axis in axes])
        index = laid.permute([axes.index(axis) for axis in "phd"])
        said = f"the fused projection has another layout: ({'; '.join(names[axis] for axis in axes)})"
        for places in itertools.permutations(range(n)):
            parts = {letters[i]: _reorder(fused, index[places[i]].flatten()) for i in range(n)}
            yield parts, said


def _interleaved(linear: Linear, H: int) -> Linear:
    """The map whose feature i belongs to head i % H, reordered so that it belongs to head i // D."""
    return _reorder(linear, torch.arange(linear.weight.shape[1]).view(-1, H).T.flatten())


def _feature_major(w: Weights, *, merged: bool) -> Weights | None:
    """The weights if feature i belongs to head i % H, in q, k and v, and in the merged heads as well."""
    if w.H == 1 or any(m.weight.shape[1] % h for m, h in ((w.q, w.H), (w.k, w.Hkv), (w.v, w.Hkv))):
        return None
    o = w.o
    if o is not None and merged:
        o = Linear(o.weight[torch.arange(len(o.weight)).view(-1, w.H).T.flatten()], o.bias)
    q, k, v = (_interleaved(m, h) for m, h in ((w.q, w.H), (w.k, w.Hkv), (w.v, w.Hkv)))
    return Weights(q, k, v, o, w.H, w.Hkv)


def _counts(module: nn.Module, roles: dict[str, list[Found]], stated: int | None) -> list[tuple[int, str]]:
    """Numbers of heads to try, the likeliest first."""
    told = stated or projections.count(module, "heads")
    several = len(roles.get("q", []))
    if several > 1:
        return [(several, "")]
    if told:
        return [(told, "")]
    for found in roles.get("q", []):
        if found.weight.ndim == 3:
            sizes = found.weight.shape
            return [(sizes[0], ""), (sizes[1], "")]
    if not roles:
        return []
    widths = [found.weight.shape for group in roles.values() for found in group]
    width = min(min(shape) for shape in widths)
    divisors = [h for h in range(1, width + 1) if width % h == 0]
    return [(h, f"{h} heads were assumed, as no attribute tells their number") for h in divisors]


def readings(module: nn.Module, num_heads: int | None = None) -> list[Reading]:
    """All ways to read the weights of a module, at most `MOST`.

    Raises:
        Unreadable: the module has no projections of queries, keys and values that could be told.
    """
    maps = unstacked(projections.linears(module))
    if not maps:
        raise Unreadable("it holds no linear maps")
    found = _all(module, assigned(maps), num_heads) or [
        reading._replace(shared=True) for reading in _all(module, shared(maps), num_heads)
    ]
    if not found:
        names = ", ".join(f.name for f in maps)
        raise Unreadable(f"its linear maps ({names}) cannot be read as projections of queries, keys and values")
    return _sorted(found)


def _all(module: nn.Module, ways: Iterator[tuple[Roles, str]], num_heads: int | None) -> list[Reading]:
    """All readings of these assignments, at most `MOST`."""
    found: list[Reading] = []
    for given, said in ways:
        for one in with_one_output(given):
            for H, heads_said in _counts(module, one, num_heads):
                for flips in ((False, False), (False, True), (True, False), (True, True)):
                    if any(flips) and not any(f.bare for group in one.values() for f in group):
                        continue
                    for reading in _read(module, one, H, flips):
                        remark = "; ".join(x for x in (heads_said, said, reading.remark) if x)
                        used = frozenset(f.name for group in one.values() for f in group)
                        found.append(reading._replace(remark=remark, used=used))
                        if len(found) >= MOST:
                            return found
    return found


def _sorted(found: list[Reading]) -> list[Reading]:
    """The usual ones first, and those whose order the name tells."""
    return sorted(found, key=lambda reading: reading.remark != "" and not reading.remark.startswith(_NAMED))


def _read(module: nn.Module, roles: dict[str, list[Found]], H: int, flips: tuple[bool, bool]) -> Iterator[Reading]:
    for f in roles.get("q", []):
        if f.weight.ndim == 3 and f.weight.shape[0 if (f.weight.shape[0] == H) != flips[0] else 1] != H:
            return  # the axis that would count the heads does not
    outputs = roles.get("o", [])
    o = _stacked([_plain(found, flips[1], "o", H) for found in outputs]) if outputs else None
    fused = [name for name in roles if len(name) > 1]
    if any(len({f.weight.shape for f in roles.get(r, [])}) > 1 for r in "qkv"):
        return  # not one map a head
    separate = {r: _join([_plain(f, flips[0], r, H) for f in roles[r]]) for r in "qkv" if r in roles}
    whole = _plain(roles[fused[0]][0], flips[0], "", H) if fused else None
    Hkv = projections.count(module, "groups") or _groups(separate, fused[0] if fused else "", whole, o, H) or H
    groups: list[tuple[dict[str, Linear], str]]
    if not fused:
        groups = [(separate, "")]
    elif whole is not None and len(fused) == 1 and len(roles[fused[0]]) == 1:
        groups = [({**separate, **parts}, said) for parts, said in _parts(whole, fused[0], H, Hkv)]
    else:
        return
    for maps, said in groups:
        if set(maps) != set("qkv"):
            return
        for reading in _fitting(maps, o, H, Hkv):
            yield reading._replace(remark="; ".join(x for x in (said, reading.remark) if x))


def _groups(separate: dict[str, Linear], letters: str, fused: Linear | None, o: Linear | None, H: int) -> int | None:
    """The number of heads of the keys that the widths of the maps tell, if they tell one."""
    if "q" in separate:
        D, rest = separate["q"].weight.shape[1] / H, 0.0
    elif o is not None:
        D, rest = o.weight.shape[0] / H, H
    else:
        return None
    if "k" in separate:
        heads = separate["k"].weight.shape[1] / D
    elif fused is not None and "k" in letters and "v" in letters:
        heads = (fused.weight.shape[1] / D - rest) / 2
    else:
        return None
    return int(heads) if heads == int(heads) and heads >= 1 and H % heads == 0 else None


def _fitting(maps: dict[str, Linear], o: Linear | None, H: int, Hkv: int) -> Iterator[Reading]:
    """The maps as weights, if their sizes fit each other."""
    q, k, v = (maps[letter] for letter in "qkv")
    if any(m is not None and m.bias is not None and len(m.bias) != m.weight.shape[1] for m in (q, k, v, o)):
        return
    widths = [m.weight.shape[1] for m in (q, k, v)]
    small = all(m.weight.shape == q.weight.shape for m in (k, v)) and q.weight.shape[0] == q.weight.shape[1]
    if small and o is not None and o.weight.shape[0] == H * widths[0] and H > 1:
        wide = Weights(_repeated(q, H), _repeated(k, H), _repeated(v, H), o, H, Hkv)
        yield Reading(wide, "", "heads_share_small_projection")
        return
    if widths[0] % H or widths[1] % Hkv or widths[2] % Hkv or H % Hkv or widths[0] // H != widths[1] // Hkv:
        return
    if o is not None and o.weight.shape[0] != widths[2] // Hkv * H:
        return
    weights = Weights(q, k, v, o, H, Hkv)
    yield Reading(weights, "")
    for merged in (True, False):
        other = _feature_major(weights, merged=merged)
        if other is not None:
            also = "" if merged else " in q, k and v, and to head i // D where they are merged"
            yield Reading(other, f"its weights have another layout: feature i belongs to head i % H{also}")


def _repeated(linear: Linear, H: int) -> Linear:
    """One small map that every head uses, as a map of all heads."""
    bias = None if linear.bias is None else linear.bias.repeat(H)
    return Linear(torch.block_diag(*[linear.weight] * H), bias)
