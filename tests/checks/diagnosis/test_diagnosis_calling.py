"""How a candidate is called: its arguments, the layouts, the masks, and what comes back."""

import functools

import pytest
import torch
from torch import nn

from mha_course.checks.diagnosis import calling
from mha_course.checks.diagnosis.calling import AXES, Argument, Form, NoAdapter, WrongResult, arguments, converted
from mha_course.checks.diagnosis.steps import Inputs

FUNCTIONS = {  # how it is called: names and roles, name of the mask, whether it must be given
    "q, k, v": ("q=query k=key v=value", "", False),
    "q, k, v, mask=None": ("q=query k=key v=value", "mask", False),
    "q, k, v, mask": ("q=query k=key v=value", "mask", True),
    "query, key, value, attn_mask=None, dropout_p=0.0": ("query=query key=key value=value", "attn_mask", False),
    "value, key, query, mask=None": ("value=value key=key query=query", "mask", False),
    "*, query, key, value, mask=None": ("query=query key=key value=value", "mask", False),
    "q, k, v, /, mask=None": ("=query =key =value", "mask", False),
    "Q, K, V, M=None": ("Q=query K=key V=value", "M", False),
    "queries, keys, values, padding_mask=None, attn_mask=None": (
        "queries=query keys=key values=value", "padding_mask", False),
    "q, k, v, padding_mask=None, *, src_mask": ("q=query k=key v=value", "src_mask", True),
    "q, k, v, scale=1.0, *args, **rest": ("q=query k=key v=value", "", False),
    "one, two, three": ("one=query two=key three=value", "", False),
    "one, two, three, /": ("=query =key =value", "", False),
    "*args": ("=query =key =value", "", False),
    "*args, mask=None": ("=query =key =value", "mask", False),
}  # fmt: skip
MODULES = {
    "x": ("x=query", "", False),
    "x, mask=None": ("x=query", "mask", False),
    "hidden_states, attention_mask": ("hidden_states=query", "attention_mask", True),
    "x, context": ("x=query context=context", "", False),
    "x, context=None, mask=None": ("x=query context=context", "mask", False),
    "x, y": ("x=query y=context", "", False),
    "query, key=None, value=None, *, mask=None": ("query=query key=key value=value", "mask", False),
    "v, k, q, mask": ("v=value k=key q=query", "mask", True),
    "x, causal=False": ("x=query", "", False),
    "one, two": ("one=query two=context", "", False),
    "one, two, three": ("one=query two=key three=value", "", False),
    "src, src_mask=None": ("src=query", "src_mask", False),
    "tgt, memory, memory_mask=None": ("tgt=query memory=context", "memory_mask", False),
}


def function(parameters):
    return eval(f"lambda {parameters}: None")


def module(parameters):
    kind = type("Kind", (nn.Module,), {"forward": eval(f"lambda self, {parameters}: None")})
    return kind()


def described(how):
    return " ".join(f"{a.name}={a.role}" for a in how.inputs), how.mask, how.needs_mask


@pytest.mark.parametrize("parameters", FUNCTIONS)
def test_signature_of_a_function(parameters):
    assert described(calling.signature(function(parameters), True)) == FUNCTIONS[parameters]


@pytest.mark.parametrize("parameters", MODULES)
def test_signature_of_a_module(parameters):
    assert described(calling.signature(module(parameters), False)) == MODULES[parameters]


def test_what_a_signature_says():
    one = calling.signature(module("x, mask=None"), False)
    two = calling.signature(module("x, context"), False)
    assert one.takes_mask
    assert not one.crosses
    assert two.crosses
    assert not two.takes_mask
    assert two.roles == ("query", "context")


def test_functions_written_in_c_are_called_with_three():
    how = calling.signature(torch.nn.functional.scaled_dot_product_attention, True)
    assert how.inputs == (Argument("", "query"), Argument("", "key"), Argument("", "value"))
    assert how.mask == "attn_mask"
    assert not calling.signature(torch.bmm, True).takes_mask


def test_partial_and_callable_objects_have_signatures():
    bound = functools.partial(function("q, k, v, rate, mask=None"), rate=0.0)
    assert described(calling.signature(bound, True)) == ("q=query k=key v=value", "mask", False)

    class Callable:
        def __call__(self, q, k, v):
            return v

    assert calling.signature(Callable(), True).roles == ("query", "key", "value")


