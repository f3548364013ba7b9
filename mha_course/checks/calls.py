"""Call a solution on a copy of the inputs, and read what comes back."""

import copy
import functools
import inspect
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch

from mha_course.checks import words
from mha_course.checks.limit import OutOfTime
from mha_course.checks.task import Case, Task


class Problem(NamedTuple):
    """What is wrong with one outcome: the fault, what was seen, and hints."""

    fault: str
    evidence: str
    hints: tuple[str, ...]


class Checked(NamedTuple):
    """What a further look at a right solution found: a problem, or else a remark."""

    problem: Problem | None = None
    remark: str = ""


class Outcome(NamedTuple):
    """What a call gave: results as float64 tensors, or an error, or something unreadable."""

    results: tuple[Tensor, ...] | None = None
    error: BaseException | None = None
    unreadable: Problem | None = None
    changed: tuple[str, ...] = ()  # names of arguments that the call changed


def call(task: Task, fn: Callable[..., Any], case: Case) -> Outcome:
    """Call fn on a copy of the inputs, and read what comes back; only an interrupt passes through."""
    copies = [_copy(x) for x in case.inputs]
    try:
        returned = task.run(fn, *copies) if task.run else fn(*copies)
        results = returned if isinstance(returned, Problem) else _read(task, returned, copies)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException as error:
        return Outcome(error=error)
    written = dict(task.written)
    changed = tuple(
        name
        for name, before, after in zip(task.arguments, case.inputs, copies, strict=not task.run)
        if not task.run and name not in written and not _equal(before, after)
    )
    if isinstance(results, Problem):
        return Outcome(unreadable=results, changed=changed)
    after = (_numbers(x) for name, x in zip(task.arguments, copies, strict=not task.run) if name in written)
    return Outcome((*results, *after), changed=changed)


_KNOWN: dict[tuple[Any, ...], Outcome] = {}


def known(task: Task, fn: Callable[..., Any], index: int, case: Case) -> Outcome:
    """What the reference or a variation gives in one of the task's cases: the same each time, so it is kept.

    Not where a solution has changed how PyTorch computes: it is called anew then.
    """
    modes = overrides._get_current_function_mode_stack() or dispatch._get_current_dispatch_mode_stack()
    if modes or not torch.is_grad_enabled() or torch.get_default_dtype() != torch.float32:
        return call(task, fn, case)
    key = task.cases, task.run, fn, index
    if key not in _KNOWN:
        _KNOWN[key] = call(task, fn, case)
    return _KNOWN[key]


class _Transposes(TorchFunctionMode):
    """Notes whether x.T was taken of a tensor with three axes or more."""

    reverses = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.T.__get__:  # type: ignore[attr-defined]
            self.reverses |= args[0].ndim > 2
        return func(*args, **(kwargs or {}))


def reverses_axes(task: Task, fn: Callable[..., Any], case: Case) -> bool:
    """Call fn once more, and see whether it takes x.T of more than two axes."""
    with _Transposes() as seen:
        call(task, fn, case)
    return seen.reverses


# what functions in C say that do not take so many arguments, or not by that name
_REFUSES = r"^\S+ (takes|missing \d+ required|expected (at|exactly)|got an unexpected keyword)"


def is_refused(task: Task, fn: Callable[..., Any], error: BaseException) -> bool:
    """Whether the call itself failed: fn does not take these arguments, and never ran."""
    last = error.__traceback__  # its first frame is `call`'s
    while task.run and last is not None and last.tb_next is not None:
        last = last.tb_next
    if not isinstance(error, TypeError) or last is None or last.tb_next is not None:
        return False
    if task.run and last.tb_frame.f_code is not inspect.unwrap(task.run).__code__:
        return False
    try:
        inspect.signature(fn, follow_wrapped=False).bind(*task.arguments)
    except TypeError:
        return True
    except Exception:  # functions in C often have no signature
        said = words.message(error)
        own = "invalid combination of arguments" in said and not isinstance(fn, functools.partial)
        return own or re.search(_REFUSES, said) is not None
    return False


