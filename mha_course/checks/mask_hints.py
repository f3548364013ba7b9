"""Hints that several of the exercises about masks share."""

INVERTED = (
    "Look at what row 0 of your mask lets through: may it attend there?",
    "Here True means may attend. nn.MultiheadAttention has it the other way round: turn yours with ~.",
)
DIAGONAL = (
    "Look at row 0: a row that sees nothing has no weights.",
    "A query sees its own position as well: let the comparison include equality.",
)
TRIU = (
    "Print your mask for T = 3: which triangle is True, the lower or the upper one?",
    "Rows are queries, columns are keys: a query sees the keys with a smaller or equal index.",
)
SHAPE = (
    "Line your shape up with (B, H, T, S) from the right: which of your axes meets which of these?",
    "Give the mask an axis of size 1 for what it does not depend on.",
)
LATE = (
    "Take a sequence of length 2: which keys are real, counted from 0, and which does your mask show?",
    "Of n real tokens the last has index n - 1.",
)
