"""Every wrong candidate of the bank."""

from . import (
    wrong_causal,
    wrong_conduct,
    wrong_dropout,
    wrong_forms,
    wrong_function_masks,
    wrong_functions,
    wrong_mask,
    wrong_merge,
    wrong_pair_functions,
    wrong_pairs,
    wrong_projection,
    wrong_scale,
    wrong_softmax,
    wrong_split,
    wrong_streams,
    wrong_tiles,
)
from .item import Item

WRONG: list[Item] = [
    *wrong_split.ITEMS,
    *wrong_merge.ITEMS,
    *wrong_streams.ITEMS,
    *wrong_projection.ITEMS,
    *wrong_scale.ITEMS,
    *wrong_softmax.ITEMS,
    *wrong_mask.ITEMS,
    *wrong_causal.ITEMS,
    *wrong_dropout.ITEMS,
    *wrong_conduct.ITEMS,
    *wrong_forms.ITEMS,
    *wrong_pairs.ITEMS,
    *wrong_functions.ITEMS,
    *wrong_function_masks.ITEMS,
    *wrong_tiles.ITEMS,
    *wrong_pair_functions.ITEMS,
]
