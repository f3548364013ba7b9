"""All items: right ones, ones at the edge, sound variants by another formula, and badly behaved ones."""

from tests.checks.bank import (
    badly,
    badly_loops,
    badly_modules,
    edge,
    right_functions,
    right_layouts,
    right_mask_modules,
    right_modules,
    right_more_modules,
    right_output_modules,
    right_raw_modules,
    right_third,
    right_torch_modules,
    right_variants,
)
from tests.checks.bank.right_item import Badly, Right

MODULES: list[Right] = [
    *right_modules.ITEMS,
    *right_more_modules.ITEMS,
    *right_raw_modules.ITEMS,
    *right_mask_modules.ITEMS,
    *right_torch_modules.ITEMS,
    *right_output_modules.ITEMS,
    *right_third.ITEMS,
]
FUNCTIONS: list[Right] = [*right_functions.ITEMS, *right_layouts.ITEMS]
RIGHT: list[Right] = [*MODULES, *FUNCTIONS]
EDGE: list[Right] = edge.ITEMS
VARIANTS: list[Right] = right_variants.ITEMS
BADLY: list[Badly] = [*badly.ITEMS, *badly_loops.ITEMS, *badly_modules.ITEMS]
