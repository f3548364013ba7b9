"""Right and wrong solutions of notebook 12: a cache written to, what it refuses, and decoding with one."""

import math

import pytest
import torch

from mha_course.cache import KVCache
from mha_course.checks import check, engine
from mha_course.checks.repeated import Products
from tests.checks.heads import unreached


def put(buffer, start, new):
    buffer[:, :, start : start + new.shape[2]] = new


def cache(
    refuse=lambda length, T, room: length + T > room,
    put_k=put,
    put_v=put,
    use=lambda k, v: (k, v),
    start=lambda length, T, room: length,
    show=lambda buffer, new, length: buffer[:, :, : length + new.shape[2]],
    order=lambda k_all, v_all, end: (k_all, v_all, end),
    end=lambda length, T: length + T,
    before=lambda k_buffer, v_buffer: (k_buffer, v_buffer),
):
    """A solution in steps, some of them changed."""

    def fn(k_buffer, v_buffer, length, k, v):
        T, room = k.shape[2], k_buffer.shape[2]
        if refuse(length, T, room):
            raise ValueError(f"{length} + {T} > {room}")
        keys, values = before(k_buffer, v_buffer)
        first, second = use(k, v)
        put_k(keys, start(length, T, room), first)
        put_v(values, start(length, T, room), second)
        return order(show(keys, first, length), show(values, second, length), end(length, T))

    return fn


def both(fn, **others):
    return cache(put_k=fn, put_v=fn, **others)


def one_by_one(shift):
    def fn(buffer, start, new):
        for t in range(new.shape[2]):
            buffer[:, :, min(start + t + shift, buffer.shape[2] - 1)] = new[:, :, t]

    return fn


def up_to(shift):
    return lambda buffer, new, length: buffer[:, :, : max(length + shift, 0) + new.shape[2]]


def plus(more):
    return lambda length, T: length + T + more


def cleared(buffer, start, new):
    put(buffer, start, new)
    buffer[:, :, start + new.shape[2] :].zero_()


def along_heads(buffer, start, new):
    buffer[:, start : start + new.shape[2]] = new


def cut_heads(buffer, new, length):
    return buffer[:, : length + new.shape[2]]


def nothing(buffer, start, new):
    pass


