"""What `check` says about exceptions: the line, the sizes, and hints that fit."""

import functools
import math
import sys

import numpy as np
import pytest
import torch

from mha_course.checks import check, words


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


class Own(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("cannot be said")


class UnspeakableOwn(Exception):
    def __str__(self):
        raise Own


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "it raises SystemExit: 3"),
        (GeneratorExit(), "it raises GeneratorExit"),
        (Own("mine"), "it raises Own: mine"),
        (Unspeakable(), "it raises Unspeakable: its message cannot be read"),
        (UnspeakableOwn(), "it raises UnspeakableOwn: its message cannot be read"),
        (ValueError("ab " * 500 + "\nmore"), "it raises ValueError: " + "ab " * 64 + "ab [...]"),
    ],
)
def test_whatever_is_raised_is_a_verdict(error, said):
    def fails(scores):
        raise error

    verdict = check("softmax", fails)
    assert verdict.fault == said
    assert repr(verdict).startswith(f"Not right yet: {said}.\nLine 2 of fails: raise error, case 1")
    assert len(verdict.hints) == 2
    reversed_first = check("batched_attention", lambda q, k, v: (k.T, fails(q)))
    assert reversed_first.fault == said


def test_a_message_keeps_200_characters():
    kept = "x" * words.LONGEST
    assert words.raised(ValueError(kept), print)[0] == f"ValueError: {kept}"
    cut = words.raised(ValueError(kept + "x"), print)[0].removeprefix("ValueError: ")
    assert (len(cut), cut[-6:]) == (200, " [...]")


def test_exit_has_its_own_hint():
    assert "Leave the function by return" in hints("softmax", lambda scores: sys.exit(3))


class AnswersNothing:
    def __getattr__(self, name):
        raise KeyError(name)

    def __call__(self, scores):
        return scores.nonsense


class AnswersAll(Callable):
    def __getattr__(self, name):
        return 3


@pytest.mark.parametrize("odd", [AnswersNothing, AnswersAll])
def test_an_object_with_odd_attributes_gets_a_verdict(odd):
    assert check("softmax", odd()).fault.startswith("it raises AttributeError")


def test_only_an_error_of_a_product_tells_a_product():
    def fits_alone(raise_, q, k, v):
        if q.shape[1] != k.shape[1]:
            raise_(q, k)
        return (k @ q.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def cuda(q, k):
        raise RuntimeError("CUDA is not here")

    products = [
        lambda q, k: k @ q.mT @ k,
        lambda q, k: torch.einsum("bts,bsd->btd", k @ q.mT, k),
        lambda q, k: (k @ q.mT)[0] @ k[0],
        lambda q, k: (k @ q.mT)[0] @ k[0, :, 0],
        lambda q, k: (k @ q.mT)[0, 0] @ k[0, :, 0],
        lambda q, k: torch.tensordot((k @ q.mT)[0], k[0], dims=1),
        lambda q, k: torch.inner((k @ q.mT)[0], k[0, :, 0]),
        lambda q, k: (k @ q.mT)[..., None] * k[:, None],
    ]
    for raise_ in (cuda, lambda q, k: q.view(4, 4), lambda q, k: q.float() @ k.mT):
        verdict = check("batched_attention", functools.partial(fits_alone, raise_))
        assert verdict.fault.startswith("it raises RuntimeError"), verdict
    for raise_ in products:
        verdict = check("batched_attention", functools.partial(fits_alone, raise_))
        assert verdict.fault.startswith("the scores are transposed"), verdict
        assert verdict.evidence.startswith("it raises RuntimeError")

    def one_query(raise_, q, keys, values):
        if len(q) != len(keys):
            raise_(q, keys)
        scores = np.exp(q @ keys / len(q) ** 0.5)
        return scores / scores.sum() @ values

    def no(q, keys):
        raise ValueError("no")

    assert check("one_query", functools.partial(one_query, no)).fault == "it raises ValueError: no"
    products = [
        lambda q, keys: q @ keys,
        np.dot,
        lambda q, keys: np.einsum("d,ds->s", q, keys),
        lambda q, keys: np.tensordot(q, keys, 1),
        lambda q, keys: q * keys.T,
    ]
    for raise_ in products:
        assert check("one_query", functools.partial(one_query, raise_)).fault.startswith("the scores sum over")


def test_a_call_is_refused_only_when_the_arguments_do_not_fit():
    def wants_name(scores, *, name):
        return scores

    cannot = "it cannot be called as fn(scores)"
    for fn in (lambda: 3, lambda a, b: a, wants_name, functools.partial(wants_name, nom=3), torch.softmax, torch.bmm):
        verdict = check("softmax", fn)
        assert (verdict.fault, verdict.hints[1]) == (cannot, "Let it take one argument, as fn(scores).")
    assert check("one_query", lambda: 3).hints[1] == "Let it take 3 arguments, as fn(q, keys, values)."
    assert check("batched_attention", torch.det).fault == "it cannot be called as fn(q, k, v)"
    assert check("batched_attention", len).fault == "it cannot be called as fn(q, k, v)"
    for fn in (functools.partial(torch.softmax, dim="a"), functools.partial(torch.max, dim="a"), int):
        assert check("softmax", fn).fault.startswith("it raises ")
    assert check("softmax", functools.partial(torch.softmax, dim=1))


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
    (lambda x: x.new_zeros(rows, 5), "The name rows is not defined: the function gets its arguments alone. Read rows"),
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
    (lambda x: x.view(4, 4), "Multiply the sizes in that line: do they give"),
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
        "Name the two axes that change places: x.transpose(-2, -1) swaps the last two alone.",
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
