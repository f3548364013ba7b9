"""Badly behaved functions: what they do besides computing attention, or in place of it."""

import functools
import math
import sys
import time
import warnings

import numpy as np
import torch

from tests.checks.bank.right_item import Badly


def right(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("this error cannot be shown")

    __repr__ = __str__


class NotAnException(BaseException):
    """Derived from BaseException, which `except Exception` lets pass."""


def raiser(error):
    def candidate(q, k, v, mask=None):
        raise error

    return candidate


def raises_in_the_middle(q, k, v, mask=None):
    w = (q @ k.mT).softmax(-1)
    return w @ v.mT @ w.new_ones(3, 1000)


def raises_with_a_mask(q, k, v, mask=None):
    return right(q, k, v) if mask is None else right(q, k, v, mask.no_such_method())


def raises_like_a_signature(q, k, v, mask=None):
    """The TypeError of a wrong call comes from inside, so another guess at the arguments is no help."""

    def helper(a, b):
        return a

    return helper(q)


def exits(q, k, v, mask=None):
    sys.exit()


def recurses(q, k, v, mask=None):
    return recurses(q, k, v, mask)


def asks_for_too_much_memory(q, k, v, mask=None):
    return torch.empty(10**14) @ v


def returner(change):
    def candidate(q, k, v, mask=None):
        return change(right(q, k, v, mask))

    return candidate


def scales_query_in_place(q, k, v, mask=None):
    q *= q.size(-1) ** -0.5
    s = q @ k.mT
    return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def halves_values_in_place(q, k, v, mask=None):
    out = right(q, k, v, mask)
    v.data.mul_(0.5)
    return out


def inverts_mask_in_place(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(q.size(-1))
    if mask is not None:
        mask.logical_not_()
        s = s.masked_fill(mask, -torch.inf)
    return s.softmax(-1) @ v


def prints(q, k, v, mask=None):
    for i in range(100_000):
        print("row", i)
    return right(q, k, v, mask)


def warns(q, k, v, mask=None):
    for i in range(1000):
        warnings.warn(f"warning {i}", UserWarning, stacklevel=1)
    return right(q, k, v, mask)


def returns_after_a_while(q, k, v, mask=None):
    time.sleep(0.2)
    return right(q, k, v, mask)


def remembers(q, k, v, mask=None, seen=[]):  # noqa: B006
    seen.append(q.mean().item())
    return right(q, k, v, mask) + seen[0] * (len(seen) - 1)


def grows_a_cache():
    cache = []

    def candidate(q, k, v):
        cache.append((k, v))
        keys = torch.cat([a for a, _ in cache if a.shape[:2] == k.shape[:2]], dim=2)
        return right(q, keys, torch.cat([b for a, b in cache if a.shape[:2] == k.shape[:2]], dim=2))

    return candidate


def fails_the_second_time():
    calls = []

    def candidate(q, k, v, mask=None):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the buffers have been freed")
        return right(q, k, v, mask)

    return candidate


def adds_noise(q, k, v, mask=None):
    return right(q, k, v, mask) + 0.01 * torch.randn_like(q)


def seeds(q, k, v, mask=None):
    """The answer is right; the caller's random numbers are not what they were."""
    torch.manual_seed(0)
    return right(q, k, v, mask)


def sets_default_dtype(q, k, v, mask=None):
    torch.set_default_dtype(torch.float64)
    return right(q, k, v, mask)


def switches_gradients_off(q, k, v, mask=None):
    torch.set_grad_enabled(False)
    return right(q, k, v, mask)


def uses_default_dtype(q, k, v, mask=None):
    """Scores go into a tensor of the default dtype, whatever the inputs' is."""
    s = torch.empty(*q.shape[:-1], k.shape[-2])
    s.copy_(q @ k.mT / math.sqrt(q.size(-1)))
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1).to(v.dtype) @ v


def unguessable(q, k, v, temperature, table):
    return right(q / temperature, k + table, v)


def without_arguments():
    return torch.zeros(2, 4, 5, 8)


def anything(*args, **kwargs):
    return right(*args, **kwargs)


def yields(q, k, v, mask=None):
    yield right(q, k, v, mask)


async def waits(q, k, v, mask=None):
    return right(q, k, v, mask)


def scripted():
    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / float(q.size(-1)) ** 0.5, dim=-1) @ v

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(plain, (torch.ones(1, 1, 2, 2),) * 3)


