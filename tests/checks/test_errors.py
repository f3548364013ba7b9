"""What `check` says about exceptions: the line, the sizes, and hints that fit."""

import functools
import math

import numpy as np
import pytest
import torch

from mha_course.checks import check


def test_an_operation_that_pytorch_lacks_is_no_stub():
    def lacks(scores):
        return torch.ops.aten._fused_sdp_choice.default(scores.to_sparse(), scores, scores)

    assert check("softmax", lacks).fault.startswith("it raises NotImplementedError: Could not run")
    verdict = check("softmax", lambda scores: scores.to("meta").cpu())  # raised by C++ in our line
    assert verdict.fault.startswith("it raises NotImplementedError: Cannot copy")
    module = torch.nn.Module()  # no forward: raised by torch's own Python code
    assert check("softmax", module).fault.startswith("it raises NotImplementedError: Module")


def test_an_exception_is_named_with_its_line_and_sizes():
    def broken(q, k, v):
        scores = q @ k.mT
        scores = scores / 0
        raise ValueError("first line\nsecond line")

    verdict = check("batched_attention", broken)
    assert verdict.fault == "it raises ValueError: first line"
    assert verdict.evidence == (
        'line 4 of broken: raise ValueError("first line\\nsecond line"), case 1 (B, T, S, D, Dv = 2, 3, 5, 7, 11)'
    )


def test_the_line_is_the_learners_not_that_of_a_library():
    def broken(scores):
        return torch.nn.functional.softmax(scores, dim=5)

    seen = check("softmax", broken).evidence
    assert seen.startswith("line 2 of broken: return torch.nn.functional.softmax(scores, dim=5), ")


def test_the_line_lies_in_the_helper_that_fails():
    def helper(x):
        return x.nonsense

    def broken(scores):
        return helper(scores)

    assert check("softmax", broken).evidence.startswith("line 2 of helper: return x.nonsense")


class Callable:
    def __call__(self, scores):
        return scores.nonsense


@pytest.mark.parametrize("wrap", [Callable(), functools.partial(Callable.__call__, None)])
def test_the_line_is_found_in_objects_and_partials(wrap):
    assert check("softmax", wrap).evidence.startswith("line 2 of __call__")


def test_a_function_without_python_code_has_no_line():
    verdict = check("batched_attention", torch.bmm)
    assert verdict.fault == "it cannot be called as fn(q, k, v)"
    verdict = check("softmax", torch.det)
    assert verdict.fault.startswith("it raises RuntimeError: linalg.det")
    assert verdict.evidence == "case 1 (rows, columns = 3, 5)"


def test_an_error_without_text_and_addresses():
    def silent(scores):
        raise AssertionError

    assert check("softmax", silent).fault == "it raises AssertionError"

    def address(scores):
        raise ValueError(f"{object()} is odd.")

    assert check("softmax", address).fault == ("it raises ValueError: <object object at 0x...> is odd")


def test_other_arguments_are_named():
    verdict = check("batched_attention", lambda q, k: q)
    assert verdict.fault == "it cannot be called as fn(q, k, v)"
    assert "takes 2 positional arguments but 3 were given" in verdict.evidence
    # a TypeError from inside is not that
    verdict = check("batched_attention", lambda q, k, v: len(3))
    assert verdict.fault.startswith("it raises TypeError: object of type 'int'")


def hints(name, fn):
    verdict = check(name, fn)
    assert verdict.fault.startswith("it raises "), verdict
    assert len(verdict.hints) == 2
    return " ".join(verdict.hints)


def unbound(scores):
    total = total + scores
    return total


def number_called(scores):
    rows = len(scores)
    return rows(scores)


def helper_without_return(scores):
    scores.exp()


def import_misspelt(scores):
    import nunpy

    return nunpy.exp(scores)


PAIR = "x.max(dim) returns a pair, (values, indices), not a tensor."
SHAPES = "Print the shapes just before the line that raises."
SIZE = "A shape is a tuple of all sizes: not one number, and not a function."
ARRAY = "A value in that line is a NumPy array"