@pytest.mark.parametrize(
    ("parameters", "is_function", "said"),
    [
        ("q, k, v, rate", True, "needs `rate`, which"),
        ("q, k, v, rate, *, tables", True, "needs `rate`, `tables`, which"),
        ("one, two, three, four", True, "`one`, `two`, `three`, `four`"),
        ("", True, "takes no arguments"),
        ("**rest", True, "takes no arguments"),
        ("x", True, "takes x, and a function is called with q, k and v"),
        ("q, k", True, "takes q, k, and"),
        ("x, rate", False, "needs `rate`"),
        ("", False, "takes no arguments"),
    ],
)
def test_what_cannot_be_guessed_is_named(parameters, is_function, said):
    fn = function(parameters) if is_function else module(parameters or "*, given=None")
    with pytest.raises(NoAdapter, match=said):
        calling.signature(fn, is_function)


SHAPES = dict(zip(AXES, [(2, 1, 3, 4), (2, 1, 3, 4), (2, 3, 4), (2, 4), (3, 4)], strict=True))
MASK = torch.rand(2, 1, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5


@pytest.mark.parametrize(("axes", "shape"), list(SHAPES.items()))
def test_axes_of_a_mask(axes, shape):
    mask = converted(MASK, Form("B T E", "may attend", axes), torch.float64)
    assert mask.shape == shape
    expected = {"B T S": MASK[:, 0], "B S": MASK[:, 0, -1], "T S": MASK[0, 0]}.get(axes, MASK)
    assert torch.equal(mask, expected)


def test_a_mask_with_heads_keeps_them():
    mask = MASK.expand(2, 5, 3, 4)
    assert converted(mask, Form("B T E", "may attend", "B H T S"), torch.float64).shape == (2, 5, 3, 4)


@pytest.mark.parametrize("convention", calling.CONVENTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conventions_of_a_mask(convention, dtype):
    mask = converted(MASK, Form("B T E", convention), dtype)
    numbers = {
        "may attend": (True, False, torch.bool),
        "blocked": (False, True, torch.bool),
        "additive": (0.0, -torch.inf, dtype),
        "may attend, as numbers": (1.0, 0.0, dtype),
        "blocked, as numbers": (0.0, 1.0, dtype),
    }
    seen, hidden, kind = numbers[convention]
    assert mask.dtype == kind
    assert (mask[MASK] == seen).all()
    assert (mask[~MASK] == hidden).all()


def of_module():
    return Inputs(torch.randn(2, 3, 6), torch.randn(2, 4, 6), torch.randn(2, 4, 6), MASK)


def of_function():
    return Inputs(torch.randn(2, 5, 3, 6), torch.randn(2, 5, 4, 6), torch.randn(2, 5, 4, 6), MASK)


@pytest.mark.parametrize(
    ("layout", "make", "place"),
    [
        ("B T E", of_module, lambda x: x),
        ("T B E", of_module, lambda x: x.transpose(0, 1)),
        ("B E T", of_module, lambda x: x.mT),
        ("B E 1 T", of_module, lambda x: x.mT[:, :, None]),
        ("T E", of_module, lambda x: x[0]),
        ("B H T D", of_function, lambda x: x),
        ("B T H D", of_function, lambda x: x.transpose(1, 2)),
        ("B T D", of_function, lambda x: x[:, 0]),
        ("T D", of_function, lambda x: x[0, 0]),
    ],
)
def test_layouts_of_the_arguments(layout, make, place):
    x = make()
    how = calling.signature(function("q, /, value, *, k, mask=None"), True)
    args, keywords = arguments(how, Form(layout), x)
    assert len(args) == 1
    assert torch.equal(args[0], place(x.query))
    assert set(keywords) == {"value", "k", "mask"}
    assert torch.equal(keywords["value"], place(x.value))
    assert torch.equal(keywords["k"], place(x.key))
    assert torch.equal(keywords["mask"], MASK)


def test_one_tensor_stays_one():
    x = of_module()
    x = x._replace(key=x.query, value=x.query)
    _, keywords = arguments(calling.signature(module("query, key, value"), False), Form("T B E"), x)
    assert keywords["query"] is keywords["key"] is keywords["value"]


def test_context_is_the_key():
    x = of_module()
    _, keywords = arguments(calling.signature(module("x, context"), False), Form("B T E"), x)
    assert torch.equal(keywords["context"], x.key)


def test_no_mask_is_passed_where_there_is_none():
    how = calling.signature(function("q, k, v, mask=None"), True)
    assert set(arguments(how, Form("B H T D"), of_function()._replace(mask=None))[1]) == {"q", "k", "v"}
    assert set(arguments(calling.signature(function("q, k, v"), True), Form("B H T D"), of_function())[1]) == {
        "q", "k", "v"}  # fmt: skip


def test_a_bias_is_passed_with_the_mask_in_it():
    bias = torch.randn(2, 1, 3, 4)
    how = calling.signature(function("q, k, v, mask=None"), True)
    form = Form("B H T D", "additive", "B T S")
    passed = arguments(how, form, of_function()._replace(bias=bias))[1]["mask"]
    assert torch.equal(passed, bias.masked_fill(~MASK, -torch.inf)[:, 0])
    alone = arguments(how, form, of_function()._replace(bias=bias, mask=None))[1]["mask"]
    assert torch.equal(alone, bias[:, 0])


OUT, OTHER = torch.randn(2, 3, 6), torch.randn(2, 5, 3, 4)
SHAPE = torch.Size([2, 3, 6])


@pytest.mark.parametrize(
    "returned",
    [OUT, (OUT, OTHER), (OTHER, OUT), [OUT], (None, OUT), {"weights": OTHER, "out": OUT}, (OUT, None, "text")],
)
def test_the_output_is_found_among_what_comes_back(returned):
    assert calling.output(returned, SHAPE) is OUT


def test_a_named_tuple_is_a_tuple():
    assert calling.output(Inputs(OUT, OTHER, OTHER), SHAPE) is OUT


@pytest.mark.parametrize(
    ("returned", "kind", "said"),
    [
        (None, "wrong_type", "returns None"),
        (3.0, "wrong_type", "returns a float"),
        ("text", "wrong_type", "returns a str"),
        ((), "wrong_type", "returns a tuple without a tensor"),
        ({"a": 1}, "wrong_type", "returns a dict without a tensor"),
        (OUT.numpy(), "wrong_type", "returns a ndarray"),
        (OTHER, "wrong_shape", r"shape \(2, 5, 3, 4\), expected \(2, 3, 6\)"),
        (OUT.mT, "wrong_shape", r"shape \(2, 6, 3\), expected \(2, 3, 6\)"),
        ((OTHER, OTHER), "wrong_shape", r"expected \(2, 3, 6\)"),
        (OUT.long(), "wrong_type", "type int64"),
        (OUT > 0, "wrong_type", "type bool"),
    ],
)
def test_what_is_no_output_is_said(returned, kind, said):
    with pytest.raises(WrongResult, match=said) as raised:
        calling.output(returned, SHAPE)
    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("layout", "make"),
    [
        ("B T E", of_module),
        ("T B E", of_module),
        ("B E T", of_module),
        ("B E 1 T", of_module),
        ("B H T D", of_function),
        ("B T H D", of_function),
    ],
)
def test_a_call_gives_the_course_layout(layout, make):
    x = make()._replace(mask=None)
    how = calling.signature(function("q, k, v"), True)

    def returns_its_query(q, k, v):
        return q, None

    out = calling.call(returns_its_query, Form(layout), arguments(how, Form(layout), x), x, 6)
    assert torch.equal(out, x.query)


@pytest.mark.parametrize(("layout", "first"), [("B T D", (slice(None), slice(1))), ("T D", (slice(1), slice(1)))])
def test_a_call_without_heads_gives_one(layout, first):
    x = of_function()._replace(mask=None)
    how = calling.signature(function("q, k, v"), True)
    out = calling.call(lambda q, k, v: q, Form(layout), arguments(how, Form(layout), x), x, 6)
    assert torch.equal(out, x.query[first])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_method_tells_its_arguments_by_its_schema():
    class Scripted(nn.Module):
        def forward(self, query, memory, mask: torch.Tensor | None = None):
            return query

    how = calling.signature(torch.jit.script(Scripted()), False)
    assert how.roles == ("query", "context")
    assert (how.mask, how.needs_mask) == ("mask", False)
