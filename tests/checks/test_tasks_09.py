"""Right and wrong solutions of notebook 09: a leak probe."""

import pytest
import torch

from mha_course.checks import check, engine, probe
from tests.checks.heads import unreached


def leak_probe(fn, x):
    before = fn(x)
    T = x.shape[1]
    moves = torch.zeros(T, T, dtype=torch.bool)
    for s in range(T):
        changed = x.clone()
        changed[:, s] += 1
        moves[:, s] = (fn(changed) != before).any(-1).any(0)
    return moves


def drawn(fn, x):
    columns = []
    for s in range(x.size(1)):
        changed = x.clone()
        changed[:, s, :] = torch.randn(x.size(0), x.size(2), dtype=x.dtype)
        columns.append((fn(changed) - fn(x)).abs().amax((0, 2)) > 0)
    return torch.stack(columns, dim=1)


def at_once(fn, x):
    T = x.shape[1]
    copies = x.repeat(T, 1, 1, 1)
    index = torch.arange(T)
    copies[index, :, index] = 3.0
    before = [fn(x) for _ in range(T)]
    after = [fn(one) for one in copies]
    return torch.stack([(a != b).any(2).any(0) for a, b in zip(after, before, strict=True)]).T


def by_loops(fn, x):
    before, rows = fn(x), []
    for t in range(x.shape[1]):
        row = []
        for s in range(x.shape[1]):
            changed = torch.cat([x[:, :s], x[:, s : s + 1] - 0.3, x[:, s + 1 :]], 1)
            row.append(not torch.equal(fn(changed)[:, t], before[:, t]))
        rows.append(row)
    return torch.tensor(rows)


def put_back(fn, x):
    before, moves = fn(x), []
    for s in range(x.shape[1]):
        kept = x[:, s].clone()
        x[:, s] = torch.rand_like(kept)
        moves.append((fn(x) != before).flatten(2).any(2).any(0))
        x[:, s] = kept
    return torch.stack(moves, 1)


def by_gradients(fn, x):
    x = x.clone().requires_grad_()
    out = fn(x)
    rows = []
    for t in range(x.shape[1]):
        weighted = out[:, t] * torch.randn(out.shape[-1], dtype=x.dtype)
        (gradient,) = torch.autograd.grad(weighted.sum(), x, retain_graph=True)
        rows.append((gradient != 0).any(2).any(0))
    return torch.stack(rows)


def by_jacobian(fn, x):
    return (torch.autograd.functional.jacobian(fn, x) != 0).any(5).any(3).any(2).any(0)


def by_the_packages_probe(fn, x):
    return probe.leaks(fn, x).tokens


def changed_to(value):
    def fn(layer, x):
        after = x.expand(x.shape[1], *x.shape).clone()
        for s, tokens in enumerate(after):
            tokens[:, s] = value
        return torch.stack([(layer(tokens) != layer(x)).any(-1).any(0) for tokens in after], 1)

    return fn


RIGHT = [
    changed_to(1e6),
    changed_to(1.0),
    changed_to(torch.tensor(1e-3)),
    leak_probe,
    drawn,
    at_once,
    by_loops,
    put_back,
    by_gradients,
    by_jacobian,
    by_the_packages_probe,
]


def loop(
    change=lambda token: token + 1,
    which=lambda s: s,
    moved=lambda after, before: after != before,
    reduce=lambda moved: moved.any(-1).any(0),
    into=lambda moves, s, rows: moves[:, s].copy_(rows),
):
    def fn(layer, x):
        before = layer(x)
        T = x.shape[1]
        moves = torch.zeros(T, T, dtype=torch.bool)
        for s in range(T):
            changed = x.clone()
            changed[:, which(s)] = change(changed[:, which(s)])
            into(moves, s, reduce(moved(layer(changed), before)))
        return moves

    return fn


def cumulative(fn, x):
    before, changed, columns = fn(x), x.clone(), []
    for s in range(x.shape[1]):
        changed[:, s] += 1
        columns.append((fn(changed) != before).any(-1).any(0))
    return torch.stack(columns, 1)


def cumulative_in_place(fn, x):
    before, columns = fn(x), []
    for s in range(x.shape[1]):
        x[:, s] += 1
        columns.append((fn(x) != before).any(-1).any(0))
    return torch.stack(columns, 1)


def same_tensor(fn, x):
    columns = []
    for s in range(x.shape[1]):
        changed = x
        changed[:, s] += 1
        columns.append((fn(changed) != fn(x)).any(-1).any(0))
    return torch.stack(columns, 1)


def axis(place):
    """Index s along another axis."""

    def fn(layer, x):
        columns = []
        for s in range(x.shape[1]):
            changed = x.clone()
            changed[place(s)] += 1
            columns.append((layer(changed) != layer(x)).any(-1).any(0))
        return torch.stack(columns, 1)

    return fn


def all_drawn(fn, x):
    return torch.stack([(fn(torch.randn_like(x)) != fn(x)).any(2).any(0) for _ in range(x.shape[1])], 1)


def one_sample_changed(fn, x):
    columns = []
    for s in range(x.shape[1]):
        changed = x.clone()
        changed[0, s] += 1
        columns.append((fn(changed) != fn(x)).any(2).any(0))
    return torch.stack(columns, 1)


def single(fn, x):
    return leak_probe(lambda tokens: fn(tokens)[-1:], x)


def looked_at(rows):
    """Which rows are looked at when token s is changed."""

    def into(moves, s, moved):
        moves[rows(s), s] = moved[rows(s)]

    return loop(into=into)


def own_left_out(moves, s, rows):
    moves[:, s] = rows
    moves[s, s] = False


def tolerant(*how):
    return loop(moved=lambda a, b: ~torch.isclose(a, b, *how))


