"""The interface of `check`: verdicts for stubs, exceptions, mutation; the same text every time."""

import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from mha_course.checks import Verdict, check, engine, tasks, words
from mha_course.checks.task import Case

ROOT = Path(__file__).parents[2]
NAMES = (
    *("softmax", "one_query", "batched_attention", "angles", "weights_and_output"),
    *("score_std", "scaled_scores", "growth_exponents"),
    *("causal", "padding", "combined", "window"),
    *("sinusoidal", "equivariance_error", "rotary", "slopes", "alibi_bias"),
    *("split_heads", "merge_heads", "multi_head", "cross_attention"),
    *("pre_norm_block", "lost_skips"),
    *("leak_probe", "repaired_weights"),
    *("merge_blocks", "tiled_attention"),
    *("windowed_attention", "linear_attention"),
    *("cache_update", "decode"),
    *("stable_softmax", "training_step"),
    *("quantize_per_channel", "static_scale"),
    *("attention_flops", "roofline_seconds"),
)
TASKS = [engine._TASKS[name] for name in NAMES]
STUB = "not attempted yet"


def test_names():
    assert tasks() == NAMES


@pytest.mark.unchecked
def test_bad_arguments():
    known = "'nonsense'; there are softmax, one_query, .*, roofline_seconds$"
    with pytest.raises(ValueError, match=known):
        check("nonsense", print)
    with pytest.raises(TypeError, match="fn must be a function, got Tensor"):
        check("softmax", torch.zeros(1))


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
class TestEveryTask:
    def test_the_reference_is_right(self, task):
        verdict = check(task.name, task.reference)
        assert verdict == Verdict(True, None, verdict.evidence, ())

    def test_every_variation_is_named_and_has_two_hints(self, task):
        for variation in task.variations:
            verdict = check(task.name, variation.fn)
            assert (verdict.fault, verdict.hints) == (variation.fault, variation.hints)
            assert len(verdict.hints) == 2

    def test_variations_raise_only_where_the_fault_does(self, task):
        if task.run:  # a solution is called step by step: what PyTorch refuses, and no error of the variation itself
            refused = r"unscale_|since the last|inf checks|_scale is None|not require grad|FP16 gradients|non-finite"
            for variation in task.variations:
                for i, case in enumerate(task.cases()):
                    error = engine.known(task, variation.fn, i, case).error
                    assert error is None or re.search(refused, str(error)), variation.fault
            return
        for variation in task.variations:
            raised = []
            for case in task.cases():
                sizes = case.sizes
                try:
                    variation.fn(*(x.clone() if torch.is_tensor(x) else x for x in case.inputs))
                except (RuntimeError, ValueError):
                    if "width" in sizes:  # as many cosines as sines
                        assert sizes["width"] % 2
                        continue
                    if "heads of one token" in variation.fault:  # with T = H, or T = S, they fit
                        assert sizes["T"] != sizes.get("S", sizes["H"])
                        continue
                    if "percent is not divided" in variation.fault:
                        continue
                    if sizes.get("Ek") != sizes.get("E"):  # a matrix meets the wrong sequence
                        assert re.search("made (from|with)|have changed places|transposed", variation.fault)
                        continue
                    if "room" in sizes:  # refused, or written where it does not fit
                        assert re.search("exactly full|axis of the heads", variation.fault)
                        continue
                    raised.append(True)
                    # with T = S, or S = D for one query, the wrong product has the right shape
                    assert sizes.get("T", sizes["D"]) != sizes["S"]
            if raised:
                assert "transposed" in variation.fault or "sum over the keys" in variation.fault

    def test_sizes_are_primes_that_differ_but_in_one_case_or_1(self, task):
        cases = task.cases()
        for case in cases:
            even = {4, 6, 8, 12} if case.sizes.keys() & {"width", "H", "D"} else set()  # pairs, and heads
            product = {case.sizes["H"] * case.sizes["D"]} if case.sizes.keys() >= {"E", "H", "D"} else set()
            empty = {0} if case.sizes.keys() & {"room", "flops"} else set()  # a cache without tokens, a copy
            plain = {17, 71, 101} if "flops" in case.sizes else set()  # numbers, not sizes of tensors
            assert set(case.sizes.values()) <= {1, 2, 3, 5, 7, 11, 13, 601, *even, *product, *empty, *plain}
        ones = [{letter for letter, n in case.sizes.items() if n == 1} for case in cases]
        both = set([letter for letter in task.results[0][1] if letter != "1"][:2])
        assert set().union(*ones) >= both, "an axis that squeeze() may take away"
        assert not ones[0], "evidence is of the first case as a rule"
        for first, second in (("T", "S"), ("rows", "columns")):
            if {first, second} <= set(cases[0].sizes):
                assert [c.sizes[first] == c.sizes[second] for c in cases].count(True) == 1
        assert any(len(set(case.sizes.values())) == len(case.sizes) for case in cases)

    def test_hints_and_faults_read_well(self, task):
        said = [text for v in task.variations for text in (v.fault, *v.hints)] + [*task.hints]
        for text in said:
            assert "!" not in text
            assert text.isascii()
        for variation in task.variations:
            assert variation.fault[0].islower()
            assert not variation.fault.endswith(".")
            assert all(hint[-1] in ".?" for hint in variation.hints)

    def test_a_stub_is_not_attempted(self, task):
        def bare(*_):
            raise NotImplementedError

        def told(*_):
            raise NotImplementedError("your turn")

        for stub in (bare, told):
            verdict = check(task.name, stub)
            assert (verdict.ok, verdict.fault, verdict.hints) == (False, STUB, ())
            assert repr(verdict) == "Not attempted yet.\nThe function raises NotImplementedError."

    def test_inputs_are_fresh_in_every_check_and_call(self, task):
        kept = []

        def spoils(*inputs):
            kept.extend(inputs)
            for x in inputs:
                if not isinstance(x, int | float | torch.nn.Module):
                    x[...] = 1
            return task.reference(*inputs)

        plain = not task.run and all(isinstance(x, int | float) for x in task.cases()[0].inputs)
        assert check(task.name, spoils).ok == plain
        assert check(task.name, task.reference)


