"""The leak probe: right attention passes, faults that people make are named, and nothing else moves."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import attention
from mha_course.checks.probe import assert_causal, assert_masked, leaks, nan_origins
from mha_course.masks import band, block_diagonal, causal, padding, prefix, sliding_window, to_blocked

B, H, T, S, E = 2, 4, 5, 7, 16
OFF = -math.inf
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Fn = Callable[..., Tensor]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


X = drawn(B, T, E)


def attending(mask: Tensor | None) -> Fn:
    def fn(x: Tensor) -> Tensor:
        q, k, v = (x[:, None],) * 3  # one head
        return attention(q, k, v, mask=mask).out[:, 0]

    return fn


def plain(hide: Callable[[Tensor], Tensor]) -> Fn:
    """Attention as in articles, `hide` goes from scores to weights."""
    return lambda x: hide(x @ x.mT / x.shape[-1] ** 0.5) @ x


future = torch.ones(T, T).triu(1).bool()

# What people write, and what is said of it. `real` has two axes, True = a real token.
real = torch.arange(T) < torch.tensor([[3], [5]])

LEAKING = {
    "no mask": (plain(lambda s: s.softmax(-1)), "row 0 moves when token 1 changes .*Every row sees every token"),
    "inverted": (
        plain(lambda s: s.masked_fill(~future, -1e4).softmax(-1)),
        r"^row 0 moves when token 1 changes \(sample 0\): it sees the future, and 9 more such pairs",
    ),
    "triu for tril": (
        plain(lambda s: s.masked_fill(torch.ones(T, T).triu() == 0, OFF).softmax(-1)),
        r"row 0 moves when token 1 changes .* No row sees its past: is the mask inverted\?",
    ),
    "one too far": (
        plain(lambda s: s.masked_fill(future.triu(2), OFF).softmax(-1)),
        r"^row 0 moves when token 1 changes \(sample 0\): it sees the future, and 3 more such pairs$",
    ),
    "after the softmax": (plain(lambda s: s.softmax(-1).masked_fill(future, 0)), "row 0 moves when token 1 changes"),
    "bool added": (plain(lambda s: (s + ~future).softmax(-1)), "row 0 moves .*is there a mask at all"),
    "discarded": (plain(lambda s: (s.masked_fill(future, OFF), s)[1].softmax(-1)), "is there a mask at all"),
    "softmax over queries": (plain(lambda s: s.masked_fill(future, OFF).softmax(-2).nan_to_num()), "sees the future"),
    "low, but not low enough": (
        plain(lambda s: s.masked_fill(future, -12.0).softmax(-1)),
        "row 0 moves when token 1 changes",
    ),
    "batch norm": (lambda x: F.batch_norm(x.mT, None, None, training=True).mT, "sample 0 moves when sample 1 changes"),
    "view instead of transpose": (
        lambda x: attending(causal(T))(x.reshape(T, B, E).transpose(0, 1)),
        "sample [01] moves when sample [01] changes: the batch is mixed",
    ),
    "batch not in front": (lambda x: attending(causal(B))(x.transpose(0, 1)).transpose(0, 1), "sample 1 moves when"),
    "the first sample for all": (lambda x: attending(causal(T))(x[:1]).expand(B, T, E), "sample 1 moves when sample 0"),
    "a mean over all": (lambda x: x - x.mean(1, keepdim=True), "row 0 moves when token 1 changes"),
    "shifted the wrong way": (lambda x: x.roll(-1, 1), "row 0 moves when token 1 changes"),
    "a row that is NaN": (
        plain(lambda s: s.masked_fill(torch.ones(T, T).triu().bool(), OFF).softmax(-1)),
        r"^row 0 of sample 0 is NaN, though every input is finite: does it see nothing\?$",
    ),
    "the input is not used": (lambda x: torch.zeros(B, T, E), r"^no row moves, whatever token changes"),
}


@pytest.mark.parametrize("fault", LEAKING)
def test_faults_are_named(fault: str) -> None:
    fn, says = LEAKING[fault]
    with pytest.raises(AssertionError, match=f"(?s){says}"):
        assert_causal(fn, X)


RIGHT = {
    "ours": attending(causal(T)),
    "a window": attending(sliding_window(T, 2)),
    "nothing but oneself": attending(band(T, 0, 0)),
    "documents": attending(causal(T) & block_diagonal(torch.tensor([2, 3]))),
    "with padding": attending(causal(T) & padding(torch.tensor([3, 5]), T)),
    "rows that see nothing": attending(causal(T).tril(-1)),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0],
    "plain": plain(lambda s: s.masked_fill(future, OFF).softmax(-1)),
    "plain, -1e9": plain(lambda s: s.masked_fill(future, -1e9).softmax(-1)),
    "cumulative mean": lambda x: x.cumsum(1) / torch.arange(1, T + 1)[:, None],
    "shifted the right way": lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1],
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_causal_passes(name: str) -> None:
    assert_causal(RIGHT[name], X)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_the_matrix_is_the_mask_in_every_type_and_size(dtype: torch.dtype, size: float) -> None:
    q, x = X.to(dtype), (X * size).to(dtype)
    for mask in (causal(T), sliding_window(T, 2), prefix(T, 3), band(T, 1, 1), block_diagonal(torch.tensor([2, 3]))):
        # values alone change: a query that moves would move its row as well
        found = leaks(lambda v, mask=mask: attention(q, q, v, mask=mask).out, x)
        assert_close(found.tokens, mask)
        assert_close(found.moves, mask.expand(B, T, T))
        assert_close(found.samples, torch.eye(B).bool())
        assert found.between_samples == ()
        assert not found.nan_rows.any()
        assert found.note == ""


def test_each_sample_has_its_own_matrix() -> None:
    mask = causal(T) & padding(torch.tensor([3, 5]), T)
    found = leaks(lambda v: attention(X[:, None], X[:, None], v[:, None], mask=mask).out, X)
    assert_close(found.moves, mask[:, 0])
    assert_close(found.tokens, causal(T))


def test_keys_and_values_change_together_and_the_queries_stay() -> None:
    q, k, v = drawn(B, T, E), drawn(B, S, E, seed=1), drawn(B, S, 3, seed=2)
    mask = torch.rand(T, S, generator=torch.Generator().manual_seed(0)) < 0.5

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask=mask).out

    assert_close(leaks(fn, q, k, v, change=(1, 2)).tokens, mask)
    assert_close(leaks(fn, q, k, v, change=2).tokens, mask)
    assert_close(leaks(fn, q, k, v, change=[0]).tokens, torch.eye(T).bool() & mask.any(-1))
    assert_masked(fn, q, k, v, mask=mask, change=(1, 2))
    with pytest.raises(AssertionError, match=r"^row \d moves when token \d changes \(sample 0\): the mask hides it"):
        assert_masked(fn, q, k, v, mask=~mask, change=(1, 2))


def test_heads_unbatched_and_tokens_first() -> None:
    heads = drawn(B, H, T, 3)
    assert_close(leaks(lambda x: attention(x, x, x, mask=causal(T)).out, heads).tokens, causal(T))
    one = drawn(T, E)
    found = leaks(lambda x: attention(x, x, x, mask=causal(T)).out, one)
    assert_close(found.tokens, causal(T))
    assert_close(found.samples, torch.ones(1, 1).bool())
    turned = X.transpose(0, 1)
    assert_close(
        leaks(lambda x: attending(causal(T))(x.transpose(0, 1)).transpose(0, 1), turned, batch_first=False).moves,
        causal(T).expand(B, T, T),
    )
    with pytest.raises(AssertionError, match=r"row 0 moves when token 1 changes \(sample 1\)"):
        assert_causal(
            lambda x: torch.stack([attending(m)(x[:, i][None])[0] for i, m in enumerate((causal(T), None))], 1),
            turned,
            batch_first=False,
        )


def test_token_ids() -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(11, E), nn.Linear(E, 11)
    ids = torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(0))
    for dtype in (torch.int64, torch.int32):
        x = ids.to(dtype)
        assert_close(leaks(lambda x: head(attending(causal(T))(table(x))), x).tokens, causal(T))
        assert_causal(lambda x: head(attending(causal(T))(table(x))), x)
        assert_causal(lambda x: attending(causal(T))(table(x))[..., 0], x)  # (B, T)
    assert_causal(lambda x: attending(causal(T))(table(x)[None])[0], ids[0])
    with pytest.raises(AssertionError, match="sees the future"):
        assert_causal(lambda x: head(attending(None)(table(x))), ids)
    turned = lambda x: attending(causal(T))(table(x.T)).transpose(0, 1)  # noqa: E731
    assert_causal(turned, ids.T.contiguous(), batch_first=False)


def test_a_leak_that_only_large_numbers_show_is_found() -> None:
    fn = lambda x: (x + 100) + 3e-9 * x.flip(1)  # noqa: E731
    assert_close(leaks(fn, X, draws=1).tokens, torch.eye(T).bool())
    with pytest.raises(AssertionError, match=r"^row 0 moves when token 4 changes"):
        assert_causal(fn, X)


def test_a_leak_that_only_small_numbers_show_is_found() -> None:
    def fn(x: Tensor) -> Tensor:
        gate = (x.abs().amax(-1, keepdim=True) < 0.1).to(x)  # a token that is almost 0
        return x + gate.flip(1) * x.flip(1)

    with pytest.raises(AssertionError, match=r"^row 0 moves when token 4 changes"):
        assert_causal(fn, X)


def test_a_leak_that_a_single_draw_may_miss_is_found() -> None:
    fn = lambda x: x + x[..., :1].sign().flip(1)  # noqa: E731
    assert not leaks(fn, X, draws=1, seed=2).tokens.flip(0).diagonal().all()
    assert leaks(fn, X, draws=12, seed=2).tokens.flip(0).diagonal().all()


def test_zeros_can_be_probed() -> None:
    assert_causal(attending(causal(T)), torch.zeros(B, T, E))


@pytest.mark.parametrize("sizes", [(0, T, E), (B, 0, E), (B, T, 0), (1, 1, 1), (1, T, E), (B, 1, E)])
def test_sizes_zero_and_one(sizes: tuple[int, int, int]) -> None:
    B, T, E = sizes
    found = leaks(lambda x: x.cumsum(1), torch.ones(sizes))
    assert found.moves.shape == (B, T, T)
    assert found.samples.shape == (B, B)
    assert_close(found.tokens, causal(T) & (B > 0 and E > 0))
    if E > 0:
        assert_causal(lambda x: x.cumsum(1), torch.ones(sizes))


def test_expanded_and_strided_inputs_are_left_alone() -> None:
    for x in (X[:1].expand(3, T, E), X.mT.contiguous().mT, X[:, :, ::2], X.clone().requires_grad_()):
        kept = x.detach().clone()
        assert_causal(attending(causal(T)), x)
        assert_close(x.detach(), kept, rtol=0, atol=0)
        assert x.grad is None


def test_what_fn_does_to_its_input_changes_nothing() -> None:
    def fn(x: Tensor) -> Tensor:
        x *= 2
        out = attending(causal(T))(x)
        x.zero_()
        return out

    kept = X.clone()
    assert_causal(fn, X)
    assert_close(X, kept, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("returns", "kind"),
    [
        (lambda out: (out, None), "tuple"),
        (lambda out: [None, out, out.sum()], "list"),
        (lambda out: {"hidden": out, "other": 1}, "dict"),
    ],
)
def test_of_several_results_the_first_tensor_is_probed_and_the_report_says_so(returns: Callable, kind: str) -> None:
    note = f"fn returns a {kind}: its first tensor, (2, 5, 16), was probed."
    found = leaks(lambda x: returns(attending(causal(T))(x)), X)
    assert_close(found.tokens, causal(T))
    assert found.note == note
    assert str(found).endswith(note)
    with pytest.raises(AssertionError) as error:
        assert_causal(lambda x: returns(attending(None)(x)), X)
    assert str(error.value).endswith(note)


def test_the_global_generator_is_not_touched_and_results_repeat() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = leaks(attending(causal(T)), X)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(leaks(attending(causal(T)), X)) == str(first)


def test_a_drawing() -> None:
    fn = lambda x: x.cumsum(1) + x[:1] * torch.tensor([1.0, 0, 0])[:, None]  # noqa: E731
    assert str(leaks(fn, drawn(2, 3, 4))) == (
        "Rows down, changed tokens across, x = the row moves: 6 of 9.\n"
        "x..\n"
        "xx.\n"
        "xxx\n"
        "Across the batch: sample 1 moves when sample 0 changes."
    )
    assert "NaN whatever changes, so that no move is seen: row 0." in str(leaks(LEAKING["a row that is NaN"][0], X))
    large = str(leaks(lambda x: x.cumsum(1), torch.ones(1, 41, 1)))
    assert large == (
        "Rows down, changed tokens across, x = the row moves: 861 of 1681.\n"
        "Across the batch: no sample moves when another changes."
    )
    assert repr(leaks(fn, drawn(2, 3, 4))) == str(leaks(fn, drawn(2, 3, 4)))


def message(call: Callable[[], None]) -> str:
    with pytest.raises(AssertionError) as error:
        call()
    return str(error.value)


def test_messages_word_by_word() -> None:
    assert message(lambda: assert_causal(attending(None), X)) == (
        "row 0 moves when token 1 changes (sample 0): it sees the future, and 9 more such pairs. "
        "Every row sees every token: is there a mask at all?"
    )
    assert message(lambda: assert_causal(attending(~causal(T)), X[:1])) == (
        "row 0 moves when token 1 changes: it sees the future, and 9 more such pairs. "
        "No row sees its past: is the mask inverted?"
    )
    assert message(lambda: assert_causal(lambda x: x + F.pad(x[4:], (0, 0, 0, 4)), X[0])) == (
        "row 0 moves when token 4 changes: it sees the future. No row sees its past: is the mask inverted?"
    )
    two = lambda x: x + F.pad(x[:, 3:], (0, 0, 0, 3)) + F.pad(x[:, :1], (0, 0, 1, 3))  # noqa: E731
    assert message(lambda: assert_causal(two, X)) == (
        "row 0 moves when token 3 changes (sample 0): it sees the future, and 1 more such pairs"
    )
    one = lambda x: x + F.pad(x[:, 4:], (0, 0, 0, 4)) + F.pad(x[:, :1], (0, 0, 1, 3))  # noqa: E731
    assert message(lambda: assert_causal(one, X)) == "row 0 moves when token 4 changes (sample 0): it sees the future"
    mixed = lambda x: (x + x.sum(0, keepdim=True), None)  # noqa: E731
    assert message(lambda: assert_causal(mixed, drawn(3, T, E))) == (
        "sample 0 moves when sample 1 changes: the batch is mixed\n"
        "fn returns a tuple: its first tensor, (3, 5, 16), was probed."
    )
    assert str(leaks(mixed, drawn(3, T, E))).endswith(
        "Across the batch: sample 0 moves when sample 1 changes; sample 0 moves when sample 2 changes; "
        "sample 1 moves when sample 0 changes.\n"
        "fn returns a tuple: its first tensor, (3, 5, 16), was probed."
    )
    blind = leaks(lambda x: x * math.nan, drawn(1, 7, E))
    assert "NaN whatever changes, so that no move is seen: row 0, 1, 2, 3, 4.\n" in str(blind)
    assert str(leaks(lambda x: x, torch.ones(1, 40, 1))).count("\n") == 41


def test_options_of_the_asserts_are_passed_on() -> None:
    faint = lambda x: (x + 100) + 3e-9 * x.flip(1)  # noqa: E731
    assert_causal(faint, X, draws=1)
    assert_masked(faint, X, mask=causal(T), draws=1)
    for call in (lambda: assert_causal(faint, X), lambda: assert_masked(faint, X, mask=causal(T))):
        with pytest.raises(AssertionError, match="row 0 moves when token 4"):
            call()

    def passes(call: Callable[[], None]) -> bool:
        try:
            call()
        except AssertionError:
            return False
        return True

    sign = lambda x: x + x.sign().flip(1)  # noqa: E731
    ones, order = torch.ones(1, 2, 1), causal(2)
    seen = [not leaks(sign, ones, draws=1, seed=seed).tokens[0, 1] for seed in range(8)]
    assert len(set(seen)) == 2
    assert [passes(lambda s=s: assert_causal(sign, ones, draws=1, seed=s)) for s in range(8)] == seen
    assert [passes(lambda s=s: assert_masked(sign, ones, mask=order, draws=1, seed=s)) for s in range(8)] == seen
    turned = lambda x: attending(causal(T))(x.transpose(0, 1)).transpose(0, 1)  # noqa: E731
    assert_masked(turned, X.transpose(0, 1), mask=causal(T), batch_first=False)


def test_the_diagonal_is_allowed_only_where_the_query_is_made_from_it() -> None:
    strict = causal(T).tril(-1)
    attend = lambda q, k, v: attention(q, k, v, mask=strict).out  # noqa: E731
    assert_masked(lambda x: attend(x, x, x), X, mask=strict)
    assert_masked(attend, X, X, X, mask=strict, change=(1, 2))
    whole = lambda q, k, v: attention(q, k, v, mask=causal(T)).out  # noqa: E731
    assert_masked(lambda x: whole(x, x, x), X, mask=strict)
    with pytest.raises(AssertionError, match=r"^row 0 moves when token 0 changes \(sample 0\): the mask hides it"):
        assert_masked(whole, X, X, X, mask=strict, change=(1, 2))
    wide = torch.ones(3, T).tril(1).bool()  # other rows than tokens
    assert_masked(lambda x: attention(x[:, :3], x, x, mask=wide).out, X, mask=wide)


def test_one_number_a_row_without_a_batch() -> None:
    assert_close(leaks(lambda x: x.cumsum(0).sum(-1), X[0]).tokens, causal(T))


def test_nan_across_the_batch() -> None:
    fn = lambda x: x + 0 * x.flip(0)  # noqa: E731
    assert leaks(fn, X).between_samples == ()
    assert leaks(fn, X, value=math.nan).between_samples == ((0, 1), (1, 0))


# Other people's modules


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_multihead_attention_of_torch(need_weights: bool, mode: str) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(E, H, batch_first=True).train(mode == "train")
    blocked = to_blocked(causal(T))

    def fn(x: Tensor, mask: Tensor | None = blocked) -> tuple[Tensor, Tensor | None]:
        return module(x, x, x, attn_mask=mask, need_weights=need_weights)

    with torch.set_grad_enabled(mode != "no_grad"):
        assert_causal(fn, X)
        with pytest.raises(AssertionError, match="Every row sees every token: is there a mask at all"):
            assert_causal(lambda x: fn(x, None), X)
        with pytest.raises(AssertionError, match="it sees the future"):  # the other convention
            assert_causal(lambda x: fn(x, causal(T)), X)


def test_multihead_attention_of_torch_with_tokens_first() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(E, H)
    turned = X.transpose(0, 1)
    assert_causal(lambda x: module(x, x, x, attn_mask=to_blocked(causal(T))), turned, batch_first=False)
    with pytest.raises(AssertionError, match="sample 1 moves when sample 0 changes: the batch is mixed"):
        assert_causal(lambda x: module(x, x, x, attn_mask=to_blocked(causal(B))), X)  # batch_first forgotten


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_of_torch(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True, norm_first=norm_first)
    with pytest.raises(ValueError, match=r"^fn gives two results for the same input: call \.eval\(\) first"):
        assert_causal(layer, X)
    layer.eval()
    real = padding(torch.tensor([3, 5]), T)
    for grad in (True, False):  # without, its fast path runs
        with torch.set_grad_enabled(grad):
            assert_causal(lambda x: layer(x, src_mask=to_blocked(causal(T))), X)
            assert_masked(lambda x: layer(x, src_key_padding_mask=to_blocked(real)[:, 0, 0]), X, mask=real)
            with pytest.raises(AssertionError, match="the mask hides it"):
                assert_masked(layer, X, mask=real)
            with pytest.raises(AssertionError, match="it sees the future"):
                assert_causal(layer, X)


def test_padding_that_two_axes_put_on_the_wrong_axis() -> None:
    square = drawn(T, T, E)  # as many samples as tokens: nothing raises
    lengths = torch.tensor([5, 3, 4, 1, 2])
    wrong = padding(lengths, T)[:, 0, 0]  # (B, S), read as (T, S)
    assert_masked(attending(padding(lengths, T)), square, mask=padding(lengths, T))
    with pytest.raises(AssertionError, match=r"^row 0 moves when token 1 changes \(sample 3\): the mask hides it"):
        assert_masked(attending(wrong), square, mask=padding(lengths, T))
    on_queries = padding(lengths, T).mT  # (B, 1, T, 1)
    with pytest.raises(AssertionError, match="the mask hides it"):
        assert_masked(attending(on_queries), square, mask=padding(lengths, T))


def test_a_mask_of_each_sample_that_meets_the_heads() -> None:
    q = drawn(B, B, T, 3)  # as many heads as samples
    real = padding(torch.tensor([3, 5]), T)
    assert_masked(lambda x: attention(x, x, x, mask=real).out, q, mask=real)
    with pytest.raises(AssertionError, match=r"row 0 moves when token 3 changes \(sample 0\): the mask hides it"):
        assert_masked(lambda x: attention(x, x, x, mask=real[:, 0]).out, q, mask=real)


def test_what_one_head_may_see_all_may() -> None:
    q = drawn(B, 2, T, 3)
    mask = torch.stack([causal(T), band(T, 0, 1)])[None]
    assert_masked(lambda x: attention(x, x, x, mask=mask).out, q, mask=mask)
    with pytest.raises(AssertionError, match="row 0 moves when token 1"):
        assert_masked(lambda x: attention(x, x, x, mask=mask).out, q, mask=mask[:, :1])


# NaN


def test_nan_in_a_value_leaks_through_every_mask_finite_numbers_do_not() -> None:
    for fn in (attending(causal(T)), RIGHT["sdpa"], RIGHT["plain"]):
        assert_close(leaks(fn, X).tokens, causal(T))
        assert leaks(fn, X, value=math.nan).tokens.all()
        assert_close(leaks(fn, X, value=1e30).tokens & ~causal(T), torch.zeros(T, T).bool())
    keys = lambda k: attention(X, k, X, mask=causal(T)).out  # noqa: E731
    assert_close(leaks(keys, X, value=math.nan).tokens, causal(T))


def test_nan_origins_name_the_token() -> None:
    x = X.clone()
    x[1, 4, 3] = math.nan
    x[0, 2] = math.inf
    found = nan_origins(lambda x: x.cumsum(1), x)
    assert found.rows == ((0, 2), (0, 3), (0, 4), (1, 4))
    assert found.of_fn == ()
    assert found.origins == ((0, 0, 2, ((0, 2), (0, 3), (0, 4))), (0, 1, 4, ((1, 4),)))
    assert str(found) == (
        "Rows of the result with NaN or infinity: sample 0, rows 2, 3, 4; sample 1, row 4.\n"
        "Token 2 of sample 0, input 0, is not finite; it alone spoils: sample 0, rows 2, 3, 4.\n"
        "Token 4 of sample 1, input 0, is not finite; it alone spoils: sample 1, row 4."
    )
    spread = nan_origins(attending(causal(T)), x)
    assert spread.origins[1].rows == tuple((1, t) for t in range(T)), "a mask hides the score, not the value"


def test_nan_origins_tell_what_fn_makes_itself() -> None:
    x = X.clone()
    x[1, 1] = OFF
    found = nan_origins(lambda x: (LEAKING["a row that is NaN"][0](x.nan_to_num(0, 0, 0)) + x * 0, 1), x)
    assert found.of_fn == ((0, 0), (1, 0))
    assert found.rows == ((0, 0), (1, 0), (1, 1))
    assert "Not finite with finite inputs too, so made by fn: sample 0, row 0; sample 1, row 0." in str(found)
    assert str(found).endswith("fn returns a tuple: its first tensor, (2, 5, 16), was probed.")


def test_nan_origins_of_several_inputs_and_layouts() -> None:
    q, k, v = drawn(B, T, E), drawn(B, S, E, seed=1), drawn(B, S, E, seed=2)
    v[0, 6] = math.nan
    found = nan_origins(lambda q, k, v: attention(q, k, v).out, q, k, v)
    assert found.origins == ((2, 0, 6, tuple((0, t) for t in range(T))),)
    turned = X.transpose(0, 1).clone()
    turned[3, 1] = math.nan
    assert nan_origins(lambda x: x, turned, batch_first=False).origins == ((0, 1, 3, ((1, 3),)),)
    one = X[0].clone()
    one[2] = math.nan
    assert nan_origins(lambda x: x, one).origins == ((0, 0, 2, ((0, 2),)),)
    one = X[0].clone()
    one[2, 1] = math.nan
    assert nan_origins(lambda x: x, one).origins == ((0, 0, 2, ((0, 2),)),)
    both = X.clone()
    both[:, 2] = math.nan
    assert nan_origins(lambda x: x, both).origins == ((0, 0, 2, ((0, 2),)), (0, 1, 2, ((1, 2),)))
    assert nan_origins(lambda x: x, X).origins == nan_origins(lambda x: x, X).rows == ()
    assert str(nan_origins(lambda x: x, X)) == "Rows of the result with NaN or infinity: none."
    long = torch.full((1, 9, 2), math.nan)
    assert "sample 0, rows 0, 1, 2, 3, 4, 5 and 3 more." in str(nan_origins(lambda x: x, long))


# Bad input

CALLS = []


def growing(x: Tensor) -> Tensor:
    CALLS.append(x)
    return torch.cat(CALLS, 1)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: leaks(3, X), TypeError, r"^fn must be a function or module, got int$"),
        (lambda: leaks(torch.relu), ValueError, r"^fn needs at least one input, got none$"),
        (lambda: leaks(torch.relu, X.numpy()), TypeError, r"^input 0 must be a tensor, got ndarray: bind other arg"),
        (lambda: leaks(max, X, None), TypeError, r"^input 1 must be a tensor, got NoneType"),
        (lambda: leaks(torch.relu, X > 0), TypeError, r"^input 0 must be floating point or integer, got torch\.bool"),
        (lambda: leaks(torch.relu, X * 1j), TypeError, r"^input 0 must be floating point or integer, got torch\.comp"),
        (lambda: leaks(torch.relu, X[0, 0]), ValueError, r"^input 0 must be \(B, T, E\) or \(T, E\), got \(16,\)$"),
        (lambda: leaks(torch.relu, torch.tensor(3)), ValueError, r"^input 0 must be \(B, T\) or \(T,\), got \(\)$"),
        (lambda: leaks(torch.relu, X / 0), ValueError, r"^input 0 holds -?inf at index \(0, 0, 0\): ask nan_origins"),
        (lambda: leaks(torch.relu, X, draws=0), ValueError, r"^draws must be at least 1, got 0$"),
        (lambda: leaks(torch.relu, X, change=1), ValueError, r"^change must name inputs from 0 to 0, got 1$"),
        (lambda: leaks(torch.relu, X, change=-1), ValueError, r"^change must name inputs from 0 to 0, got -1$"),
        (lambda: leaks(torch.relu, X, change=()), ValueError, r"equally long, got lengths \[\]: say which change"),
        (lambda: leaks(torch.add, X, X[:, 1:]), ValueError, r"equally long, got lengths \[5, 4\]: say which change"),
        (lambda: leaks(torch.rand_like, X), ValueError, r"^fn gives two results for the same input: call \.eval\(\)"),
        (lambda: leaks(growing, X), ValueError, r"^fn returned \(2, 5, 16\), then \(2, 10, 16\) for the same input"),
        (lambda: leaks(lambda x: None, X), TypeError, r"^fn must return a tensor, .* got NoneType$"),
        (lambda: leaks(lambda x: (1, 2), X), TypeError, r"^fn must return a tensor, .* got tuple$"),
        (lambda: leaks(lambda x: {}, X), TypeError, r"^fn must return a tensor, .* got dict$"),
        (lambda: leaks(lambda x: x.sum(), X), ValueError, r"^fn must return one row a token, \(B, T, ...\), got \(\)$"),
        (lambda: leaks(lambda x: x.sum((1, 2)), X), ValueError, r"^fn must return one row a token, .* got \(2,\)$"),
        (lambda: leaks(lambda x: x[:1], X), ValueError, r"^fn must return a batch of 2, got \(1, 5, 16\)$"),
        (lambda: leaks(lambda x: x[x > 0][None].expand(2, -1), X), ValueError, r"for changed numbers$"),
        (lambda: leaks(lambda x: x[..., None], torch.ones(2, 3).long()), ValueError, r"^token ids must not all be eq"),
        (
            lambda: assert_causal(lambda x: x[:, 1:], X),
            ValueError,
            r"^fn must return as many rows .* tokens, 5, got 4$",
        ),
        (
            lambda: assert_masked(torch.relu, X, mask=causal(T).float()),
            TypeError,
            r"^mask must be a bool .* torch\.float32$",
        ),
        (lambda: assert_masked(torch.relu, X, mask=None), TypeError, r"^mask must be a bool tensor .* got NoneType$"),
        (lambda: assert_masked(torch.relu, X, mask=causal(T)[None]), ValueError, r"^mask must have two axes .* \(1, 5"),
        (lambda: assert_masked(torch.relu, X, mask=causal(4)), ValueError, r"to \(B, H, T, S\) = \(2, H, 5, 5\), got"),
        (lambda: nan_origins(torch.relu, [1]), TypeError, r"^input 0 must be a tensor, got list"),
        (lambda: nan_origins(lambda x: 1, X), TypeError, r"^fn must return a tensor"),
    ],
)
def test_bad_input(call: Callable[[], object], error: type[Exception], match: str) -> None:
    CALLS.clear()
    with pytest.raises(error, match=match):
        call()