EVERY = "a row counts as moved only if"
WRONG = [
    (loop(into=lambda moves, s, rows: moves[s].copy_(rows)), "rows and columns have changed places"),
    (lambda fn, x: torch.stack(list(leak_probe(fn, x).unbind(1))), "rows and columns have changed places"),
    (loop(moved=lambda a, b: a == b, reduce=lambda same: same.all(-1).all(0)), "the answer is inverted"),
    (cumulative, "tokens before s are changed too"),
    (cumulative_in_place, "tokens before s are changed too"),
    (loop(which=lambda s: slice(s + 1)), "tokens before s are changed too"),
    (loop(which=lambda s: slice(s, None)), "token s and all those behind it"),
    (tolerant(), "small moves are missed"),
    (tolerant(1e-9, 1e-9), "small moves are missed"),
    (loop(moved=lambda a, b: (a - b).abs() > 1e-6), "small moves are missed"),
    (loop(moved=lambda a, b: a.float() != b.float()), "small moves are missed"),
    (loop(reduce=lambda moved: moved.all(-1).any(0)), f"{EVERY} all its numbers are others: a leak"),
    (loop(reduce=lambda moved: moved[..., 0].any(0)), f"{EVERY} all its numbers are others: a leak"),
    (loop(reduce=lambda moved: moved.all(-1).all(0)), f"{EVERY} all its numbers are others, in all samples"),
    (
        loop(moved=lambda a, b: a == b, reduce=lambda same: ~same.any(-1).any(0)),
        f"{EVERY} all its numbers are others, in",
    ),
    (loop(reduce=lambda moved: moved.any(-1).all(0)), f"{EVERY} it moves in all samples"),
    (loop(reduce=lambda moved: moved[0].any(-1)), "one sample alone"),
    (one_sample_changed, "one sample alone"),
    (single, "one sample alone"),
    (loop(lambda token: token * 2), "the token is made longer"),
    (loop(lambda token: token * 4), "the token is made longer"),
    (loop(lambda token: -token), "the token is set to 0, or multiplied"),
    (loop(lambda token: 0 * token), "the token is set to 0, or multiplied"),
    (loop(lambda token: token * torch.nan), "the token is set to NaN or infinity"),
    (loop(lambda token: torch.full_like(token, torch.inf)), "the token is set to NaN or infinity"),
    (lambda fn, x: torch.ones(x.shape[1], x.shape[1]).tril().bool(), "a causal mask is returned"),
    (looked_at(lambda s: s), "only row s is looked at"),
    (looked_at(lambda s: slice(s)), "only rows up to token s"),
    (looked_at(lambda s: slice(s + 1)), "only rows up to token s"),
    (looked_at(lambda s: slice(s, None)), "rows before token s are left out"),
    (loop(into=own_left_out), "the diagonal is left out"),
    (loop(which=lambda s: s - 1), "the tokens are counted one off: column s shows what token s - 1"),
    (
        lambda fn, x: loop(which=lambda s: (s + 1) % x.shape[1])(fn, x),
        "the tokens are counted one off: column s shows what token s + 1",
    ),
    (axis(lambda s: s), "every row moves with every token"),
    (axis(lambda s: (..., s)), "every row moves with every token"),
    (all_drawn, "every row moves with every token"),
    (same_tensor, "no row moves"),
    (loop(lambda token: token), "no row moves"),
    # not named
    (lambda fn, x: leak_probe(fn, x).float(), "moves has type float32, expected bool, True = the row moves"),
    (lambda fn, x: leak_probe(fn, x).any(), "moves has the wrong shape"),
    (lambda fn, x: leak_probe(fn, x).expand(2, -1, -1), "moves has the wrong shape"),
    (lambda fn, x: leak_probe(fn, x).tolist(), "it returns a list of 5 instead of one tensor"),
    (lambda fn, x: probe.leaks(fn, x), "moves is a Leaks, expected a tensor"),
    (looked_at(lambda s: slice(0, 1)), "moves differs from the reference"),
    (lambda fn: fn, "it cannot be called as fn(fn, x)"),
]


@pytest.mark.parametrize("fn", RIGHT)
def test_right(fn):
    verdict = check("leak_probe", fn)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("fn", "fault"), WRONG)
def test_wrong(fn, fault):
    verdict = check("leak_probe", fn)
    assert (verdict.fault or "").startswith(fault), verdict
    assert len(verdict.hints) == 2


def test_every_variation_is_what_some_solution_does():
    assert unreached("leak_probe", [fn for fn, _ in WRONG]) == []


def test_the_reference_agrees_with_the_packages_probe_and_with_the_definition():
    task = engine._TASKS["leak_probe"]
    cases = task.cases()
    for case in cases:
        moves = task.reference(*case.inputs)
        assert torch.equal(moves, probe.leaks(*case.inputs).tokens)
    by_hand = {
        0: torch.ones(5, 5).tril(),
        1: torch.ones(7, 7).tril() - torch.ones(7, 7).tril(-2),
        2: torch.ones(3, 3),
        3: torch.ones(5, 5).tril(1),
        4: torch.ones(5, 5),
        5: torch.ones(3, 3).tril(),
        6: torch.ones(3, 3).tril(),
        7: torch.ones(5, 5).tril(),
    }
    for i, expected in by_hand.items():
        assert torch.equal(task.reference(*cases[i].inputs), expected.bool())


def test_evidence_names_row_and_changed_token():
    verdict = check("leak_probe", tolerant())
    assert verdict.evidence == (
        "10 of 25 entries differ, the first at row 0, changed token 1 (counted from 0): False, expected True, "
        "case 5 (B, T, E = 7, 5, 11; a leak of 1e-11)"
    )