def right(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_a_verdict_is_true_when_right():
    assert check("batched_attention", right)
    assert not check("batched_attention", lambda q, k, v: v)


def test_a_helper_that_is_a_stub_is_not_attempted_either():
    def helper(x):
        raise NotImplementedError

    assert check("softmax", lambda x: helper(x)).fault == STUB


def test_a_stub_for_one_case_alone_is_a_fault():
    def unfinished(q, k, v):
        if q.shape[1] == k.shape[1]:
            raise NotImplementedError("your turn")
        return right(q, k, v)

    verdict = check("batched_attention", unfinished)
    assert verdict.fault == "it raises NotImplementedError: your turn"
    assert verdict.evidence.startswith("line 3 of unfinished: raise NotImplementedError")
    assert verdict.evidence.endswith("case 2 (B, T, S, D, Dv = 3, 5, 5, 7, 2)")
    assert verdict.hints[1] == "Write what is missing there, or take out the raise."


def test_an_interrupt_passes_through_and_random_states_are_restored():
    def interrupted(scores):
        torch.rand(3)
        raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        check("softmax", interrupted)
    assert torch.equal(torch.get_rng_state(), before)

    class Slow(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    def interrupted_later(scores):
        raise Slow

    with pytest.raises(KeyboardInterrupt):
        check("softmax", interrupted_later)


def test_a_right_result_with_changed_inputs_is_a_fault():
    def scales_in_place(q, k, v):
        q /= q.shape[-1] ** 0.5
        return (q @ k.mT).softmax(-1) @ v

    verdict = check("batched_attention", scales_in_place)
    assert verdict.fault == "it changes its input q in place"
    assert len(verdict.hints) == 2

    def numpy_in_place(q, keys, values):
        keys *= len(q) ** -0.5
        values *= np.exp(keys @ q)[:, None]
        return values.sum(0) / np.exp(keys @ q).sum()

    assert check("one_query", numpy_in_place).fault == "it changes its input keys, values in place"


def test_a_named_fault_comes_before_the_change_of_an_input():
    def both(q, k, v):
        k += 0
        out = (q @ k.mT).softmax(-1) @ v
        v.zero_()
        return out

    verdict = check("batched_attention", both)
    assert verdict.fault == "the scores are not scaled"
    assert verdict.evidence.endswith("; also, it changes its input v in place")


def test_a_result_that_is_an_input_written_later_does_not_matter():
    def reuses(scores):
        return scores.copy_(scores.softmax(1))

    assert check("softmax", reuses).fault == "it changes its input scores in place"


def test_an_input_that_can_no_longer_be_compared_is_changed():
    def other_type(scores):
        scores.data = scores.data.float()
        return scores.double().softmax(1)

    assert check("softmax", other_type).fault == "the numbers differ from the reference"
    assert check("softmax", other_type).evidence.endswith("also, it changes its input scores in place")

    def sparse(scores):
        result = scores.softmax(1)
        torch.utils.swap_tensors(scores, scores.to_sparse())
        return result

    assert check("softmax", sparse).fault == "it changes its input scores in place"


def test_global_random_states_are_untouched():
    def draws(q, k, v):
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return noise + torch.rand_like(v[:, :1].expand(-1, q.shape[1], -1))

    torch.manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    first = check("batched_attention", draws)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    torch.rand(5), random.random(), np.random.rand()  # noqa: NPY002
    assert check("batched_attention", draws) == first, "a solution that draws has one verdict"


def test_warnings_of_a_solution_are_not_its_verdict():
    def warns(scores):
        warnings.warn("deprecated", stacklevel=1)
        return scores.softmax(-1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check("softmax", warns)
    with pytest.warns(UserWarning, match="still"):
        warnings.warn("still", stacklevel=1)


def test_the_first_of_equally_large_differences_is_named():
    def two_off(q, k, v):
        out = right(q, k, v)
        out[0, 1, 3] += 0.5 - 1e-13
        out[1, 2, 4] += 0.5
        return out

    assert check("batched_attention", two_off).evidence == (
        "largest difference 0.50 in out, sample 0, query 1, feature 3 (counted from 0), "
        "case 1 (B, T, S, D, Dv = 2, 3, 5, 7, 11)"
    )


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (2e-6, "less than 0.001"),
        (0.00123, "0.0012"),
        (0.125 - 1e-14, "0.13"),
        (0.125 + 1e-14, "0.13"),
        (0.834, "0.83"),
        (9.96, "10.0"),
        (12.4, "12"),
        (123.4, "123"),
        (1e5, "more than 1000"),
    ],
)
def test_numbers_have_two_stable_digits(x, text):
    assert words.number(x) == text


def test_a_shape_uses_the_letter_that_is_expected_there():
    sizes = {"T": 5, "S": 5}
    assert words.shape_in_letters((5, 5), sizes, ("T", "S")) == "(T, S) = (5, 5)"
    assert words.shape_in_letters((5, 5, 5), sizes, ("T", "S")) == "(T, S, T) = (5, 5, 5)"
    ones = {"B": 1, "T": 1, "Dv": 3}
    out = ("B", "T", "Dv")
    assert words.shape_in_letters((1, 1, 3), ones, out) == "(B, T, Dv) = (1, 1, 3)"
    assert words.shape_in_letters((1, 3), ones, out) == "(1, Dv) = (1, 3)", "B or T, nobody knows"
    assert words.shape_in_letters((1, 3, 1), ones, out) == "(B, Dv, 1) = (1, 3, 1)"
    assert words.case_sizes(1, Case(sizes, ())) == "case 2 (T, S = 5, 5)"


PROGRAM = """
from mha_course.checks import check, engine
for task in engine._TASKS.values():
    for fn in (task.reference, *(v.fn for v in task.variations), lambda *x: x[-1]):
        verdict = check(task.name, fn)
        print(verdict, verdict._repr_html_(), sep="\\n")
"""


def test_text_is_the_same_again_and_with_other_instructions(monkeypatch):
    said = []
    for capability in (None, "default"):
        if capability is not None:
            monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
            monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
            monkeypatch.setenv("OMP_NUM_THREADS", "2")
        program = [sys.executable, "-c", PROGRAM]
        said.append(subprocess.run(program, cwd=ROOT, capture_output=True, check=True).stdout)
    assert said[0] == said[1]
    assert said[0].count(b"Largest difference") > 60
