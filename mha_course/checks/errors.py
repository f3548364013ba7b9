"""Hints that fit what a solution raises: where to look, then what to change."""

import re
from collections.abc import Mapping
from typing import Any

from mha_course.checks import words

Hints = tuple[str, str]

REVERSED_AXES = (
    "x.T reverses all axes of a tensor: with three of them, (B, S, D) becomes (D, S, B).",
    "Name the two axes that change places: x.transpose(-2, -1) swaps the last two alone.",
)

SQUEEZED = (
    "Call your function with inputs of these sizes, and print the shape after each line: which axis is lost?",
    "An axis of size 1 is an axis too. squeeze() takes all of them away: name the one you mean, or do without.",
)
UNFINISHED = (
    "In this case the function comes to a line that raises NotImplementedError, in another it does not.",
    "Write what is missing there, or take out the raise.",
)

_ANY = (
    "Call your function by itself with inputs of these sizes.",
    "Print what goes into the line that raises, just before it.",
)
_SHAPES = (
    "Call your function by itself with inputs of these sizes.",
    "Print the shapes just before the line that raises.",
)

# The first pattern found in "Type: message" counts.
_TABLE = (
    (
        r"torch\.Size",
        (
            "A shape is a tuple of all sizes: not one number, and not a function.",
            "Choose one of the sizes by its index in square brackets; [-1] is the last.",
        ),
    ),
    (
        r"must be Tensor, not numpy\.ndarray|'numpy\.ndarray' object has no|'numpy\.ndarray' and 'Tensor'",
        (
            "A value in that line is a NumPy array, which PyTorch's functions and methods do not know.",
            "Stay with one library: np.exp(x) and x.sum(axis=0) for arrays, torch.exp(x) for tensors.",
        ),
    ),
    (
        r"unexpected keyword argument '(dim|keepdim|axis|keepdims)'",
        (
            "Look at the names of the arguments in that line: does this function have them?",
            "PyTorch says dim and keepdim, NumPy says axis and keepdims.",
        ),
    ),
    (
        r"unexpected keyword argument|required positional|positional argument|takes no arguments",
        (
            "Look at the call in that line: an argument is missing, or one too many.",
            "Compare it with the arguments that help(...) shows for that function.",
        ),
    ),
    (
        r"object is not callable",
        (
            "A value in that line has () after it, but it is no function.",
            "Leave out the (), or look for a variable that has taken the function's name.",
        ),
    ),
    (
        r"NoneType",
        (
            "A value in that line is None, which is what a function without return gives.",
            "Follow that value back to where it comes from, and return it there.",
        ),
    ),
    (
        r"^(ModuleNotFound|Import)Error",
        (
            "Look at the import: that module or name is not there.",
            "Mend its spelling, or do without: torch, numpy and math are enough for this exercise.",
        ),
    ),
    (
        r"^SystemExit",
        (
            "Look for exit() or sys.exit() in that line: it ends the whole program.",
            "Leave the function by return, with its result.",
        ),
    ),
    (
        r"^TypeError",
        (
            "A value in that line has a type that the function or operator there does not take.",
            "Print type(...) of each value just before the line.",
        ),
    ),
    (
        r"dtype|scalar type",
        (
            "Two number types meet in that line. The inputs are float64.",
            "Let new tensors take the type of an input: x.new_zeros, dtype=x.dtype.",
        ),
    ),
    (
        r"must match the size of tensor|could not be broadcast",
        (
            "Print the two shapes that meet in that line: they are lined up from the last axis.",
            "If a sum or a maximum made one of them, keep its axis: keepdim=True (NumPy: keepdims=True).",
        ),
    ),
    (
        r"view size is not compatible",
        (
            "view needs numbers that lie in memory in this order, and an exchange of axes moves none of them.",
            "Put them in order first, contiguous(), or let reshape do it, which copies where it must.",
        ),
    ),
    (
        r"shape '.*' is invalid for input of size|unflatten: Provided sizes",
        (
            "Multiply the sizes in that line: do they give the size of what is cut or reshaped there?",
            "Read each size from the shape of that very tensor: another may have another length or width.",
        ),
    ),
    (
        r"^IndexError",
        (
            "Print the shape of what is indexed in that line, or of what loses an axis there.",
            "An index or an axis counts further than there are: counting begins at 0, -1 is the last.",
        ),
    ),
    (r"shape|size|dimension|subscript", _SHAPES),
)

