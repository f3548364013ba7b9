"""Find the linear maps of a module, and what their names say they are for."""

import math
import re
from typing import Any, NamedTuple

from torch import Tensor, nn


class Found(NamedTuple):
    """A linear map that a module holds: its name, role ("q", "k", "v", "o", "qkv", "kv" or ""), and numbers.

    Attributes:
        name: as the module names it.
        role: the letters of what it makes, in the order of the name; "" if the name does not say.
        weight: (in, out); as it is if bare.
        bias: (out,) or None.
        bare: whether it is a parameter of its own and not a layer's: it may be used as x @ W, or as x @ W.T.
    """

    name: str
    role: str
    weight: Tensor
    bias: Tensor | None
    bare: bool


_AFTER = r"(_?(w|proj|projection|lin|linear|layer|map|net|fc|s|transform|mat|matrix|\d))*$"
_BEFORE = r"^(w|to|fc|x|linear|proj|lin|p|in_proj)?_?"
_WORDS = (
    (r"qkv|query_?key_?value|c_?attn|in_?proj$", "qkv"),
    (r"kqv", "kqv"),
    (r"qvk", "qvk"),
    (r"vqk", "vqk"),
    (r"kv|key_?value", "kv"),
    (_BEFORE + "q(s|uer(y|ies))?" + _AFTER, "q"),
    (r"quer", "q"),
    (_BEFORE + "k(s|eys?)?" + _AFTER, "k"),
    (r"key", "k"),
    (_BEFORE + "v(s|al(ue)?s?)?" + _AFTER, "v"),
    (r"val", "v"),
    (r"out|unify|merge|combine|dense|c_?proj|final|concat|mix|back", "o"),
    ("(?!pos)" + _BEFORE + "o" + _AFTER, "o"),
    (r"^(proj(ection)?|fc|linear|lin|w)$", "o"),
)


def role(name: str) -> str:
    """The role that a dotted name tells, "" if it tells none; its last telling part counts."""
    parts = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).lower() for part in name.split(".")]
    for part in reversed(parts):
        part = re.sub(r"_?(weight|bias|kernel)$", "", part)
        for pattern, letters in _WORDS:
            if part and not part.isdigit() and re.search(pattern, part):
                return letters
    return ""


def _is_bias(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return "bias" in last or re.match(r"b_?([qkvo]|out)(_|$)", last) is not None


def _without_bias(name: str) -> str:
    return re.sub(r"\bb_?(?=[qkvo](_|$)|out)|_?bias_?", "", name)


def is_matrix(p: Tensor) -> bool:
    """Whether a parameter may hold maps, and is no row of numbers, say one per head."""
    return p.ndim >= 2 and (p.numel() == 0 or sum(n > 1 for n in p.shape) > 1)


def linears(module: nn.Module) -> list[Found]:
    """All linear maps in a module, in its order: nn.Linear, layers like GPT-2's Conv1D, bare parameters.

    A bare parameter has its own shape as weight, whichever side it is used from.
    """
    taken: set[int] = set()
    found = []
    for path, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        weight = own.get("weight")
        kind = attribute(layer, "original_name") or type(layer).__name__  # the former of a scripted one
        if weight is not None and re.fullmatch(r"Conv[1-3]d", kind):
            if math.prod(weight.shape[2:]) > 1 or attribute(layer, "groups") != 1:
                taken |= {id(p) for p in own.values()}  # mixes tokens, or not all channels
                continue
            weight = weight.flatten(1)  # of size 1, so a linear map of the channels
        if not path or weight is None or weight.ndim != 2 or set(own) - {"weight", "bias"}:
            continue
        if isinstance(layer, nn.Embedding | nn.Bilinear):
            taken.add(id(weight))
            continue
        bias = own.get("bias")
        out_first = isinstance(layer, nn.Linear) or kind in ("Linear", "Conv1d", "Conv2d")
        out_first |= bias is not None and weight.shape[1] != len(bias)
        taken |= {id(p) for p in own.values()}
        found.append(Found(path, role(path), weight.mT if out_first else weight, bias, False))
    bare = [(name, p) for name, p in module.named_parameters() if id(p) not in taken]
    largest: dict[str, int] = {}
    for name, p in bare:
        largest[_stem(name)] = max(largest.get(_stem(name), 0), p.ndim)
    added = [(name, p) for name, p in bare if p.ndim == 1 or _is_bias(name) or p.ndim < largest[_stem(name)]]
    biases = {role(_without_bias(name)): p.flatten() for name, p in added}
    stems = {_stem(name): p.flatten() for name, p in added}
    for name, p in bare:
        if p.ndim in (2, 3) and is_matrix(p) and not any(p is bias for _, bias in added):
            made = role(name)
            bias = biases.get(made) if made else None
            found.append(Found(name, made, p, stems.get(_stem(name)) if bias is None else bias, True))
    return _with_parts([*found, *_again(module, found)], biases)


def _stem(name: str) -> str:
    """What a weight's and its bias's name have in common: "W" and "b", "proj.weight" and "proj.bias"."""
    return re.sub(r"weights?|kernels?|bias(es)?|(?<![a-z])[wb](?![a-z])", "", name.lower())


def _again(module: nn.Module, found: list[Found]) -> list[Found]:
    """Maps under the other names that a module has for them, if these tell a role that is missing."""
    roles = {one.role for one in found}
    by_path = {one.name: one for one in found}
    paths: dict[int, list[str]] = {}
    for holders in (module.named_modules(remove_duplicate=False), module.named_parameters(remove_duplicate=False)):
        for path, thing in holders:
            paths.setdefault(id(thing), []).append(path)
    more = []
    for names in paths.values():
        first = next((by_path[name] for name in names if name in by_path), None)
        for name in names:
            made = role(name)
            if first is not None and name not in by_path and made and made not in roles:
                roles.add(made)
                more.append(first._replace(name=name, role=made))
    return more


def _with_parts(found: list[Found], biases: dict[str, Tensor]) -> list[Found]:
    """Maps with the biases that one parameter holds for several of them."""
    roles = {one.role for one in found}
    parts: dict[str, Tensor] = {}
    for letters, bias in biases.items():
        if len(letters) > 1 and letters not in roles and len(bias) % len(letters) == 0:
            parts |= dict(zip(letters, bias.chunk(len(letters)), strict=True))
    return [one._replace(bias=parts[one.role]) if one.bias is None and one.role in parts else one for one in found]


def attribute(module: Any, name: str) -> Any:
    """An attribute, None if there is none; a module may raise what it likes when asked."""
    try:
        return getattr(module, name, None)
    except Exception:
        return None


_COUNTS = {
    "heads": ("num_heads", "n_heads", "n_head", "nheads", "nhead", "num_attention_heads", "heads", "head_count",
              "number_of_heads", "h", "H", "nh", "n_h"),
    "groups": ("num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head", "kv_heads", "Hkv", "h_kv", "n_groups"),
}  # fmt: skip


def _tellers(module: nn.Module) -> list[Any]:
    """The layers of a module, then the objects in which a layer keeps its sizes."""
    layers = list(module.modules())
    kept = (attribute(layer, name) for layer in layers for name in ("config", "cfg", "args", "hparams"))
    return [*layers, *(sizes for sizes in kept if sizes is not None and not isinstance(sizes, nn.Module))]


def count(module: nn.Module, kind: str) -> int | None:
    """The number of "heads", or of "groups" of keys and values, that an attribute of the module tells."""
    for name in _COUNTS[kind]:
        for layer in _tellers(module):
            value = attribute(layer, name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
