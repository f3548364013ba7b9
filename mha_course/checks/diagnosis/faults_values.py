"""Faults of what meets what: queries, keys and values in the scores and in the sum."""

import torch

from mha_course.checks.diagnosis.fault import Fault

VALUES = (
    Fault(
        "input_ignored",
        "the result does not depend on the input",
        {"mix": lambda weights, v, mask: torch.zeros_like(weights @ v)},
        ("Change the input: does anything change?", "Let the weighted sum of the values be the result."),
    ),
    Fault(
        "weights_transposed",
        "the weights are transposed before they meet the values",
        {"mix": lambda weights, v, mask: weights.mT @ v},
        ("Sum the weights that the values meet, over the last axis: are those sums 1?", "A row of them is a query."),
    ),
    Fault(
        "returns_keys",
        "the weights meet the keys, not the values",
        {"use": lambda q, k, v: (q, k, k)},
        ("Change the values: does the result change?", "The weighted sum is one of values."),
    ),
    Fault(
        "keys_values_swapped",
        "keys and values have changed places",
        {"use": lambda q, k, v: (q, v, k)},
        (
            "Write beside each of q, k and v where it is used.",
            "Queries meet keys in the scores; the weights meet values.",
        ),
    ),
    Fault(
        "scores_from_queries",
        "the queries meet the queries in the scores, not the keys",
        {"use": lambda q, k, v: (q, q, v)},
        ("Change the keys: do the scores change?", "The scores are products of queries and keys."),
    ),
    Fault(
        "scores_from_values",
        "the queries meet the values in the scores, not the keys",
        {"use": lambda q, k, v: (q, v, v)},
        ("Change the keys: do the scores change?", "The scores are products of queries and keys."),
    ),
    Fault(
        "cosine_scores",
        "queries and keys are brought to length 1 before the product: these are cosines",
        {
            "use": lambda q, k, v: (
                torch.nn.functional.normalize(q, dim=-1),
                torch.nn.functional.normalize(k, dim=-1),
                v,
            )
        },
        ("Double the keys: the scores should double.", "Take the product of queries and keys as they are."),
    ),
    Fault(
        "queries_keys_swapped",
        "queries and keys have changed places: the scores are transposed",
        {"use": lambda q, k, v: (k, q, v)},
        ("Make one row of q very large: does one row of your scores become large?", "A row of the scores is a query."),
    ),
)
