"""Experiments of notebook 08."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.block import Block
from mha_course.experiments import collapse as lesson
from mha_course.experiments import collapse_training as training
from mha_course.training import Fit


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small steps as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestMeasures:
    def test_residual_by_hand(self) -> None:
        assert lesson.residual(torch.tensor([[3.0, 4.0], [3.0, 4.0]])) == 0
        assert lesson.residual(torch.tensor([[3.0, 4.0], [-3.0, -4.0]])) == 1
        # mean (2, 0): the rows are (+-1, 0) from it, and || x ||^2 = 1 + 9
        assert lesson.residual(torch.tensor([[1.0, 0.0], [3.0, 0.0]])) == pytest.approx((2 / 10) ** 0.5)

    def test_residual_is_the_distance_to_the_nearest_equal_rows(self) -> None:
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found = lesson.residual(x)
        row = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([row], lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            (x - row).square().sum().backward()
            optimizer.step()
        assert found == pytest.approx(((x - row).norm() / x.norm()).item())

    def test_similarity_by_hand(self) -> None:
        assert lesson.similarity(torch.tensor([[1.0, 0.0], [5.0, 0.0]])) == pytest.approx(1)
        assert lesson.similarity(torch.tensor([[1.0, 0.0], [0.0, 2.0]])) == pytest.approx(0)
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
        pairs = [F.cosine_similarity(x[i], x[j], dim=0).item() for i in range(5) for j in range(5) if i != j]
        assert lesson.similarity(x) == pytest.approx(np.mean(pairs), rel=1e-5)


class TestCollapse:
    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_a_full_layer_is_a_block(self, norm: str) -> None:
        found = lesson.collapse(3, norm=norm, seed=5)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            x = torch.randn(1, 32, 64, dtype=torch.float64)
            blocks = [Block(64, 4, norm=norm, dtype=torch.float64) for _ in range(3)]
        for layer, block in enumerate([None, *blocks]):
            x = x if block is None else block(x)
            assert_allclose(found.tokens[layer], x[0].detach().numpy(), rtol=1e-9)
            assert found.residual[layer] == pytest.approx(lesson.residual(x[0]))
            assert found.similarity[layer] == pytest.approx(lesson.similarity(x[0]))

    @pytest.mark.parametrize("skip", lesson.SKIPS)
    @pytest.mark.parametrize("norm", lesson.NORMS)
    @pytest.mark.parametrize("mlp", [True, False])
    @torch.no_grad()
    def test_every_switch_by_hand(self, mlp: bool, norm: str, skip: str) -> None:
        found = lesson.collapse(1, skip=skip, norm=norm, mlp=mlp, spread=2.5, seed=3)
        torch.manual_seed(3)
        x = torch.randn(1, 32, 64, dtype=torch.float64)
        block = Block(64, 4, dtype=torch.float64)
        block.attention.q_proj.weight *= 2.5

        def normed(x: torch.Tensor, where: str) -> torch.Tensor:
            return F.layer_norm(x, (64,)) if norm == where else x

        for name, part in (("attention", block.attention), ("mlp", block.mlp))[: 1 + mlp]:
            added = part(normed(x, "pre"))
            x = normed(x + added if skip in (name, "both") else added, "post")
        assert_allclose(found.tokens[1], x[0].numpy(), rtol=1e-9, atol=1e-12)

    def test_spread_is_that_of_the_scores(self) -> None:
        torch.manual_seed(0)
        x = F.layer_norm(torch.randn(1, 32, 64, dtype=torch.float64), (64,))
        block = Block(64, 4, dtype=torch.float64)
        assert block.attention.trace(x).scores.std().item() == pytest.approx(1, rel=0.15)

    def test_depth_0_is_the_input(self) -> None:
        found = lesson.collapse(0, seed=1)
        assert found.residual.shape == found.similarity.shape == (1,)
        assert found.tokens.shape == (1, 32, 64)
        assert found.residual[0] > 0.95
        assert abs(found.similarity[0]) < 0.02

    def test_only_the_skip_holds(self) -> None:
        curves = lesson.all_stacks(12, seeds=3)
        assert list(curves) == list(lesson.STACKS)
        assert "with MLP and LayerNorm" in curves
        for name, curve in curves.items():
            assert curve.shape == (3, 13)
            if name in ("with a skip", "with all (a block)"):
                assert curve[:, 3].min() > 0.7
                assert curve[:, 12].min() > 0.08
            else:
                assert 0.4 < curve[:, 1].min() <= curve[:, 1].max() < 0.95
                assert curve[:, 6:].max() < 1e-14
        at_3 = {name: curve[:, 3] for name, curve in curves.items()}
        assert at_3["with an MLP"].max() < at_3["attention alone"].min() < 1e-6
        assert at_3["with LayerNorm"].min() > 1e-4

    def test_each_skip_does_its_part(self) -> None:
        """Without that of the attention tokens collapse faster and faster, without that of the MLP layer by layer."""
        for seed in range(3):
            of = {skip: lesson.collapse(12, skip=skip, seed=seed).residual for skip in lesson.SKIPS}
            assert of["both"][12] > 0.3
            assert 1e-9 < of["attention"][12] < 1e-5
            assert max(of["mlp"][6], of["none"][6]) < 1e-12

    def test_stacks_are_those_of_collapse(self) -> None:
        assert_allclose(
            lesson.all_stacks(2, spread=3, seeds=2)["with an MLP"][1],
            lesson.collapse(2, skip="none", norm="none", spread=3, seed=1).residual,
        )

    def test_depends_on_the_seed_alone_and_leaves_the_random_state(self) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = lesson.collapse(2, seed=3).tokens
        assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
        torch.rand(3)
        assert_allclose(lesson.collapse(2, seed=3).tokens, first, rtol=0)
        assert np.abs(lesson.collapse(2, seed=4).tokens - first).max() > 0.1


class TestIdleHead:
    def test_questions_are_what_they_say(self) -> None:
        for task in training.TASKS:
            asked = training.ask(task, 3, 50, torch.Generator().manual_seed(0))
            assert 0.4 < asked.idle.double().mean() < 0.6
            for r in range(3):
                for b in range(50):
                    keys, query = asked.keys[r, b].tolist(), asked.query[r, b].item()
                    assert len(set(keys)) == 8
                    assert set(keys) <= set(range(16))
                    if asked.idle[r, b]:
                        assert not asked.answer[r, b].any()
                        assert query == 16 if task == "told" else query in set(range(16)) - set(keys)
                    else:
                        assert_close(asked.answer[r, b], asked.values[r, b, keys.index(query)], rtol=0, atol=0)

    @pytest.mark.parametrize("place", training.PLACES)
    def test_heads_by_hand(self, place: str) -> None:
        torch.manual_seed(0)
        heads = training.Heads(place, 2)
        with torch.no_grad():
            for parameter in heads.parameters():
                parameter.normal_()
        asked = training.ask("told", 2, 3, torch.Generator().manual_seed(0))
        trace = heads(*asked[:3])
        for r in range(2):
            for b in range(3):
                q = heads.query[r, asked.query[r, b]]
                k, v = heads.key[r, asked.keys[r, b]], asked.values[r, b]
                scores = k @ q / 4
                if place == "first token":
                    scores = torch.cat([heads.first_key[r, 0] @ q / 4, scores])
                    v = torch.cat([heads.first_value[r, 0], v])
                if place == "sink logit":
                    scores, v = torch.cat([heads.sink[r, 0, 0], scores]), torch.cat([torch.zeros(1, 4), v])
                out = scores.softmax(0) @ v
                if place == "gate":
                    out = out * torch.sigmoid(q @ heads.gate[r, 0] + heads.gate_bias[r, 0, 0])
                assert_close(trace.weights[r, b, 0], scores.softmax(0))
                assert_close(trace.out[r, b, 0], out)

    @pytest.mark.parametrize("task", training.TASKS)
    def test_a_place_for_nothing_is_used(self, task: str) -> None:
        found = {place: training.idle_head(place, task, runs=3) for place in training.PLACES}
        for place, head in found.items():
            assert head.busy_error.max() < 0.03
            assert all(x.shape == (3,) for x in head)
            if place in ("first token", "sink logit"):
                assert head.idle_error.max() < 0.06
                assert head.idle_sink.min() > 0.5
                assert head.busy_sink.max() < 0.1
            else:
                assert not head.idle_sink.any()
                assert not head.busy_sink.any()
        assert found["none"].idle_error.min() > 0.1
        assert found["first token"].first_value.max() < 0.1
        gate = found["gate"].idle_error
        assert gate.min() > 0.08 if task == "absent" else gate.max() < 0.01

    def test_a_gate_that_cannot_know_shrinks_to_eight_ninths(self) -> None:
        factor = np.linspace(0, 1, 901)
        error = factor**2 / 8 + (1 - factor) ** 2
        assert factor[error.argmin()] == pytest.approx(8 / 9)
        assert error.min() == pytest.approx(1 / 9)

    def test_measured_by_hand_before_any_training(self, monkeypatch) -> None:
        monkeypatch.setattr(training, "fit", lambda *args, **options: None)
        found = training.idle_head("first token", "absent", runs=2, seed=3)
        torch.manual_seed(3)
        heads = training.Heads("first token", 2)
        asked = training.ask("absent", 2, 1000, torch.Generator().manual_seed(1_000_003))
        trace = heads(*asked[:3])
        for r in range(2):
            idle = asked.idle[r]
            out, weights, y = trace.out[r, :, 0], trace.weights[r, :, 0], asked.answer[r]
            error = ((out - y) ** 2).mean(-1)
            want = [error[idle], error[~idle], weights[idle, 0], weights[~idle, 0], weights[idle, 1:].max(-1).values]
            assert_allclose([x[r] for x in found[:5]], [x.mean().item() for x in want], rtol=1e-4)
            assert found.first_value[r] == pytest.approx(heads.first_value[r].norm().item())


class TestDecoder:
    def test_sequences_repeat_themselves(self) -> None:
        tokens, target = training.repeated(200, torch.Generator().manual_seed(0))
        assert tokens.shape == target.shape == (200, 16)
        periods = set()
        for row, wanted in zip(tokens.tolist(), target.tolist(), strict=True):
            period = row.index(row[0], 1)
            periods.add(period)
            assert len(set(row[:period])) == period
            for t in range(16):
                assert row[t] == row[t % period]
                assert wanted[t] == (-100 if t < period else row[(t + 1) % period])
        assert periods == {4, 5, 6, 7, 8}

    def test_two_blocks_learn_it_and_neither_one_nor_two_without_a_skip(self) -> None:
        two = training.train_decoder()
        one = training.train_decoder(1)
        bare = training.train_decoder(part="no skip")
        assert two.accuracy > 0.97
        assert one.accuracy < 0.7
        assert bare.accuracy < 0.9
        assert two.losses.shape == (300,)
        assert two.losses[0] == pytest.approx(math.log(16), abs=0.5)
        assert not two.model.training
        first, second = training.weight_on_answer(two.model).max(-1)
        assert first < 0.5 < second

    def test_parts_are_taken_away(self) -> None:
        x = torch.randint(16, (2, 5), generator=torch.Generator().manual_seed(0))
        models = {}
        for part in training.PARTS:
            torch.manual_seed(0)
            models[part] = training.decoder(2, part=part)
        whole = models["all"]
        want = {part: whole.positions(whole.embedding(x)) for part in training.PARTS}
        for block in whole.blocks:
            attend = lambda x, block=block: block.attention(x, is_causal=True)  # noqa: E731
            h = want["all"] + attend(block.attention_norm(want["all"]))
            want["all"] = h + block.mlp(block.mlp_norm(h))
            want["no skip"] = block.mlp(block.mlp_norm(attend(block.attention_norm(want["no skip"]))))
            want["no MLP"] = want["no MLP"] + attend(block.attention_norm(want["no MLP"]))
            h = want["no norm"] + attend(want["no norm"])
            want["no norm"] = h + block.mlp(h)
        for part, model in models.items():
            end = want[part] if part == "no norm" else whole.norm(want[part])
            assert_close(model(x), whole.read_out(end), msg=lambda text, part=part: f"{part}: {text}")

    def test_measured_on_new_sequences(self, monkeypatch) -> None:
        monkeypatch.setattr(training, "fit", lambda *args, **options: Fit(np.zeros(3), stopped=False))
        found = training.train_decoder(1, seed=2)
        tokens, target = training.repeated(500, torch.Generator().manual_seed(1_000_000))
        named = found.model(tokens).argmax(-1)
        asked = target != -100
        assert found.accuracy == pytest.approx((named[asked] == target[asked]).double().mean().item())

    def test_weight_on_answer_by_loops(self) -> None:
        torch.manual_seed(0)
        model = training.decoder(2)
        with torch.no_grad():
            for block in model.blocks:
                block.attention.q_proj.weight *= 5  # weights that differ
        found = training.weight_on_answer(model)
        tokens, target = training.repeated(200, torch.Generator().manual_seed(2_000_000))
        x = model.positions(model.embedding(tokens))
        for layer, block in enumerate(model.blocks):
            weights = block.attention.trace(block.attention_norm(x), is_causal=True).weights
            x = block(x, is_causal=True)
            answer, places = np.zeros(4), 0
            for b, t in (target != -100).nonzero().tolist():
                row = tokens[b].tolist()
                w = weights[b, :, t].detach().numpy()
                answer += sum(w[:, s] for s in range(1, t + 1) if row[s - 1] == row[t])
                places += 1
            assert_allclose(found[layer], answer / places, rtol=1e-4)

    def test_weight_on_answer_needs_whole_blocks(self) -> None:
        assert training.weight_on_answer(training.decoder(0)).shape == (0, 4)
        models = [training.decoder(1, part=part) for part in training.PARTS[1:]]
        for model in (*models, training.decoder(1, norm="post")):
            with pytest.raises(ValueError, match=r"^model must have whole pre-norm blocks$"):
                training.weight_on_answer(model)

    def test_rate_goes_up_and_down(self, monkeypatch) -> None:
        seen = []
        monkeypatch.setattr(
            training, "fit", lambda *args, lr, **options: seen.extend(map(lr, range(1, 301))) or Fit(np.zeros(3), False)
        )
        training.train_decoder(1, lr=2.0)
        assert_allclose([seen[0], seen[19], seen[150], seen[225], seen[299]], [0.1, 2, 2, 1, 2 / 150])


def test_trainings_depend_on_the_seed_alone_and_leave_the_random_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for train in (
        lambda seed: training.idle_head("none", "told", runs=2, steps=3, seed=seed).idle_error,
        lambda seed: training.train_decoder(1, steps=3, seed=seed).losses,
    ):
        first = train(3)
        assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
        torch.rand(3)
        assert_allclose(train(3), first, rtol=0)
        assert np.abs(train(4) - first).max() > 1e-4
        torch.set_rng_state(before)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.collapse(-1), ValueError, "depth must be at least 0, got -1"),
        (lambda: lesson.collapse(2.0), TypeError, "depth must be an integer, got float"),
        (lambda: lesson.collapse(1, skip="all"), ValueError, "skip must be one of .*, got 'all'"),
        (lambda: lesson.collapse(1, norm=None), ValueError, "norm must be one of .*, got None"),
        (lambda: lesson.collapse(1, spread=-1), ValueError, "spread must be finite and at least 0, got -1"),
        (lambda: lesson.collapse(1, spread=math.nan), ValueError, "spread must be finite and at least 0, got nan"),
        (lambda: lesson.collapse(1, spread=math.inf), ValueError, "spread must be finite and at least 0, got inf"),
        (lambda: lesson.all_stacks(1, seeds=0), ValueError, "seeds must be at least 1, got 0"),
        (lambda: training.idle_head("no", "told"), ValueError, "place must be one of .*, got 'no'"),
        (lambda: training.idle_head("gate", "no"), ValueError, "task must be one of .*, got 'no'"),
        (lambda: training.idle_head("gate", "told", runs=0), ValueError, "runs must be at least 1, got 0"),
        (lambda: training.idle_head("gate", "told", steps=0), ValueError, "steps must be at least 1, got 0"),
        (lambda: training.idle_head("gate", "told", lr=-1), ValueError, "lr must be finite and at least 0, got -1"),
        (lambda: training.train_decoder(-1), ValueError, "num_layers must be at least 0, got -1"),
        (lambda: training.train_decoder(part="no"), ValueError, "part must be one of .*, got 'no'"),
        (lambda: training.train_decoder(part="no skip", norm="post"), ValueError, 'is for norm "pre" alone'),
        (lambda: training.train_decoder(norm="both"), ValueError, 'norm must be "pre" or "post"'),
        (lambda: training.train_decoder(steps=1.0), TypeError, "steps must be an integer, got float"),
    ],
)
def test_bad_arguments_are_refused(call, kind, match) -> None:
    with pytest.raises(kind, match=match):
        call()
