"""The reader of notebook 06, its trainings, and what is measured on it."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.data import copy_back, latest_marked
from mha_course.experiments import extrapolation as lesson
from mha_course.positions import Rotary, rotary_frequencies, sinusoidal, t5_buckets
from mha_course.training import Fit

SCHEMES = ("none", "learned", "sinusoidal", "T5", "ALiBi", "rotary")
TASKS = ("copy 2 back", "latest marked")
CASES = [*((scheme, None) for scheme in SCHEMES), ("rotary", "yarn")]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine take many times as long for small steps as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reader(scheme: str, seed: int = 0, **options) -> lesson.Reader:
    """A reader whose parameters are all large enough to matter."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = lesson.Reader(scheme, **options)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def drawn(batch: int = 3, length: int = 41, seed: int = 0):
    return torch.randint(16, (batch, length), generator=torch.Generator().manual_seed(seed))


def slower(scaling: str | None = "yarn") -> Rotary | None:
    return None if scaling is None else Rotary(8, scaling="yarn", factor=4.0, trained_length=32)


def turned(x, scaling):
    """Rotary by complex numbers: pair i is entries i and i + 4."""
    options = {} if scaling is None else {"scaling": scaling, "factor": 4.0, "trained_length": 32}
    angle = torch.arange(len(x)).double()[:, None] * rotary_frequencies(8, dtype=torch.float64, **options)
    size = 1.0 if scaling is None else 0.1 * math.log(4) + 1
    pairs = torch.complex(x[:, :4], x[:, 4:]) * torch.polar(torch.full_like(angle, size), angle)
    return torch.cat([pairs.real, pairs.imag], -1)


def by_hand(model, tokens, window=None, scaling=None):
    """Logits (T, 16) and weights (H, T, T) of one sequence, in float64 and one query at a time."""
    model, T = copy.deepcopy(model).double(), len(tokens)
    x = model.embed.weight[tokens]
    if model.scheme == "learned":
        x = x + model.absolute.weight[:T]
    if model.scheme == "sinusoidal":
        x = x + sinusoidal(T, 32, dtype=torch.float64)
    qkv = F.layer_norm(x, (32,), model.norm.weight, model.norm.bias) @ model.qkv_proj.weight.T + model.qkv_proj.bias
    heads, weights = torch.zeros(T, 32).double(), torch.zeros(4, T, T).double()
    for h in range(4):
        q, k, v = (qkv[:, start + 8 * h : start + 8 * h + 8] for start in (0, 32, 64))
        if model.scheme == "rotary":
            q, k = turned(q, scaling), turned(k, scaling)
        for t in range(T):
            first = 0 if window is None else max(0, t - window + 1)
            scores = q[t] @ k[first : t + 1].T / math.sqrt(8)
            distance = t - torch.arange(first, t + 1)
            if model.scheme == "ALiBi":
                scores = scores - distance / 4 ** (h + 1)
            if model.scheme == "T5":
                scores = scores + model.t5.weight[t5_buckets(-distance, bidirectional=False), h]
            weights[h, t, first : t + 1] = scores.softmax(-1)
        heads[:, 8 * h : 8 * h + 8] = weights[h] @ v
    out = x + heads @ model.out_proj.weight.T + model.out_proj.bias
    norm, linear = model.readout
    return F.layer_norm(out, (32,), norm.weight, norm.bias) @ linear.weight.T + linear.bias, weights