# What PyTorch and NumPy say about the sizes of the two sides of a product, or of what is written into a place.
_PRODUCT = (
    r"Expected size for first two dimensions of batch2|shapes cannot be multiplied|^size mismatch, got"
    r"|^inconsistent tensor size|^contracted dimensions need to match|^inner\(\) the last dimension must match"
    r"|^einsum\(\): .* does not broadcast|must match the size of tensor"
    r"|^The expanded size of the tensor .* must match the existing size"
    r"|: Input operand \d has a mismatch|not aligned|^operands could not be broadcast|^shape-mismatch for sum"
)


def is_of_a_product(error: BaseException) -> bool:
    """Whether the two sides of a product, or of a writing into part of a tensor, had sizes that do not fit."""
    return re.search(_PRODUCT, words.message(error)) is not None


def hints(error: BaseException, sizes: Mapping[str, Any]) -> Hints:
    """Two hints for an exception; sizes are the letters that an exercise knows."""
    said = f"{type(error).__name__}: {words.message(error)}"
    for special in (_pair, _plain_number, _name, _attribute):
        found = special(said, sizes)
        if found is not None:
            return found
    return next((both for pattern, both in _TABLE if re.search(pattern, said)), _ANY)


def _pair(said: str, sizes: Mapping[str, Any]) -> Hints | None:
    """The result of x.max(dim) used as if it were a tensor."""
    found = re.search(r"torch\.return_types\.(\w+)", said)
    if found is None:
        return None
    name = found[1]
    alone = f", or x.a{name}(dim)" if name in ("max", "min") else ""
    return (
        f"x.{name}(dim) returns a pair, (values, indices), not a tensor.",
        f"Take the values alone: x.{name}(dim).values{alone}.",
    )


def _plain_number(said: str, sizes: Mapping[str, Any]) -> Hints | None:
    """torch.deg2rad of a float, or a method of a tensor on a float."""
    found = re.search(r"(\w+)\(\): argument .* must be Tensor, not (?:int|float)", said)
    found = found or re.search(r"'(?:int|float)' object has no attribute '(\w+)'", said)
    if found is None:
        return None
    name = found[1]
    plain = {"deg2rad": "radians", "rad2deg": "degrees", "arccos": "acos"}.get(name, name)
    return (
        f"{name} is for tensors, and here it gets a plain number.",
        f"Use the math module for a plain number, math.{plain}, or make it a tensor first.",
    )


def _name(said: str, sizes: Mapping[str, Any]) -> Hints | None:
    found = re.search(r"^(NameError|UnboundLocalError): .*?'(\w+)'", said)
    if found is None:
        return None
    name = found[2]
    if found[1] == "UnboundLocalError":
        return (
            f"{name} is used in the function before it has a value there.",
            f"Give {name} its value first, or give the result a name of its own.",
        )
    if name in sizes:
        return (
            f"The name {name} is not defined: the function gets its arguments alone.",
            f"Read {name} from the shape of an input, or work it out.",
        )
    return (
        f"The name {name} is not defined in the notebook.",
        "Import it or define it in a cell above, or mend its spelling.",
    )


def _attribute(said: str, sizes: Mapping[str, Any]) -> Hints | None:
    found = re.search(r"^AttributeError: (.*?) has no attribute '(\w+)'", said)
    if found is None or re.search("NoneType|numpy", said):
        return None
    return (
        f"What stands before the dot has no {found[2]}: {found[1]}.",
        "Mend the spelling, or print type(...) of what stands before the dot.",
    )