START = "the new tokens are written from slot 0 on, over those that are held"
LATE = "the new tokens are written one slot too late"
EARLY = "the new tokens are written one slot too early"
NOT_WRITTEN = "the tokens are not written into the buffers"
AXIS = "the slice cuts the axis of the heads, not that of the tokens"
FULL = "nothing is raised when the cache is full: "
CACHE = [
    (cache(start=lambda length, T, room: 0), START),
    (
        cache(start=lambda length, T, room: 0, show=lambda buffer, new, length: new, end=lambda length, T: T),
        f"{START}, and these alone",
    ),
    *((both(one_by_one(1), show=up_to(more), end=plus(total)), LATE) for more in (0, 1) for total in (0, 1)),
    (cache(start=lambda length, T, room: length + 1), LATE),
    (cache(start=lambda length, T, room: max(length - 1, 0)), EARLY),
    (cache(start=lambda length, T, room: length - 1, show=up_to(-1), end=plus(-1)), EARLY),
    (cache(start=lambda length, T, room: room - T), "the new tokens are written at the end of the buffer"),
    (cache(show=lambda buffer, new, length: buffer), "the whole buffer is returned"),
    (both(nothing, show=lambda buffer, new, length: torch.cat([buffer, new], 2)), "the new tokens are put behind"),
    (cache(show=lambda buffer, new, length: buffer[:, :, :length]), "the old tokens alone are returned"),
    (cache(show=lambda buffer, new, length: new.clone()), "the new tokens alone are returned"),
    (
        cache(show=lambda buffer, new, length: buffer[:, :, : length + new.shape[2] - 1]),
        "what is returned lacks its last token",
    ),
    (cache(show=up_to(1)), "what is returned has one slot too many"),
    (cache(before=lambda k, v: (k.clone(), v.clone())), NOT_WRITTEN),
    (both(nothing, show=lambda buffer, new, length: torch.cat([buffer[:, :, :length], new], 2)), NOT_WRITTEN),
    *(
        (
            cache(
                use=lambda k, v, own=own: (k[:, :, own], v[:, :, own]),
                end=lambda length, T: length + 1,
            ),
            f"of several new tokens the {name} alone",
        )
        for name, own in (("first", slice(0, 1)), ("last", slice(-1, None)))
    ),
    (cache(put_v=nothing), "the values are not written"),
    (both(cleared), "the slots behind the new tokens are overwritten too"),
    (cache(order=lambda k_all, v_all, end: (v_all, k_all, end)), "keys and values have changed places in what is r"),
    (cache(use=lambda k, v: (v, k)), "keys and values have changed places: k is written into v_buffer"),
    (cache(use=lambda k, v: (k, k)), "the keys are written into v_buffer too"),
    (cache(use=lambda k, v: (v, v)), "the values are written into k_buffer too"),
    (cache(end=lambda length, T: length), "the old length is returned"),
    (cache(end=lambda length, T: T), "the number of new tokens is returned as the length"),
    (cache(end=lambda length, T: length + 1), "the length grows by 1 in each call"),
    (both(along_heads, show=cut_heads), AXIS),
    (both(along_heads), AXIS),
    (cache(show=cut_heads), f"{AXIS}, in what is returned"),
    (cache(refuse=lambda length, T, room: length + T >= room), "a cache that becomes exactly full is refused"),
    (
        cache(start=lambda length, T, room: 0, end=lambda length, T: length),
        "two faults: the new tokens are written from slot 0 on",
    ),
    # right as long as the tokens fit
    (cache(refuse=lambda length, T, room: False), f"{FULL}new tokens are lost without a word"),
    (cache(refuse=lambda length, T, room: length >= room), "a full cache is not checked for: PyTorch stops it"),
    (cache(refuse=lambda length, T, room: T > room - length + 1), f"{FULL}new tokens are lost without a word"),
    (both(one_by_one(0), refuse=lambda length, T, room: False), f"{FULL}tokens that are held are overwritten"),
    (
        cache(
            refuse=lambda length, T, room: False,
            before=lambda k, v: (k, v),
            put_k=lambda buffer, start, new: put(buffer, start, new[:, :, : buffer.shape[2] - start]),
            put_v=lambda buffer, start, new: put(buffer, start, new[:, :, : buffer.shape[2] - start]),
            show=lambda buffer, new, length: torch.cat([buffer[:, :, :length], new], 2),
        ),
        f"{FULL}what is returned grows beyond the buffers",
    ),
    # not named
    (cache(order=lambda k_all, v_all, end: (k_all, v_all)), "it returns a tuple of 2, expected 3"),
    (cache(order=lambda k_all, v_all, end: (k_all, v_all, float(end))), "length is not an integer, but of type float"),
    (cache(order=lambda k_all, v_all, end: (k_all, v_all, k_all)), "length is not an integer, but of type Tensor"),
    (cache(order=lambda k_all, v_all, end: (k_all.mT, v_all, end)), "k_all has the wrong shape"),
    (cache(end=lambda length, T: 2 * length + T), "the numbers differ from the reference"),
    (cache(use=lambda k, v: (k.mul_(2), v)), "the numbers differ from the reference"),
    (lambda k, v: (k, v, 1), "it cannot be called as fn(k_buffer, v_buffer, length, k, v)"),
]


def refuses_late(k_buffer, v_buffer, length, k, v):
    if length + k.shape[2] > k_buffer.shape[2]:
        v_buffer[:, :, 0] = 0
        raise ValueError("too late")
    return cache()(k_buffer, v_buffer, length, k, v)