ITEMS = [
    Badly("raises_value_error", lambda: raiser(ValueError("embed_dim must be divisible by num_heads")), "raises"),
    Badly("raises_many_lines", lambda: raiser(RuntimeError("first line\n\n  second line\n" + "x" * 5000)), "raises"),
    Badly("raises_without_message", lambda: raiser(AssertionError()), "raises"),
    Badly("raises_silent_error", lambda: raiser(SilentError()), "raises"),
    Badly("raises_no_exception", lambda: raiser(NotAnException("unusual")), "raises"),
    Badly("raises_stop_iteration", lambda: raiser(StopIteration()), "raises"),
    Badly("raises_not_implemented", lambda: raiser(NotImplementedError()), "not_attempted"),
    Badly("raises_system_exit", lambda: raiser(SystemExit(3)), "raises"),
    *(
        Badly(f.__name__, lambda f=f: f, "raises")
        for f in (raises_in_the_middle, raises_with_a_mask, raises_like_a_signature, exits, recurses)
    ),
    Badly("asks_for_too_much_memory", lambda: asks_for_too_much_memory, "raises"),
    Badly("returns_none", lambda: returner(lambda out: None), "wrong_type"),
    Badly("returns_list", lambda: returner(lambda out: out.tolist()), "wrong_type"),
    Badly("returns_string", lambda: returner(str), "wrong_type"),
    Badly("returns_empty_tuple", lambda: returner(lambda out: ()), "wrong_type"),
    Badly("returns_number", lambda: returner(lambda out: out.sum().item()), "wrong_type"),
    Badly("returns_array", lambda: returner(lambda out: out.detach().numpy()), "wrong_type | gradient_cut"),
    Badly("returns_integers", lambda: returner(lambda out: out.long()), "wrong_type"),
    Badly("returns_complex", lambda: returner(lambda out: out + 0j), "wrong_type"),
    Badly("returns_sum", lambda: returner(lambda out: out.sum()), "wrong_shape"),
    Badly("returns_turned", lambda: returner(lambda out: out.transpose(0, 1)), "wrong_shape"),
    Badly("returns_too_many_axes", lambda: returner(lambda out: out[None]), "wrong_shape"),
    Badly("returns_first_sample", lambda: returner(lambda out: out[0]), "wrong_shape | first_sample_only"),
    Badly("returns_empty", lambda: returner(lambda out: out[:0]), "wrong_shape"),
    Badly("returns_nan", lambda: returner(lambda out: out * math.nan), "returns_nan"),
    Badly("returns_infinity", lambda: returner(lambda out: out + math.inf), "returns_nan"),
    Badly("scales_query_in_place", lambda: scales_query_in_place, "changes_input"),
    Badly("halves_values_in_place", lambda: halves_values_in_place, "changes_input"),
    Badly("inverts_mask_in_place", lambda: inverts_mask_in_place, "changes_input"),
    Badly("prints", lambda: prints, "ok", note="right; its lines should not reach the reader"),
    Badly("warns", lambda: warns, "ok", note="right; tests turn warnings into errors, a check must not"),
    Badly("returns_after_a_while", lambda: returns_after_a_while, "ok | not judged", note="slow, but right"),
    Badly("remembers", lambda: functools.partial(remembers, seen=[]), "keeps_state"),
    Badly("grows_a_cache", grows_a_cache, "keeps_state"),
    Badly("fails_the_second_time", fails_the_second_time, "raises | keeps_state"),
    Badly("adds_noise", lambda: adds_noise, "nondeterministic"),
    Badly("seeds", lambda: seeds, "ok", note="right; the generator should be put back"),
    Badly("sets_default_dtype", lambda: sets_default_dtype, "ok", note="right; the default should be put back"),
    Badly("switches_gradients_off", lambda: switches_gradients_off, "gradient_cut | ok", note="to be put back"),
    Badly("uses_default_dtype", lambda: uses_default_dtype, "ok", note="right to float32"),
    Badly("unguessable", lambda: unguessable, "not judged"),
    Badly("without_arguments", lambda: without_arguments, "not judged"),
    Badly("anything", lambda: anything, "ok | not judged"),
    Badly("yields", lambda: yields, "wrong_type"),
    Badly("waits", lambda: waits, "wrong_type", note="nothing should warn of a coroutine that was never awaited"),
    Badly("scripted", scripted, "scale_fixed", note="the trace keeps the root of its example's width"),
    Badly("partial", lambda: functools.partial(right, mask=None), "ok"),
    Badly("builtin_print", lambda: print, "wrong_type | not judged"),
    Badly("builtin_len", lambda: len, "raises | not judged"),
    Badly("torch_matmul", lambda: torch.matmul, "raises | not judged"),
    Badly("numpy_dot", lambda: np.dot, "raises | not judged"),
    Badly("a_string", lambda: "attention", "TypeError"),
    Badly("a_number", lambda: 4, "TypeError"),
    Badly("none", lambda: None, "TypeError"),
    Badly("a_dict", lambda: {"forward": right}, "TypeError"),
    Badly("a_tensor", lambda: torch.zeros(3), "TypeError"),
    Badly("a_generator", lambda: (x for x in ()), "TypeError"),
]
