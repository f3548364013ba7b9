"""Faults of the projections: what they read, and which of them is used."""

from mha_course.checks.diagnosis.fault import Fault
from mha_course.checks.diagnosis.steps import Array, Inputs, Step, Weights, output_of


def _source(name: str, said: str, q: str, k: str, v: str) -> Fault:
    """Projections made from other inputs: each of q, k, v from the named one."""

    def project(x: Inputs, w: Weights) -> tuple[Array, Array, Array]:
        return w.q(getattr(x, q)), w.k(getattr(x, k)), w.v(getattr(x, v))

    hints = (
        "Change the key and value inputs alone: which of q, k and v change?",
        "The query asks, the others answer: q from the query, k from the key, v from the value.",
    )
    return Fault(name, said, {"project": project}, hints)


SOURCES = (
    _source(
        "cross_reads_query_stream",
        "keys and values are made from the query: the other input is not read",
        "query",
        "query",
        "query",
    ),
    _source("keys_from_query", "the keys are made from the query input", "query", "query", "value"),
    _source("values_from_query", "the values are made from the query input", "query", "key", "query"),
    _source(
        "values_from_key", "the values are made from the key input: the value input is not read", "query", "key", "key"
    ),
    _source(
        "keys_from_value",
        "the keys are made from the value input: the key input is not read",
        "query",
        "value",
        "value",
    ),
    _source("keys_values_exchanged", "the key and value inputs have changed places", "query", "value", "key"),
    _source(
        "queries_from_key",
        "the queries are made from the key input: the query input is not read",
        "key",
        "key",
        "value",
    ),
    _source(
        "query_key_exchanged", "the query and key inputs have changed places: the context asks", "key", "query", "query"
    ),
)


def _role(name: str, said: str, q: str, k: str, v: str) -> Fault:
    """Projections made by other maps: each of q, k, v by the named one."""

    def project(x: Inputs, w: Weights) -> tuple[Array, Array, Array]:
        return getattr(w, q)(x.query), getattr(w, k)(x.key), getattr(w, v)(x.value)

    hints = (
        "Write beside each of q, k and v which projection made it.",
        "Queries meet keys in the scores, and the weights meet values: each of the three has a projection of its own.",
    )
    return Fault(name, said, {"project": project}, hints)


def _kept(*names: str) -> Step:
    """The projections but for the named ones, whose input is used as it is."""

    def project(x: Inputs, w: Weights) -> tuple[Array, ...]:
        triple = zip("qkv", x[:3], strict=True)
        return tuple(y if name in names else getattr(w, name)(y) for name, y in triple)

    return project


def _unbiased(*names: str) -> Step:
    def project(x: Inputs, w: Weights) -> tuple[Array, ...]:
        maps = {name: getattr(w, name) for name in "qkv"}
        maps = {name: m._replace(bias=None) if name in names else m for name, m in maps.items()}
        return tuple(maps[name](y) for name, y in zip("qkv", x[:3], strict=True))

    return project


_MISSING_HINTS = (
    "Does the result change with the weights of every projection?",
    "Each of q, k and v is its input times a matrix of its own, and the merged heads meet the last one.",
)
_BIAS_HINTS = (
    "Does the result change with the bias of every projection?",
    "Call the layer itself instead of multiplying by its weight.",
)
ADDED = Fault(
    "query_added",
    "the input is added to the result",
    {"finish": lambda out, w, x: (out if w is None or w.o is None else w.o(out)) + x.query},
    (
        "Make the output projection 0: what comes out?",
        "A residual connection is part of the block around attention: leave it to the block.",
    ),
)
ROLES = (
    ADDED,
    Fault(
        "output_projection_before_merge",
        "the output projection acts on the values, before they are mixed, and the merged heads are the result",
        {
            "project": lambda x, w: (w.q(x.query), w.k(x.key), output_of(w)(w.v(x.value))),
            "finish": lambda merged, w, x: merged,
        },
        ("Which projection comes last?", "Mix the values first, merge the heads, then use the output projection."),
    ),
    Fault(
        "no_output_projection",
        "the output projection is not used: the merged heads are returned as they are",
        {"finish": lambda merged, w, x: merged},
        _MISSING_HINTS,
    ),
    Fault(
        "output_projection_twice",
        "the output projection is used twice",
        {"finish": lambda merged, w, x: output_of(w)(output_of(w)(merged))},
        _MISSING_HINTS,
    ),
    _role("keys_by_q_proj", "the keys are made with the projection of the queries", "q", "q", "v"),
    _role("keys_by_v_proj", "the keys are made with the projection of the values", "q", "v", "v"),
    _role("values_by_k_proj", "the values are made with the projection of the keys", "q", "k", "k"),
    _role("values_by_q_proj", "the values are made with the projection of the queries", "q", "k", "q"),
    _role("queries_by_k_proj", "the queries are made with the projection of the keys", "k", "k", "v"),
    _role("queries_by_v_proj", "the queries are made with the projection of the values", "v", "k", "v"),
    _role("one_projection", "queries, keys and values are all made with the projection of the queries", "q", "q", "q"),
    _role("queries_keys_swapped", "the projections of queries and keys have changed places", "k", "q", "v"),
    _role("keys_values_swapped", "the projections of keys and values have changed places", "q", "v", "k"),
    _role("queries_values_swapped", "the projections of queries and values have changed places", "v", "k", "q"),
    Fault(
        "no_projections",
        "queries, keys and values are the inputs as they are: no projection is used",
        {"project": _kept("q", "k", "v")},
        _MISSING_HINTS,
    ),
    Fault(
        "no_query_projection",
        "the queries are the input as it is, their projection is not used",
        {"project": _kept("q")},
        _MISSING_HINTS,
    ),
    Fault(
        "no_key_projection",
        "the keys are the input as it is, their projection is not used",
        {"project": _kept("k")},
        _MISSING_HINTS,
    ),
    Fault(
        "no_value_projection",
        "the values are the input as it is, their projection is not used",
        {"project": _kept("v")},
        _MISSING_HINTS,
    ),
    Fault("bias_ignored", "the bias of the queries' projection is not used", {"project": _unbiased("q")}, _BIAS_HINTS),
    Fault("bias_ignored", "the bias of the values' projection is not used", {"project": _unbiased("v")}, _BIAS_HINTS),
    Fault(
        "bias_ignored",
        "the biases of queries, keys and values are not used",
        {"project": _unbiased("q", "k", "v")},
        _BIAS_HINTS,
    ),
    Fault(
        "bias_ignored",
        "the bias of the output projection is not used",
        {"finish": lambda merged, w, x: output_of(w)._replace(bias=None)(merged)},
        _BIAS_HINTS,
    ),
    Fault(
        "bias_ignored",
        "no bias is used",
        {"project": _unbiased("q", "k", "v"), "finish": lambda merged, w, x: output_of(w)._replace(bias=None)(merged)},
        _BIAS_HINTS,
    ),
)