def grows(k_buffer, v_buffer, length, k, v):
    if length + k.shape[2] <= k_buffer.shape[2]:
        return cache()(k_buffer, v_buffer, length, k, v)
    return *(torch.cat([old[:, :, :length], new], 2) for old, new in ((k_buffer, k), (v_buffer, v))), length


def raises(error):
    def fn(k_buffer, v_buffer, length, k, v):
        if length + k.shape[2] > k_buffer.shape[2]:
            raise error
        return cache()(k_buffer, v_buffer, length, k, v)

    return fn


def causal(q, k, n=0):
    scores = q @ k.T / math.sqrt(q.shape[1])
    return scores.masked_fill(torch.ones_like(scores).tril(n) == 0, -math.inf)


def decoder(
    feed=lambda x, t: x[t],
    place=lambda t, prompt: t,
    add=lambda x, p, first: x + p,
    matrices=lambda W_q, W_k, W_v: (W_q, W_k, W_v),
    see=lambda old, new: [*old, new],
    keep=lambda old, new: [*old, new],
    start=lambda rows: list(rows),
    scale=lambda d, S: 1,
    prompt_mask=causal,
    some=lambda k: k,
    show=lambda first, steps: torch.stack([*first, *steps]),
):
    """A solution in steps, some of them changed."""

    def fn(x, P, W_q, W_k, W_v, prompt):
        W_q, W_k, W_v = matrices(W_q, W_k, W_v)
        h = add(x[:prompt], P[:prompt], True)
        q, k, v = h @ W_q * scale(W_q.shape[1], prompt), h @ W_k, h @ W_v
        first, steps = prompt_mask(q, k).softmax(-1) @ v, []
        keys, values = start(k), start(v)
        for t in range(prompt, len(x)):
            h = add(feed(x, t), P[place(t, prompt)], False)
            k, v = h @ W_k, h @ W_v
            held, mixed = torch.stack(some(see(keys, k))), torch.stack(some(see(values, v)))
            scores = held @ (h @ W_q) * scale(W_q.shape[1], t + 1) / math.sqrt(W_q.shape[1])
            steps.append(scores.softmax(0) @ mixed)
            keys, values = keep(keys, k), keep(values, v)
        return show(list(first), steps)

    return fn


def divided(by):
    return decoder(scale=lambda d, S: math.sqrt(d) / by(d, S))


DECODE = [
    (decoder(some=lambda held: held[:1]), "the mask is aligned to the upper left corner"),
    (decoder(prompt_mask=lambda q, k: q @ k.T / math.sqrt(q.shape[1])), "the prompt has no causal mask"),
    (decoder(see=lambda old, new: old), "a new token does not see itself"),
    (decoder(place=lambda t, prompt: 0), "each new token gets position 0"),
    (decoder(place=lambda t, prompt: t - prompt), "positions start at 0 again behind the prompt"),
    (decoder(place=lambda t, prompt: t + 1), "the position of each new token is one too large"),
    (decoder(place=lambda t, prompt: t - 1), "the position of each new token is one too small"),
    (decoder(place=lambda t, prompt: prompt), "each new token gets the position behind the prompt"),
    (decoder(add=lambda x, p, first: x + p if first else x), "new tokens get no position"),
    (decoder(add=lambda x, p, first: x), "no token gets a position"),
    (decoder(feed=lambda x, t: x[t - 1], place=lambda t, prompt: t - 1), "everything is one token late"),
    (decoder(feed=lambda x, t: x[t - 1]), "each step reads the token before the one whose turn it is, at"),
    (decoder(keep=lambda old, new: old), "new tokens are not kept in the cache"),
    (decoder(start=lambda rows: []), "the prompt is not in the cache"),
    (decoder(see=lambda old, new: [new]), "a new token sees itself alone"),
    (decoder(keep=lambda old, new: [new]), "a new token sees itself and the last one before it alone"),
    (divided(lambda d, S: d), "the scores are divided by D: the square root of D is there twice"),
    (divided(lambda d, S: 1), "the scores are not scaled"),
    (divided(lambda d, S: d**-0.5), "the scores are multiplied by the square root of D"),
    (divided(lambda d, S: S**0.5), "the scores are divided by the square root of the number of keys"),
    (divided(lambda d, S: math.sqrt(2)), "the scores are divided by the square root of 2"),
    *((divided(lambda d, S, by=by: by), f"the scores are divided by {by}") for by in (2, 4, 8)),
    (decoder(matrices=lambda W_q, W_k, W_v: (W_q, W_k, W_k)), "the values are made with W_k"),
    (decoder(matrices=lambda W_q, W_k, W_v: (W_q, W_q, W_v)), "the keys are made with W_q"),
    (decoder(matrices=lambda W_q, W_k, W_v: (W_k, W_k, W_v)), "the queries are made with W_k"),
    (decoder(matrices=lambda W_q, W_k, W_v: (W_q, W_v, W_k)), "the matrices W_k and W_v have changed places"),
    (decoder(show=lambda first, steps: torch.stack([first[-1], *steps])), "of the prompt only the last output"),
    (decoder(show=lambda first, steps: torch.stack(steps)), "the outputs of the prompt are not returned"),
    (
        decoder(show=lambda first, steps: torch.stack(steps) if steps else torch.stack(first)[:0]),
        "the outputs of the prompt are not returned",
    ),
    (decoder(place=lambda t, prompt: 0, keep=lambda old, new: old), "two faults: each new token gets position 0"),
]