SOFTMAX = [
    (lambda x: torch.exp(x) / summe(x), "The name summe is not defined in the notebook. Import it"),
    (lambda x: x.new_zeros(rows, 5), "The name rows is not defined: the function gets no sizes. Read rows"),
    (unbound, "total is used in the function before it has a value there."),
    (lambda x: x - x.max(1), PAIR),
    (lambda x: torch.exp(x.max(-1)), PAIR + " Take the values alone: x.max(dim).values, or x.amax(dim)."),
    (lambda x: x.max(1).exp(), PAIR),
    (lambda x: x - x.sort(1), "x.sort(dim) returns a pair, (values, indices), not a tensor."),
    (lambda x: x / x.shape**0.5, SIZE),
    (lambda x: x / math.sqrt(x.shape), SIZE),
    (lambda x: x / x.shape()[1], SIZE),
    (lambda x: x / torch.sqrt(len(x)), "sqrt is for tensors, and here it gets a plain number. Use the math module"),
    (lambda x: torch.exp(x.numpy()), ARRAY),
    (lambda x: x.numpy().softmax(1), ARRAY),
    (lambda x: np.exp(x.numpy()).sum(dim=1), "PyTorch says dim and keepdim, NumPy says axis and keepdims."),
    (lambda x: torch.softmax(x), "an argument is missing, or one too many"),
    (lambda x: x.transpose(1), "an argument is missing, or one too many"),
    (number_called, "has () after it, but it is no function"),
    (lambda x: x / helper_without_return(x), "is None, which is what a function without return gives"),
    (lambda x: x.sofmax(1), "What stands before the dot has no sofmax: 'Tensor' object. Mend the spelling"),
    (lambda x: torch.sofmax(x), "What stands before the dot has no sofmax: module 'torch'."),
    (import_misspelt, "Look at the import"),
    (lambda x: x + "1", "has a type that the function or operator there does not take"),
    (lambda x: x.float() @ x.T, "Two number types meet in that line."),
    (lambda x: x.exp() / x.exp().sum(1), "keep its axis: keepdim=True (NumPy: keepdims=True)."),
    (lambda x: x.softmax(2), "An index or an axis counts further than there are"),
    (lambda x: x.shape[2], "An index or an axis counts further than there are"),
    (lambda x: x @ x, SHAPES),
    (lambda x: x.view(4, 4), SHAPES),
    (lambda x: {}["weights"], "Print what goes into the line that raises, just before it."),
]


@pytest.mark.parametrize(("fn", "said"), SOFTMAX)
def test_hints_fit_what_is_raised(fn, said):
    assert said in hints("softmax", fn)


@pytest.mark.parametrize("fn", [fn for fn, said in SOFTMAX if said is not SHAPES])
def test_shapes_are_not_asked_for_where_they_do_not_help(fn):
    assert SHAPES not in hints("softmax", fn)


def test_the_classics_of_the_later_exercises():
    said = hints("angles", lambda n, a, m, b: n * m * torch.cos(torch.deg2rad(b) - torch.deg2rad(a)))
    assert said == (
        "deg2rad is for tensors, and here it gets a plain number. "
        "Use the math module for a plain number, math.radians, or make it a tensor first."
    )
    assert "math.cos, or" in hints("angles", lambda n, a, m, b: m * a.cos())
    assert "Read D from the shape" in hints("batched_attention", lambda q, k, v: q / D)
    assert SHAPES in hints("one_query", lambda q, keys, values: q @ keys)
    assert "keepdims=True" in hints("one_query", lambda q, keys, values: values + q)


def turned_first(q, k, v):
    turned = k.T
    return (torch.bmm(q, turned) / q.shape[-1] ** 0.5).softmax(-1) @ v


REVERSED = [
    lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v,
    lambda q, k, v: torch.einsum("btd,bds->bts", q, k.T).softmax(-1) @ v,
    lambda q, k, v: ((k @ q.mT).softmax(1).mT @ v).T,  # raises nothing, the shape is wrong
    turned_first,
]


@pytest.mark.parametrize("fn", REVERSED)
def test_a_transpose_of_three_axes_is_named(fn):
    assert check("batched_attention", fn).hints == (
        "x.T reverses all axes of a tensor: with three of them, (B, S, D) becomes (D, S, B).",
        "Swap the last two axes alone: x.transpose(-2, -1).",
    )


def test_a_transpose_of_two_axes_is_not_blamed():
    def each(q, k, v):
        rows = [a @ b.T for a, b in zip(q, k, strict=True)]
        return torch.stack(rows) @ q

    assert "x.T" not in hints("batched_attention", each)
    assert "x.T" not in hints("batched_attention", lambda q, k, v: q @ k @ v)


def test_a_returned_pair_is_called_a_pair():
    verdict = check("softmax", lambda x: x.max(1))
    assert verdict.fault == "it returns a pair (values, indices) instead of one tensor"
    verdict = check("weights_and_output", lambda q, k, v: (q, v.max(1)))
    assert verdict.fault == "out is a pair (values, indices), expected a tensor"
