"""What the names of arguments tell."""

import inspect
import re

_QUERY = frozenset(
    "query queries q x_q xq q_in x target tgt inputs input inp hidden_states hidden x1 tokens embeddings "
    "decoder_hidden src seq z a qs".split()
)
_KEY = frozenset("key keys k x_k xk k_in ks k_input".split())
_VALUE = frozenset("value values v x_v xv v_in val vals vs v_input".split())
_CONTEXT = frozenset(
    "context memory mem enc encoder_hidden_states encoder_output enc_out y x2 x_kv kv source src other cross key_value "
    "key_value_states b ctx keys_values xa".split()
)
LIKELY_SECOND = re.compile(r"^z$|cond|cont?e?xt|mem|enc|cross|source|other", re.IGNORECASE)  # streams, more or less
_NO_TENSOR = re.compile(r"cache|past|prev|state$|need|return|output|use_|is_|causal|dropout|dtype|device|training|"
                        r"scale|block|size|len|num|start|step|idx|index|layer|kind|mode", re.IGNORECASE)  # fmt: skip
_MASK = frozenset(
    "mask valid keep bias attn_bias attention_bias m visible allowed blocked hidden_mask".split()
)  # and all that ends in "mask"


def role_of(name: str, before: list[str]) -> str:
    """The role that a name tells, with the roles of the arguments before it; "" if it tells none."""
    lowered = name.lower()
    for role, names in (("mask", _MASK), ("key", _KEY), ("value", _VALUE)):
        if lowered in names or (role == "mask" and lowered.endswith("mask")):
            return role
    if lowered in _QUERY and "query" not in before:
        return "query"
    if lowered in _CONTEXT and "context" not in before:
        return "context"
    return ""


def may_be_stream(p: inspect.Parameter) -> bool:
    """Whether an optional argument may be a tensor of tokens: no flag, number, mask or cache."""
    kind = str(p.annotation)
    plain = "Tensor" not in kind and re.search(r"\b(bool|int|float|str)\b", kind)
    return p.default is None and p.kind is not p.POSITIONAL_ONLY and not plain and not _NO_TENSOR.search(p.name)
