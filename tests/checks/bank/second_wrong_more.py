"""Wrong functions of the second bank."""

from . import second_functions as f
from .item import Item

SECOND_WRONG_FUNCTIONS: list[Item] = []


def _add(factory, slip, *fault, said, also=(), stated=None):
    fn = factory(slip)
    SECOND_WRONG_FUNCTIONS.append(Item(fn.__name__, lambda: fn, fault, tuple(also), said, stated or {}, "function"))


_add(f.tiled, "tail", "last_tile_lost", said="the loop stops before the last block")
_add(f.tiled, "total", "total_not_rescaled", said="the total is not rescaled at a new maximum")
_add(f.tiled, "acc", "accumulator_not_rescaled", said="the accumulator is not rescaled at a new maximum")
_add(f.tiled, "early", "other_divided_in_every_tile", said="divided by the total in every block",
     also=["divided_per_tile", "tiles_averaged"])  # fmt: skip
_add(f.token_loop, "row0", "mask_first_row", said="the first query's row of the mask for all")
_add(f.token_loop, "drop_last", "other_last_visible_key_lost", said="the last visible key is not read",
     also=["mask_last_key_only", "last_key_lost", "last_tile_lost"])  # fmt: skip
_add(f.token_loop, "unsorted", "other_values_not_selected", said="keys are selected, values are the first ones",
     also=["values_not_selected"])  # fmt: skip
_add(f.fused_gemm, "gentle", "mask_fill_weak", said="minus five")
_add(f.fused_gemm, "times", "scale_inverted", said="alpha is the root")
_add(f.fused_gemm, "length", "scale_by_queries", said="root of the number of queries")
_add(f.fused_gemm, "beta", "mask_ignored", said="beta=0 leaves the mask out")
_add(f.by_logsumexp, "all", "softmax_over_all", said="over queries and keys together")
_add(f.by_logsumexp, "column", "softmax_over_queries", said="over the queries")
_add(f.by_logsumexp, "head", "softmax_over_heads", said="over the heads")
_add(f.renormalised, "as_is", "mask_after_softmax", said="the sum is not put right")
_add(f.renormalised, "column", "other_mask_after_softmax_columns", said="columns, not rows, are made to sum to one",
     also=["mask_after_softmax"])  # fmt: skip
_add(f.renormalised, "turned", "weights_transposed", said="the transpose of the weights, where it fits")
_add(f.by_distance, "kernel", "other_gaussian_kernel", said="the keys' lengths are left out",
     also=["gaussian_kernel", "distance_scores"])  # fmt: skip
_add(f.base_two, "nolog", "other_base_two", said="powers of two without the factor", also=["base_two", "no_exp"])
_add(f.base_two, "inplace", "changes_input", said="q is scaled in place")
_add(f.base_two, "plus_one", "other_softmax_plus_one", said="one is added to the total",
     also=["softmax_plus_one", "exp_not_normalized"])  # fmt: skip
_add(
    f.ordered,
    "half",
    "other_top_half",
    said="only the better half of the keys",
    also=["top_k", "hard_max", "top_keys_only"],
)
_add(f.ordered, "gathered", "other_values_reordered", said="values in the opposite order of the weights",
     also=["softmax_of_negative", "values_reordered"])  # fmt: skip
_add(f.dispatcher, "noise", "dropout_in_eval", said="dropout of a tenth always", also=["nondeterministic"])
_add(f.dispatcher, "root", "scale_by_embed_dim", said="root of H times D")
_add(f.dispatcher, "cast", "bool_mask_added", said="the mask is made a float of ones and zeros, and added",
     stated={"mask": "may attend"})  # fmt: skip
_add(f.dispatcher, "swap", "keys_values_swapped", said="k and v exchanged", also=["keys_values_exchanged"])
_add(f.single_head, "cap", "other_soft_cap", said="scores pass through tanh", also=["soft_cap"])
_add(f.single_head, "slope", "other_position_bias", said="a slope over the distance", also=["position_bias"])
_add(f.single_head, "causal", "causal_beside_mask", said="hides the future unasked", stated={"causal": False})
_add(f.single_head, "batch", "softmax_over_batch", said="over the samples")
_add(f.single_head, "neighbour", "batch_mixed", said="values of the sample before")