@pytest.mark.parametrize(("name", "fn"), [("cache_update", cache()), ("decode", decoder())])
def test_right(name, fn):
    verdict = check(name, fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("name", "fn", "fault"), [*(("cache_update", *one) for one in CACHE), *(("decode", *one) for one in DECODE)]
)
def test_wrong(name, fn, fault):
    verdict = check(name, fn)
    assert not verdict.ok
    assert verdict.fault.startswith(fault), verdict
    assert len(verdict.hints) >= 2


@pytest.mark.parametrize(("name", "wrong"), [("cache_update", CACHE), ("decode", DECODE)])
def test_every_variation_is_what_some_solution_does(name, wrong):
    refused = [fault for fault in unreached(name, [fn for fn, _ in wrong]) if "exactly full" not in fault]
    assert refused == [], "an error is no number to compare: test_wrong has that one"


@pytest.mark.parametrize(
    ("fn", "fault", "evidence"),
    [
        (
            cache(refuse=lambda length, T, room: False),
            f"{FULL}new tokens are lost without a word",
            "case 8 (B, H, room, length, T, S, D = 2, 3, 5, 5, 1, 6, 7; no slot is free)",
        ),
        (
            refuses_late,
            "a call that is refused was half done: something was written before the error",
            "case 8 (B, H, room, length, T, S, D = 2, 3, 5, 5, 1, 6, 7; no slot is free)",
        ),
        (
            cache(refuse=lambda length, T, room: length >= room),
            "a full cache is not checked for: PyTorch stops it, not a ValueError",
            "case 9 (B, H, room, length, T, S, D = 2, 3, 7, 5, 3, 8, 11; two slots are free)",
        ),
        (
            cache(refuse=lambda length, T, room: length + T > room > T),
            "a full cache is not checked for: PyTorch stops it, not a ValueError",
            "case 10 (B, H, room, length, T, S, D = 2, 3, 5, 0, 7, 7, 3; more tokens than slots)",
        ),
        *(
            (
                raises(error("full")),
                f"a full cache raises {error.__name__}, expected ValueError",
                f"it raises {error.__name__}: full, "
                "case 8 (B, H, room, length, T, S, D = 2, 3, 5, 5, 1, 6, 7; no slot is free)",
            )
            for error in (AssertionError, MemoryError, NotImplementedError)
        ),
        (
            grows,
            f"{FULL}what is returned grows beyond the buffers",
            "6 tokens are returned, the buffers have 5 slots, "
            "case 8 (B, H, room, length, T, S, D = 2, 3, 5, 5, 1, 6, 7; no slot is free)",
        ),
    ],
)
def test_what_must_be_refused(fn, fault, evidence):
    verdict = check("cache_update", fn)
    assert verdict.fault == fault
    assert verdict.evidence.endswith(evidence), verdict.evidence
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("error", [ValueError, UnicodeError])
def test_any_value_error_refuses(error):
    assert check("cache_update", raises(error("full")))