def _copy(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.clone()
    if isinstance(x, torch.nn.Module):
        return copy.deepcopy(x)
    return x.copy() if isinstance(x, np.ndarray) else x


def _equal(before: Any, after: Any) -> bool:
    try:
        if isinstance(before, Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                return after.dtype == before.dtype and torch.equal(before, torch.detach(after))
        if isinstance(before, torch.nn.Module):  # its attributes, parameters and hooks; eval() is no change
            states = ({**vars(x), "training": None} for x in (before, after))
            return type(after) is type(before) and _equal(*states)
        if isinstance(before, dict):
            return before.keys() == after.keys() and all(_equal(x, after[name]) for name, x in before.items())
        return bool(np.array_equal(before, after))
    except Exception:  # changed so that it cannot be compared, to a sparse tensor for one
        return False


def _read(task: Task, returned: Any, inputs: list[Any]) -> tuple[Tensor, ...] | Problem:
    """The results of arrays or of plain numbers, as a tuple of float64 tensors, or why they cannot be read."""
    array: type[Any] = np.ndarray if task.numpy else Tensor
    kind = "NumPy array" if task.numpy else "tensor"
    names = [name for name, _ in task.results]
    expected = str(inputs[0].dtype).removeprefix("torch.") if task.dtype == "input" else task.dtype
    if task.plain is not None:
        results, wrong = task.plain.read(returned, names)
        return results if wrong is None else Problem(*wrong)
    wanted = f"one {kind}, {names[0]}"
    if len(names) > 1:
        wanted = f"a tuple{'' if task.integers else f' of {len(names)} {kind}s'}, ({', '.join(names)})"
    if returned is None:
        return _unreadable("it returns None, perhaps the return is missing", wanted)
    several = isinstance(returned, tuple | list)
    if len(names) == 1 and several:
        return _unreadable(f"it returns a {_count(returned)} instead of one {kind}", wanted)
    if len(names) > 1 and not several:
        return _unreadable(f"it returns one {_type(returned)} instead of {len(names)} results", wanted)
    parts = list(returned) if several else [returned]
    if len(parts) != len(names):
        return _unreadable(f"it returns a {_count(returned)}, expected {len(names)}", wanted)
    for (name, letters), part in zip(task.results, parts, strict=True):
        if name in task.integers:
            if not _is_integer(part):
                return _unreadable(f"{name} is not an integer, but of type {_type(part)}", wanted)
            continue
        if type(part) not in (array, torch.nn.Parameter):  # a subclass may lie about its numbers
            plain = "plain " if isinstance(part, array) else ""
            got = _type(part)
            fault = f"{name} is {'an' if got[0] in 'aeiou' else 'a'} {got}, expected a {plain}{kind}"
            return _unreadable(fault, wanted, None if letters or task.numpy else _plain_hints(part))
        if not task.numpy and (part.is_nested or part.layout != torch.strided):
            return _unreadable(f"{name} is a {_layout(part)} tensor, expected a dense one", wanted)
        if name in task.codes and re.search(r"\bint(8|16|32|64)$", str(part.dtype)):
            continue
        dtype = str(part.dtype.newbyteorder("=") if task.numpy else part.dtype).removeprefix("torch.")
        if dtype != expected:
            of_arrays = any(isinstance(x, Tensor | np.ndarray) for x in inputs)
            return _wrong_type(name, dtype, expected, task.true, of_arrays)
    if task.numpy:
        return tuple(torch.from_numpy(np.array(part, dtype=np.float64, order="C")) for part in parts)
    return tuple(_numbers(part) for part in parts)


def _numbers(x: Any) -> Tensor:
    return torch.detach(torch.as_tensor(x)).cpu().double().clone()


def _is_integer(x: Any) -> bool:
    try:
        operator.index(x)
    except Exception:
        return False
    return True


_YES_OR_NO = (
    "A comparison, or torch.allclose, answers yes or no: a number is asked for here.",
    "Return the number itself, as a tensor, and not how it compares with another.",
)


def _plain_hints(part: Any) -> tuple[str, str] | None:
    """Hints for a plain number, of Python or of NumPy, where a tensor without axes is wanted; else None."""
    if isinstance(part, bool | np.bool_):
        return _YES_OR_NO
    if isinstance(part, int | float | np.number):
        return (
            "A tensor without axes is a single number too: where does it become a plain one?",
            "Return the tensor as it is, without .item(), float() or NumPy.",
        )
    return None


_MASK_HINTS = (
    "Ones and zeros, or 0 and -inf, are other conventions: print what your function returns.",
    "Make the mask by a comparison, such as <=. Of 1 and 0 end with == 1, of 0 and -inf with == 0.",
)
_BOOL_HINTS = (
    "Yes or no is asked for, and your function returns numbers: print them.",
    "End with a comparison, such as > or ==, or make the tensor with dtype=torch.bool.",
)


def _wrong_type(name: str, dtype: str, expected: str, true: str, of_arrays: bool) -> Problem:
    if expected == "bool":
        hints = _MASK_HINTS if true == "may attend" else _BOOL_HINTS
        return Problem(f"{name} has type {dtype}, expected bool, True = {true}", "", hints)
    if dtype == "bool":
        return Problem(f"{name} has type bool, expected {expected}", "", _YES_OR_NO)
    if not of_arrays:
        return Problem(
            f"{name} has type {dtype}, expected float64",
            "",
            (
                "Without a type, torch.arange makes int64, and a division or torch.zeros makes float32.",
                "Name the type where a tensor is made: dtype=torch.float64.",
            ),
        )
    return Problem(
        f"{name} has type {dtype}, expected {expected}, the type of the inputs",
        "",
        (
            "Look for a number type that you name, and for tensors that you make anew.",
            "Let new tensors take the type of an input: x.new_zeros, dtype=x.dtype.",
        ),
    )


def _unreadable(fault: str, wanted: str, hints: tuple[str, str] | None = None) -> Problem:
    return Problem(fault, f"expected {wanted}", hints or ("Look at the return line.", f"Return {wanted}."))


def _is_pair(x: Any) -> bool:
    """Whether x is what x.max(dim) returns."""
    return type(x).__module__ == "torch.return_types" and len(x) == 2


def _type(x: Any) -> str:
    if _is_pair(x):
        return "pair (values, indices)"
    if isinstance(x, np.generic):
        return f"NumPy {x.dtype}"
    return "NumPy array" if type(x) is np.ndarray else type(x).__name__


def _layout(x: Tensor) -> str:
    if x.is_nested:
        return "nested"
    name = str(x.layout).removeprefix("torch.")
    return "sparse" if "sparse" in name else name


def _count(x: tuple[Any, ...] | list[Any]) -> str:
    if _is_pair(x):
        return "pair (values, indices)"
    return f"{'list' if isinstance(x, list) else 'tuple'} of {len(x)}"
