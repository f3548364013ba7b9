"""The second bank: written apart from the checks and their first bank; what it showed was mended after that."""

from .second_right import SECOND_RIGHT
from .second_wrong import SECOND_WRONG_MODULES
from .second_wrong_more import SECOND_WRONG_FUNCTIONS

SECOND_WRONG = [*SECOND_WRONG_MODULES, *SECOND_WRONG_FUNCTIONS]

__all__ = ["SECOND_RIGHT", "SECOND_WRONG"]
