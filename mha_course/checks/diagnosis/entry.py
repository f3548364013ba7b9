"""`diagnose`: judge any attention, a module, a class or a function."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mha_course.checks import words
from mha_course.checks.diagnosis import calling, conduct, dropout, edges, report, search, steps, stress, wrapped
from mha_course.checks.diagnosis.catalogue import CAUSAL_MISSING, FAULTS, TOP_LEFT
from mha_course.checks.diagnosis.judge import Stated, judge
from mha_course.checks.diagnosis.layouts import Unreadable
from mha_course.checks.limit import ENDLESS_HINTS, OutOfTime, time_limit
from mha_course.checks.printed import limited_output
from mha_course.checks.random_state import own_random_state
from mha_course.checks.verdict import Verdict
from mha_course.checks.watching import no_mode_left
from mha_course.measure import threads

_WIDTHS = ("embed_dim", "d_model", "model_dim", "dim_model", "dim", "emb_dim", "embed_size", "emb_size", "emb",
           "hidden_size", "hidden_dim", "n_embd", "d_embed", "input_dim", "d_in", "width", "E", "d", "size", "features",
           "channels", "n_state", "k", "in_features")  # fmt: skip
_HEADS = ("num_heads", "n_heads", "n_head", "nheads", "nhead", "heads", "h", "H", "num_attention_heads", "head_count")
EMBED_DIM, NUM_HEADS = 18, 3


def _built(cls: type[nn.Module]) -> nn.Module:
    """An instance of a class, its width and number of heads found among the names of its arguments.

    Raises:
        NoAdapter: an argument without default has another name.
        Exception: what its constructor raises.
    """
    keywords: dict[str, Any] = {}
    unknown = []
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if p.name in _WIDTHS and not any(name in keywords for name in _WIDTHS) and p.default in (p.empty, None):
            keywords[p.name] = EMBED_DIM
        elif p.name in _HEADS and p.default is p.empty:
            keywords[p.name] = NUM_HEADS
        elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            unknown.append(p.name)
    if unknown:
        wanted = ", ".join(f"`{name}`" for name in unknown)
        raise calling.NoAdapter(f"to build it, {wanted} would be needed, which this check cannot guess")
    return cls(**keywords)


def diagnose(
    candidate: Callable[..., Any],
    *,
    mask: str | None = None,
    mask_axes: str | None = None,
    layout: str | None = None,
    num_heads: int | None = None,
    causal: bool | None = None,
    half: bool = False,
    seconds: float = 20.0,
) -> Verdict:
    """Judge an implementation of attention, and name its fault.

    A module is copied, its weights are drawn, and its numbers are compared with those of the course's attention under
    the same weights. If they differ, every fault of the catalogue, and every pair in different steps, is tried until
    one gives the candidate's numbers. How it is called is found by trying, and said in `remarks`; state it to have it
    checked: a mask that works the other way round is a fault only against what is stated.

    Args:
        candidate: a module with projections of queries, keys, values and output, under any common names, fused or
            not; a class of such modules; or a function of q, k, v and perhaps a mask. It may return a tensor, or
            several with the output among them. It is left as it is.
        mask: "may attend" (bool, True = may attend), "blocked" (bool, True = hidden), "additive" (0 and -inf).
        mask_axes: "B 1 T S", "B T S", "B S" or "T S".
        layout: "B T E" or "T B E" for a module, "B H T D", "B T H D", "B T D" or "T D" for a function.
        num_heads: H, if the module does not say.
        causal: True if it is to hide the future by itself, False if it must not.
        half: whether it must work in float16.
        seconds: time limit.

    Returns:
        A Verdict(ok, fault, evidence, hints, names, remarks, judged); judged is False if it could not be judged.

    Raises:
        TypeError: candidate cannot be called; an argument is of another type.
        ValueError: an argument is none of those named above.
    """
    if not callable(candidate):
        raise TypeError(f"candidate must be a module, a class or a function, got {type(candidate).__name__}")
    _check("mask", mask, ("may attend", "blocked", "additive"))
    _check("mask_axes", mask_axes, calling.AXES)
    _check("layout", layout, (*calling.LAYOUTS["module"], *calling.LAYOUTS["function"]))
    if num_heads is not None and (isinstance(num_heads, bool) or not isinstance(num_heads, int)):
        raise TypeError(f"num_heads must be an integer, got {type(num_heads).__name__}")
    if num_heads is not None and num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    stated = Stated(mask, mask_axes, layout, num_heads, causal, half)
    with (
        own_random_state(),
        torch.inference_mode(False),
        torch.enable_grad(),
        threads(1),  # many small products: on a busy machine two threads take many times as long as one
        warnings.catch_warnings(),
        limited_output(),
        no_mode_left(),
    ):
        warnings.simplefilter("ignore")
        try:
            with time_limit(seconds):
                return _safely(candidate, stated)
        except OutOfTime as error:
            if _is_searching(error):
                said = f"its numbers are not those of attention, and the search for the fault took over {seconds:g} s"
                return Verdict(False, said, "", ("Give it more time: seconds=.",), judged=False)
            said = f"it did not finish within {seconds:g} s"
            return Verdict(False, said, "", ENDLESS_HINTS, names=("endless_loop",))


def faults() -> dict[str, str]:
    """Return the faults that `diagnose` names: name -> what it means, in a sentence. Several sentences share a name."""
    said: dict[str, str] = {}
    for fault in (*FAULTS, TOP_LEFT, CAUSAL_MISSING, *conduct.FAULTS, *dropout.FAULTS, *report.FAULTS, *stress.FAULTS,
                  edges.FILL):  # fmt: skip
        said.setdefault(fault.name, fault.said)
    return said


def _safely(candidate: Callable[..., Any], stated: Stated) -> Verdict:
    """The verdict; that it could not be judged, if looking at the candidate raises."""
    try:
        return _judge(candidate, stated)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException as error:
        said = words.raised(error, type(candidate))[0]
        hint = "Pass a plain module or function: whatever it does when it is called, looking at it should not raise."
        return Verdict(False, f"to look at it raises {said}", "", (hint,), judged=False)


def _judge(candidate: Callable[..., Any], stated: Stated) -> Verdict:
    if isinstance(candidate, type):
        if not issubclass(candidate, nn.Module):
            return report.adapter("it is a class, and no nn.Module", candidate)
        try:
            candidate = _built(candidate)
        except calling.NoAdapter as reason:
            return Verdict(False, str(reason), "", ("Pass an instance instead of the class.",), judged=False)
        except (KeyboardInterrupt, OutOfTime):
            raise
        except BaseException as error:
            said = words.raised(error, type(candidate))[0]
            return Verdict(False, f"its constructor raises {said}", "", names=("raises",))
    try:
        candidate = wrapped.inner(candidate)
        method = wrapped.other_method(candidate)
    except Unreadable as reason:
        return report.unreadable(str(reason))
    if method is None:
        verdict = judge(candidate, stated)
    else:  # what it takes is the whole attention's, or q, k and v
        whole, alone = method
        verdict = judge(alone if _takes_three(alone) else whole, stated)
        if verdict.names == ("raises",):
            verdict = judge(whole, stated)
    if verdict.names == ("raises",) and wrapped.holds_weights(candidate):
        said = f"it keeps weights of its own, and is no module that shows them; {verdict.fault}"
        return report.adapter(said, nn.Module())
    return verdict


def _is_searching(error: OutOfTime) -> bool:
    """Whether the time ran out in the search for a fault, and not in a call of the candidate."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename in (search.__file__, steps.__file__):
            return True
        step = step.tb_next
    return False


def _takes_three(fn: Callable[..., Any]) -> bool:
    try:
        return len(calling.signature(fn, True).inputs) == 3
    except calling.NoAdapter:
        return False


def _check(name: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if value is not None and value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