def test_names():
    assert lesson.SCHEMES == SCHEMES
    assert lesson.TASKS == TASKS


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("scheme", "scaling"), CASES)
@torch.no_grad()
def test_logits_and_weights_by_hand(scheme, scaling, window):
    model, tokens = reader(scheme), drawn()
    logits, weights = by_hand(model, tokens[1], window, scaling)
    options = {"window": window, "rotary": slower(scaling)}
    assert_close(model(tokens, **options)[1].double(), logits, rtol=1e-3, atol=1e-3)
    assert_close(model.weights(tokens, **options)[1].double(), weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_the_first_places_of_a_longer_sequence_are_read_as_those_of_a_shorter(scheme):
    model, tokens = reader(scheme), drawn(length=128)
    assert_close(model(tokens)[:, :32], model(tokens[:, :32]), rtol=1e-4, atol=1e-4)


def test_a_learned_table_ends():
    model = reader("learned", longest=37)
    assert model.absolute.weight.shape == (37, 32)
    with pytest.raises(ValueError, match="the table ends at position 36"):
        model(drawn(length=38))


def test_t5_groups_distances_up_to_the_one_given():
    assert reader("T5").t5.max_distance == 128
    model = reader("T5", max_distance=17)
    last = model.t5(40)[:, -1]  # (H, S), of distance 39 - s
    assert_close(last[:, 0], last[:, 22], rtol=0, atol=0)  # 39 and 17
    assert (last[:, 22] != last[:, 24]).all()  # 17 and 15


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_those_of_data(task):
    kind = {"copy 2 back": copy_back, "latest marked": latest_marked}[task]
    mine = lesson.draw(task, 5, 41, torch.Generator().manual_seed(3))
    for one, other in zip(mine, kind(5, 41, generator=torch.Generator().manual_seed(3)), strict=True):
        assert_close(one, other, rtol=0, atol=0)


class Stub(lesson.Reader):
    """Names given tokens, weighs by given weights, and keeps what it was asked."""

    def __init__(self, answer=None, weigh=None) -> None:
        super().__init__("rotary")
        self.answer, self.weigh, self.asked = answer, weigh, []

    def forward(self, tokens, *, window=None, rotary=None):
        self.asked.append((tokens, window, rotary))
        return F.one_hot(self.answer(tokens), 16).float()

    def weights(self, tokens, *, window=None, rotary=None):
        self.asked.append((tokens, window, rotary))
        return self.weigh(tokens).expand(len(tokens), 4, -1, -1)


def copied(tokens):
    return tokens.roll(2, dims=1)


def latest(tokens, which=-1):
    """Value of the last marked token (or another), found by a loop; 0 before the first."""
    answers = torch.zeros_like(tokens)
    for b, t in itertools.product(*map(range, tokens.shape)):
        seen = [int(token) - 8 for token in tokens[b, : t + 1] if token >= 8]
        answers[b, t] = seen[which] if seen else 0
    return answers


def test_accuracy_is_that_of_each_place():
    curve = lesson.accuracy(Stub(copied), "copy 2 back", 11, sequences=3)
    assert_allclose(curve, [np.nan, np.nan, *[1] * 9])

    def at_times(tokens):
        answers = copied(tokens)
        answers[:1, 5] = (answers[:1, 5] + 1) % 16
        answers[:, 7] = (answers[:, 7] + 1) % 16
        return answers

    assert_allclose(
        lesson.accuracy(Stub(at_times), "copy 2 back", 9, sequences=4), [np.nan, np.nan, 1, 1, 1, 0.75, 1, 0, 1]
    )


def test_accuracy_leaves_out_places_without_an_answer():
    assert_allclose(lesson.accuracy(Stub(latest), "latest marked", 23, sequences=50), np.ones(23))
    first = lesson.accuracy(Stub(lambda tokens: latest(tokens, 0)), "latest marked", 23, sequences=50)
    assert first[0] == 1
    assert 0.125 < first[-1] < 0.6


@pytest.mark.parametrize("measure", [lesson.accuracy, lesson.weight_by_distance, lesson.weight_on_answer])
def test_what_is_measured_on_which_sequences(measure):
    stub = Stub(copied, lambda tokens: torch.eye(tokens.shape[1]))
    other = slower()
    for options in ({}, {"window": 5, "rotary": other, "sequences": 7, "seed": 1}, {"seed": 1}):
        measure(stub, "copy 2 back", **options)
        measure(stub, "copy 2 back", **options)
    tokens, windows, rotaries = zip(*stub.asked, strict=True)
    assert windows == (None, None, 5, 5, None, None)
    assert rotaries == (None, None, other, other, None, None)
    usual = 256 if measure is lesson.accuracy else 64
    assert [tuple(x.shape) for x in tokens[::2]] == [(usual, 128), (7, 128), (usual, 128)]
    for one, again in zip(tokens[::2], tokens[1::2], strict=True):
        assert_close(one, again, rtol=0, atol=0)
    assert (tokens[0] != tokens[4]).any()


def test_within_and_beyond_by_hand():
    curve = np.concatenate([[np.nan, np.nan], np.full(15, 0.2), np.full(15, 0.4), np.full(5, 0.5), np.full(5, 0.7)])
    assert_allclose(lesson.within_and_beyond(curve), [0.3, 0.6])
    assert_allclose(lesson.within_and_beyond(np.stack([curve, curve + 1])), [[0.3, 0.6], [1.3, 1.6]])
    assert_allclose(lesson.within_and_beyond(np.append(np.full(32, np.nan), 1)), [np.nan, 1])


def test_weight_by_distance_by_hand():
    def weigh(tokens):  # 3/4 two places back, 1/4 on the first key, all on the first where there are not two
        T = tokens.shape[1]
        weights = torch.zeros(T, T)
        for t in range(T):
            weights[t, max(t - 2, 0)] += 0.75
            weights[t, 0] += 0.25
        return weights

    found = lesson.weight_by_distance(Stub(weigh=weigh), "copy 2 back", 41)
    expected = np.zeros(41)
    expected[2] = 0.75
    expected[25:] = 0.25 / 16  # queries 25 to 40 look at key 0
    assert_allclose(found, np.tile(expected, (4, 1)), rtol=1e-6)
    short = lesson.weight_by_distance(Stub(weigh=weigh), "copy 2 back", 4)[0]
    assert_allclose(short, [0.25, 0.25 / 4 + 0.75 / 4, 0.75 / 2 + 0.25 / 4, 0.25 / 4], rtol=1e-6)


def test_weight_on_answer_by_hand():
    even = Stub(weigh=lambda tokens: torch.ones(tokens.shape[1], tokens.shape[1]).tril() / torch.arange(1, 12)[:, None])
    expected = [np.nan, np.nan, *(1 / np.arange(3, 12))]
    assert_allclose(lesson.weight_on_answer(even, "copy 2 back", 11), np.tile(expected, (4, 1)))
    two_back = Stub(weigh=lambda tokens: torch.eye(11).roll(-2, 1))
    assert_allclose(lesson.weight_on_answer(two_back, "copy 2 back", 11)[2, 2:], np.ones(9))

    def on_latest(tokens):
        weights = torch.zeros(len(tokens), 1, 11, 11)
        for b, t in itertools.product(range(len(tokens)), range(11)):
            marked = [s for s in range(t + 1) if tokens[b, s] >= 8]
            weights[b, 0, t, marked[-1] if marked else t] = 1.0 if marked else 0.5
        return weights

    assert_allclose(lesson.weight_on_answer(Stub(weigh=on_latest), "latest marked", 11), np.ones((4, 11)))
    own = lesson.weight_on_answer(Stub(weigh=lambda tokens: torch.eye(11)), "latest marked", 11, sequences=2000)
    assert own[0, 0] == 1
    # the latest of 11 tokens is the last one in 1 of 8 cases, of those that have any
    share = 0.125 / (1 - 0.875**11)
    assert_allclose(own[0, -1], share, atol=5 * math.sqrt(share * (1 - share) / 1500))


def test_rate_by_hand():
    found = [lesson.rate(step, 250) for step in (1, 10, 25, 26, 100, 126, 188, 250)]
    assert_allclose(found, [0.04, 0.4, 1, 1, 1, 1, 2 * 63 / 250, 0.008])


def test_default_sizes(monkeypatch):
    seen = []

    def recorded(model, batches, *, steps, lr, loss, optimizer):
        tokens, target = next(iter(batches))
        group = optimizer(model.parameters(), lr=3.0).param_groups[0]
        assert_close(loss(torch.zeros(16, 32, 16), target).item(), math.log(16), rtol=1e-6, atol=0)
        seen.append((model.scheme, tuple(tokens.shape), steps, lr(1), lr(25), group["lr"], group["weight_decay"]))
        return Fit(np.zeros(steps), stopped=False)

    monkeypatch.setattr(lesson, "fit", recorded)
    lesson.train("T5", "latest marked")
    assert seen == [("T5", (16, 32), 250, 4e-4, 1e-2, 3.0, 0.01)]


def test_a_training_depends_on_its_seed_alone():
    torch.manual_seed(1)
    first, again, other = (lesson.train("learned", "latest marked", steps=3, seed=seed) for seed in (3, 3, 4))
    for name, parameter in first.named_parameters():
        assert_close(parameter, again.get_parameter(name), rtol=0, atol=0)
        assert (parameter != other.get_parameter(name)).any()
    assert not first.training


def test_all_schemes_see_the_same_batches(monkeypatch):
    seen = []

    def recorded(model, batches, **options):
        seen.append(torch.stack([next(batches).tokens for _ in range(2)]))
        return Fit(np.zeros(1), stopped=False)

    monkeypatch.setattr(lesson, "fit", recorded)
    for scheme in SCHEMES:
        lesson.train(scheme, "copy 2 back", seed=5)
    lesson.train("none", "copy 2 back", seed=6)
    *same, other = seen
    for batches in same[1:]:
        assert_close(batches, same[0], rtol=0, atol=0)
    assert (other != same[0]).any()
    assert (same[0][0] != same[0][1]).any()


def test_the_random_state_of_the_caller_is_untouched():
    before = torch.get_rng_state()
    for scheme in SCHEMES:
        lesson.accuracy(lesson.train(scheme, "copy 2 back", steps=1), "copy 2 back", sequences=1)
    assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


@pytest.fixture(scope="module")
def trained(one_thread):
    """One training each of what the next three tests need."""
    pairs = [("rotary", task) for task in TASKS] + [("learned", TASKS[0]), ("T5", TASKS[0]), ("ALiBi", TASKS[1])]
    return {pair: lesson.train(*pair, seed=1) for pair in pairs}


def test_what_the_lesson_says(trained):
    def found(scheme, task, **options):
        curve = lesson.accuracy(trained[scheme, task], task, sequences=64, **options)
        return lesson.within_and_beyond(curve)

    copying, marks = TASKS
    for scheme, most in (("rotary", 0.3), ("learned", 0.15), ("T5", 0.6)):
        within, beyond = found(scheme, copying)
        assert within > 0.98
        assert beyond < most
    assert (found("ALiBi", marks) > 0.93).all()
    assert found("rotary", marks)[1] < 0.7
    # hidden far keys, or slower clocks but for the fastest, mend it
    for scheme, task, least in (("rotary", copying, 0.97), ("rotary", marks, 0.95), ("T5", copying, 0.97)):
        assert found(scheme, task, window=32)[1] > least
    assert (found("rotary", copying, rotary=slower()) > 0.95).all()
    assert (found("rotary", copying, rotary=Rotary(8, scaling="interpolation", factor=4.0)) < 0.2).all()
    assert (found("rotary", marks, rotary=Rotary(8, scaling="interpolation", factor=4.0)) > 0.9).all()


def test_where_the_rotary_reader_looks_when_it_fails(trained):
    model = trained["rotary", "copy 2 back"]
    assert lesson.weight_by_distance(model, "copy 2 back", 32)[:, 2].min() > 0.9
    far = lesson.weight_by_distance(model, "copy 2 back").mean(0)
    turns = (np.arange(128) - 2) / (2 * np.pi)  # of the fastest clock since distance 2
    assert far[:32].sum() < 0.1
    assert far[np.abs(turns - turns.round()) < 0.13].sum() > 0.9  # a quarter of the distances
    on_answer = lesson.weight_on_answer(model, "copy 2 back")
    assert on_answer[:, 2:32].min() > 0.9
    assert on_answer[:, 60:].max() < 0.3


def test_what_no_distance_trains_only_decays(trained):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        learned = lesson.Reader("learned").absolute.weight
        torch.default_generator.manual_seed(1)
        t5 = lesson.Reader("T5").t5.weight
    decay = math.prod(1 - 1e-4 * lesson.rate(step, 250) for step in range(1, 251))
    assert 0.98 < decay < 0.985  # "2 % in all"
    table, biases = trained["learned", TASKS[0]].absolute.weight, trained["T5", TASKS[0]].t5.weight
    assert_close(table[32:], learned[32:] * decay, rtol=1e-4, atol=1e-7)
    assert (table[:32] - learned[:32]).abs().amax(1).min() > 0.05
    far = int(t5_buckets(torch.tensor(-35), bidirectional=False))  # the first distance of an untrained bucket
    assert int(t5_buckets(torch.tensor(-34), bidirectional=False)) == far - 1
    assert_close(biases[far:], t5[far:] * decay, rtol=1e-4, atol=1e-7)
    assert (biases[:far] - t5[:far]).abs().amax(1).min() > 0.1


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: lesson.train("rope", TASKS[0]), ValueError, "scheme must be one of .*, got 'rope'"),
        (lambda: lesson.train("none", "copy"), ValueError, "task must be one of .*, got 'copy'"),
        (lambda: lesson.train("none", TASKS[0], steps=0), ValueError, "steps must be at least 1, got 0"),
        (lambda: lesson.train("none", TASKS[0], batch=0), ValueError, "batch must be at least 1, got 0"),
        (lambda: lesson.train("none", TASKS[0], lr=-1.0), ValueError, "lr must be finite and at least 0"),
        (lambda: lesson.train("none", TASKS[0], steps=2.0), TypeError, "steps must be an integer, got float"),
        (lambda: lesson.train("none", TASKS[0], batch=2.0), TypeError, "batch must be an integer, got float"),
        (lambda: lesson.train("none", TASKS[0], lr=1e38, steps=9), FloatingPointError, "at step"),
        (lambda: lesson.Reader("rope"), ValueError, "scheme must be one of"),
        (lambda: lesson.Reader("learned", longest=0), ValueError, "max_length must be at least 1, got 0"),
        (lambda: lesson.Reader("learned", longest=1.0), TypeError, "max_length must be an integer"),
        (lambda: lesson.Reader("T5", max_distance=16), ValueError, "max_distance must be at least 17, got 16"),
        (lambda: lesson.Reader("T5", max_distance=2.5), TypeError, "max_distance must be an integer"),
        (lambda: reader("none")(drawn(), window=0), ValueError, "window must be at least 1"),
        (lambda: reader("none")(drawn(), window=2.0), TypeError, "window must be an integer"),
        (lambda: reader("none")(drawn(), rotary=slower()), ValueError, "rotary is for a model .* got one of 'none'"),
        (lambda: reader("none").weights(drawn(), rotary=slower()), ValueError, "rotary is for a model"),
        (lambda: lesson.accuracy(reader("none"), "copy"), ValueError, "task must be one of"),
        (lambda: lesson.accuracy(reader("none"), TASKS[0], 0), ValueError, "length must be at least 1"),
        (lambda: lesson.accuracy(reader("none"), TASKS[0], sequences=0), ValueError, "batch must be at least 1"),
        (lambda: lesson.accuracy(reader("none"), TASKS[0], 9.0), TypeError, "length must be an integer"),
        (lambda: lesson.weight_by_distance(reader("none"), "copy"), ValueError, "task must be one of"),
        (lambda: lesson.weight_on_answer(reader("none"), "copy"), ValueError, "task must be one of"),
        (lambda: lesson.within_and_beyond(np.ones(32)), ValueError, "more than 32 places, got 32"),
    ],
)
@pytest.mark.unchecked
def test_bad_arguments_are_refused(call, kind, match):
    with pytest.raises(kind, match=match):
        call()