@pytest.mark.parametrize("of", [int, torch.tensor, lambda end: torch.tensor(end, dtype=torch.int32)])
def test_a_length_may_be_any_integer(of):
    assert check("cache_update", cache(order=lambda k_all, v_all, end: (k_all, v_all, of(end))))


def test_what_is_not_written_differs_in_the_buffer_and_new_tokens_are_no_buffer():
    def keys_scaled(k_buffer, v_buffer, length, k, v):
        k_all, v_all, end = cache()(k_buffer, v_buffer, length, k, v)
        k_all = k_all.clone()
        k_buffer[:, :, length] += 0.5
        return k_all, v_all, end

    verdict = check("cache_update", keys_scaled)
    assert verdict.fault == "the numbers differ from the reference"
    assert verdict.evidence.startswith(
        "largest difference 0.50 in k_buffer, sample 0, head 0, slot 5, feature 0 (count"
    )

    def spoils_the_new(k_buffer, v_buffer, length, k, v):
        results = cache()(k_buffer, v_buffer, length, k, v)
        k.zero_()
        return results

    assert check("cache_update", spoils_the_new).fault == "it changes its input k in place"


def test_the_reference_does_what_the_package_does():
    generator = torch.Generator().manual_seed(0)
    held = KVCache(2, 3, 11, 5, dtype=torch.float64)
    k_buffer, v_buffer, length = torch.zeros(2, 3, 11, 5), torch.zeros(2, 3, 11, 5), 0
    k_buffer, v_buffer = k_buffer.double(), v_buffer.double()
    for T in (7, 1, 3):
        k, v = (torch.randn(2, 3, T, 5, generator=generator, dtype=torch.float64) for _ in range(2))
        k_all, v_all, length = reference("cache_update")(k_buffer, v_buffer, length, k, v)
        for ours, theirs in zip((k_all, v_all), held.update(k, v), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert length == held.length
    with pytest.raises(ValueError, match="11 tokens are held, 1 more do not fit into 11 slots"):
        reference("cache_update")(k_buffer, v_buffer, length, k[:, :, :1], v[:, :, :1])


@pytest.mark.parametrize("index", range(7))
def test_the_reference_equals_one_pass_over_all_tokens(index):
    x, P, W_q, W_k, W_v, prompt = engine._TASKS["decode"].cases()[index].inputs
    h = x + P[: len(x)]
    whole = causal(h @ W_q, h @ W_k).softmax(-1) @ h @ W_v
    torch.testing.assert_close(reference("decode")(x, P, W_q, W_k, W_v, prompt), whole)


def reference(name):
    return engine._TASKS[name].reference


AGAIN = "the numbers are right, but tokens that were read before are computed again"
AT_ONCE = "the numbers are right, but all tokens are computed at once, not one at a time"


def again(which):
    """Of queries, keys and values, some are computed for all tokens in every step."""

    def fn(x, P, W_q, W_k, W_v, prompt):
        kept, out = [x.new_empty(0, W_q.shape[1])] * 3, []
        for n, end in [(0, prompt), *((t, t + 1) for t in range(prompt, len(x)))]:
            h = x[:end] + P[:end]
            kept = [
                h @ W if name in which else torch.cat([old, h[n:] @ W])
                for name, W, old in zip("qkv", (W_q, W_k, W_v), kept, strict=True)
            ]
            q, k, v = kept
            out.append(causal(q[n:], k, n).softmax(-1) @ v)
        return torch.cat(out)

    return fn


def ahead(which):
    """The same, but computed for all tokens before the first step."""

    def fn(x, P, W_q, W_k, W_v, prompt):
        h, out = x + P[: len(x)], []
        whole = {name: h @ W for name, W in zip("qkv", (W_q, W_k, W_v), strict=True) if name in which}
        rows = {name: x.new_empty(0, W_q.shape[1]) for name in "qkv"}
        for n, end in [(0, prompt), *((t, t + 1) for t in range(prompt, len(x)))]:
            for name, W in zip("qkv", (W_q, W_k, W_v), strict=True):
                new = whole[name][n:end] if name in which else h[n:end] @ W
                rows[name] = torch.cat([rows[name], new])
            out.append(causal(rows["q"][n:], rows["k"], n).softmax(-1) @ rows["v"])
        return torch.cat(out)

    return fn


@pytest.mark.parametrize("which", ["q", "k", "v", "kv", "qkv"])
def test_tokens_computed_again(which):
    verdict = check("decode", again(which))
    assert verdict.fault == AGAIN, verdict
    rows = len(which) * sum(range(3, 14)) + (3 - len(which)) * 13
    seen = f"{rows} rows of queries, keys and values are computed, 39 are needed, with T, prompt = 13, 3"
    assert verdict.evidence == seen
    assert len(verdict.hints) == 2


@pytest.mark.parametrize("which", ["q", "k", "v", "qkv"])
def test_tokens_computed_ahead(which):
    verdict = check("decode", ahead(which))
    assert verdict.fault == AT_ONCE, verdict
    assert verdict.evidence == "a product reads more tokens than the prompt has, with T, prompt = 13, 3"


def one_by_one_number(x, P, W_q, W_k, W_v, prompt):
    """Products written out: the numbers multiplied are as many."""
    keys, values, out = [], [], []
    for t, token in enumerate(x):
        q, k, v = (((token + P[t])[:, None] * W).sum(0) for W in (W_q, W_k, W_v))
        keys.append(k)
        values.append(v)
        scores = torch.stack([key.dot(q) for key in keys]) / math.sqrt(len(q))
        out.append(sum(w * value for w, value in zip(scores.softmax(0), values, strict=True)))
    return torch.stack(out)


def doubled(x, P, W_q, W_k, W_v, prompt):
    decoder()(x, P, W_q, W_k, W_v, prompt)
    return decoder()(x, P, W_q, W_k, W_v, prompt)


@pytest.mark.parametrize("fn", [one_by_one_number, doubled, again("")])
def test_every_token_once_is_right(fn):
    verdict = check("decode", fn)
    assert verdict.ok, verdict


def test_what_fails_under_the_count_alone_is_no_fault_but_an_interrupt_passes_through():
    def fails(error):
        def fn(x, *others):
            if x.shape[1] > 100:
                raise error
            return decoder()(x, *others)

        return fn

    assert check("decode", fails(RuntimeError()))
    with pytest.raises(KeyboardInterrupt):
        check("decode", fails(KeyboardInterrupt()))


def test_multiplications_are_counted():
    a, b, c = torch.ones(3, 5), torch.ones(5, 7), torch.ones(2, 3, 5)
    for run, count in (
        (lambda: a @ b, 105),
        (lambda: c @ b, 210),
        (lambda: torch.bmm(c, b.expand(2, 5, 7)), 210),
        (lambda: a @ b[:, 0], 15),
        (lambda: a[0] @ b[:, 0], 5),
        (lambda: torch.addmm(torch.ones(7), a, b), 105),
        (lambda: torch.addmv(torch.ones(3), a, b[:, 0]), 15),
        (lambda: torch.baddbmm(torch.ones(2, 3, 7), c, b.expand(2, 5, 7)), 210),
        (lambda: a[..., None] * b, 105),
        (lambda: a + 1, 0),
    ):
        with Products() as products:
            run()
            run()
        assert (products.total, products.most) == (2 * count, count)
