"""The explorer `clinic`: patients by hand, measurements by definition, verdicts, and that the picture says so."""

import math
from functools import cache
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy import ndarray
from torch import nn

from mha_course import plots
from mha_course.explorers import _clinic as clinic
from mha_course.explorers import _clinic_patients as patients

START = {control.name: control.start for control in clinic.CONTROLS}
ALL = dict.fromkeys(("values", "row_sums", "gradient", "leak_probe", "overfit"), "yes")
EVERY = pytest.mark.parametrize("fault", patients.DIAGNOSES)
FUTURE = {"wrong axis", "late mask", "inverted mask"}
FUTURE |= {"wrong split", "wrong merge"}
BATCH = {"wrong padding", "batch as time"}


def number(fault: str) -> int:
    return patients.PATIENTS.index(fault) + 1


def state(fault: str = "late mask", *measured: str, **moved: object) -> clinic.State:
    return clinic.compute(**(START | {"patient": number(fault)} | dict.fromkeys(measured, "yes") | moved))


def rows(one: clinic.State) -> dict[str, tuple[str, ...]]:
    return {row[0]: tuple(row[1:]) for row in clinic.readout(one).rows}


@cache
def figure() -> Figure:
    return plots.blank((8, 4.9))


def drawn(one: clinic.State) -> SimpleNamespace:
    """What the explorer draws, always in the same figure: nothing of the state before may be left."""
    clinic.draw(figure(), one)
    return figure().mha_course_parts


def parameters() -> dict[str, ndarray]:
    return {name: x.detach().numpy() for name, x in patients.Patient("healthy").named_parameters()}


def by_hand(fault: str, x: ndarray, lengths: tuple[int, ...]) -> tuple[ndarray, ndarray]:
    """Weights (B, H, T, S) and out (B, T, E) of a patient in evaluation, in plain loops."""
    p = parameters()
    x = x.swapaxes(0, 1) if fault == "batch as time" else x
    q, k, v = (x @ p[f"{name}_proj.weight"].T + p[f"{name}_proj.bias"] for name in "qkv")

    def head(z: ndarray, b: int, h: int) -> ndarray:
        if fault == "wrong split":
            return z[b].ravel()[h * 80 : (h + 1) * 80].reshape(5, 16)
        return z[b, :, 16 * h : 16 * (h + 1)]

    weights, out = np.zeros((5, 2, 5, 5)), np.zeros((5, 5, 32))
    for b in range(5):
        heads = np.zeros((2, 5, 16))
        for h in range(2):
            real = lengths[(2 * b + h) % 5 if fault == "wrong padding" else b]
            sees = np.array([[(s <= t and s < real) != (fault == "inverted mask") for s in range(5)] for t in range(5)])
            e = np.exp(head(q, b, h) @ head(k, b, h).T * (1 if fault == "no scale" else 0.25))
            shown = e if fault == "late mask" else e * sees
            total = shown.sum(axis=0 if fault == "wrong axis" else 1, keepdims=True)
            weights[b, h] = np.divide(shown, total, out=np.zeros_like(e), where=total > 0) * sees
            heads[h] = weights[b, h] @ head(v, b, h)
        flat = heads.ravel().reshape(5, 32) if fault == "wrong merge" else np.hstack(list(heads))
        out[b] = flat @ p["out_proj.weight"].T + p["out_proj.bias"]
    return weights, out.swapaxes(0, 1) if fault == "batch as time" else out


@EVERY
def test_patients_by_hand(fault: str) -> None:
    drawn = patients._drawn()
    found = patients.Patient(fault).eval().trace(drawn.x, drawn.lengths)
    for ours, expected in zip(found, by_hand(fault, drawn.x.numpy(), patients.LENGTHS), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), expected, atol=1e-12)


@EVERY
def test_dropout_acts_in_training_alone_and_where_it_should(fault: str) -> None:
    drawn, patient = patients._drawn(), patients.Patient(fault)
    calm = patient.eval().trace(drawn.x, drawn.lengths)
    torch.testing.assert_close(patient.trace(drawn.x, drawn.lengths), calm, rtol=0, atol=0)
    torch.manual_seed(1)
    weights, out = patient.train().trace(drawn.x, drawn.lengths)
    assert not torch.equal(out, calm[1])
    if fault == "early dropout":
        torch.testing.assert_close(weights.sum(-1), torch.ones(5, 2, 5, dtype=torch.float64))
        assert ((weights == 0) == (calm[0] == 0)).all()
    else:
        kept = weights != 0
        torch.testing.assert_close(weights[kept], calm[0][kept] / 0.9)
        assert 0.02 < 1 - kept.sum() / (calm[0] != 0).sum() < 0.2


def test_every_diagnosis_is_one_patient() -> None:
    assert sorted(patients.PATIENTS) == sorted(patients.DIAGNOSES)
    assert len(set(patients.DIAGNOSES)) == 10
    assert clinic.CONTROLS[-1].values() == ["none yet", *patients.DIAGNOSES]


@EVERY
def test_complaints(fault: str) -> None:
    """What each owner sees, and that it is so: against plain loops."""
    drawn, said = patients._drawn(), patients.complaint(fault)
    x, other = drawn.x.numpy(), drawn.other.numpy()
    before = by_hand(fault, x, patients.LENGTHS)[1]
    batch, lengths = other.copy(), [4] * 5
    batch[3], lengths[3] = x[3], patients.LENGTHS[3]
    in_another_batch = by_hand(fault, batch, tuple(lengths))[1]
    with_other_ends = by_hand(fault, np.concatenate([x[:, :3], other[:, 3:]], axis=1), patients.LENGTHS)[1]
    if np.abs(in_another_batch[3] - before[3]).max() > 1e-9:
        assert said == "the same sample gets another answer in another batch"
        assert fault in BATCH
    elif np.abs(with_other_ends - before)[:, :3].max() > 1e-9:
        assert said == "answers to the first tokens change with the last ones"
        assert fault in FUTURE
    else:
        assert said == "it learns, but its owner had hoped for more"
        assert fault not in FUTURE | BATCH


@EVERY
def test_values(fault: str) -> None:
    x = patients._drawn().x.numpy()
    ours, right = (by_hand(name, x, patients.LENGTHS) for name in (fault, "healthy"))
    found = patients.measure(fault, "values")
    for kind, (a, b) in enumerate(zip(ours, right, strict=True)):
        for t in range(5):
            expected = np.abs(a[..., t, :] - b[..., t, :]).max()
            assert found.data[kind, t] == pytest.approx(expected, abs=1e-12)
    equal = (found.data < 1e-9).sum(axis=1)
    assert found.said == f"equal rows: weights {equal[0]} of 5, out {equal[1]} of 5"


@EVERY
def test_row_sums(fault: str) -> None:
    found = patients.measure(fault, "row sums")
    expected = by_hand(fault, patients._drawn().x.numpy(), patients.LENGTHS)[0].sum(-1).ravel()
    np.testing.assert_allclose(found.data[0], expected, atol=1e-12)
    ones, zeros = (np.abs(expected - 1) < 1e-9).sum(), (np.abs(expected) < 1e-15).sum()
    training = 50 if fault == "early dropout" else 0
    assert found.said == f"of 50 rows {ones} are 1, {zeros} are 0; in training {training} are 1"
    assert (ones == 50) == (fault not in {"wrong axis", "late mask", "inverted mask"})


def may(b: int, t: int, c: int, s: int) -> bool:
    return b == c and (s == t or (s < t and s < patients.LENGTHS[b]))


def verdict(moves: bool, allowed: bool) -> int:
    return {(False, False): 0, (True, True): 1, (True, False): 2, (False, True): 3}[bool(moves), allowed]


@EVERY
def test_gradient_by_differences(fault: str) -> None:
    found, x = patients.measure(fault, "gradient"), patients._drawn().x.numpy()
    before = by_hand(fault, x, patients.LENGTHS)[1][3, 2].sum()
    for b, s in product(range(5), range(5)):
        moved = 0.0
        for e in range(0, 32, 5):
            there = x.copy()
            there[b, s, e] += 1e-4
            moved = max(moved, abs(by_hand(fault, there, patients.LENGTHS)[1][3, 2].sum() - before))
        assert found.data[b, s] == verdict(moved > 1e-9, may(3, 2, b, s)), (b, s)
    leaks, blind = (found.data == 2).sum(), (found.data == 3).sum()
    assert found.said == f"leaks {leaks}, blind {blind}"


@EVERY
def test_leak_probe_by_changing_each_token(fault: str) -> None:
    found, drawn = patients.measure(fault, "leak probe"), patients._drawn()
    x, other = drawn.x.numpy(), drawn.other.numpy()
    before = by_hand(fault, x, patients.LENGTHS)[1]
    expected = np.zeros((5, 5, 5, 5), dtype=int)  # sample and row, sample and token
    for c in range(5):  # all of sample c
        there = np.where(np.arange(5)[:, None, None] == c, other, x)
        moved = np.abs(by_hand(fault, there, patients.LENGTHS)[1] - before).max((1, 2)) > 1e-12
        for b in {0, 1, 2, 3, 4} - {c}:
            expected[b, :, c] = verdict(moved[b], False)
    for s in range(5):  # token s of every sample
        there = np.where(np.arange(5)[:, None] == s, other, x)
        moved = np.abs(by_hand(fault, there, patients.LENGTHS)[1] - before).max(2) > 1e-12
        for b, t in product(range(5), range(5)):
            expected[b, t, b, s] = verdict(moved[b, t], may(b, t, b, s))
    np.testing.assert_array_equal(found.data, expected.reshape(25, 25))


def test_everything_that_may_be_learned_from_one_batch_is_learned_by_all() -> None:
    """The lesson: faulty modules pass "overfit one batch", with margin; it tells nothing apart."""
    for fault in patients.DIAGNOSES:
        found = patients.measure(fault, "overfit")
        assert found.data.shape == (31,)
        assert found.data[0] < 0.5
        assert found.data[-1] >= 0.92
        assert found.sign == (True,)
        assert found.said == f"{found.data[-1]:.2f} right after 30 steps"


@EVERY
def test_overfit_with_the_adam_of_pytorch(fault: str) -> None:
    drawn, patient = patients._drawn(), patients.Patient(fault).eval()
    torch.manual_seed(0)
    last = nn.Linear(32, 4, dtype=torch.float64)
    adam = torch.optim.Adam([*patient.parameters(), *last.parameters()], lr=5e-3)
    right = []
    for _ in range(31):
        logits = last(patient(drawn.x, drawn.lengths)).view(25, 4)
        right.append(sum(int(row.argmax()) == int(label) for row, label in zip(logits, drawn.labels, strict=True)) / 25)
        adam.zero_grad()
        (-logits.log_softmax(-1)[range(25), drawn.labels].mean()).backward()
        adam.step()
    np.testing.assert_allclose(patients.measure(fault, "overfit").data, right)


@EVERY
def test_passes_are_counted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    trace = patients.Patient.trace
    monkeypatch.setattr(patients.Patient, "trace", lambda *args: calls.append(1) or trace(*args))
    for name, others in (("values", 1), ("row sums", 0), ("gradient", 1), ("leak probe", 0), ("overfit", 30)):
        calls.clear()
        found = patients.measure.__wrapped__(fault, name)
        assert found.passes == len(calls) + others  # and the reference, and those backward


@pytest.mark.parametrize("name", patients.MEASUREMENTS)
def test_measuring_leaves_the_global_generator_alone(name: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    patients._reference.__wrapped__()
    patients.measure.__wrapped__("healthy", name)
    assert torch.equal(torch.rand(3), expected)


def signs() -> dict[str, dict[str, object]]:
    return {f: {n: patients.measure(f, n).sign for n in patients.MEASUREMENTS} for f in patients.DIAGNOSES}


@EVERY
def test_what_fits_and_the_fewest_measurements(fault: str) -> None:
    table, complaints = signs(), {f: patients.complaint(f) for f in patients.DIAGNOSES}
    best: tuple[int, int] | None = None
    for count in range(6):
        for taken in combinations(patients.MEASUREMENTS, count):
            left = {f for f in table if complaints[f] == complaints[fault]}
            for name in taken:
                left &= {f for f in table if table[f][name] == table[fault][name]}
            assert set(patients.fitting(fault, taken)) == left
            assert fault in left
            if left == {fault}:
                cost = (count, sum(patients.measure(fault, name).passes for name in taken))
                best = cost if best is None else min(best, cost)
    found = patients.fewest(fault)
    assert (len(found), sum(patients.measure(fault, name).passes for name in found)) == best


def test_the_fewest_that_the_lesson_names() -> None:
    """No patient can be told by the complaint alone, and only health takes two measurements."""
    for fault in patients.DIAGNOSES:
        wanted = {"healthy": ("values", "row sums")}
        sums = ("wrong axis", "late mask", "inverted mask", "early dropout")
        wanted |= dict.fromkeys(sums, ("row sums",))
        assert patients.fewest(fault) == wanted.get(fault, ("values",))
        assert len(patients.fitting(fault, ())) == (5 if fault in FUTURE else 2 if fault in BATCH else 3)


def test_nothing_measured() -> None:
    one = state()
    assert one.findings == {}
    assert rows(one) == {
        "measurement": ("passes", "found"),
        **dict.fromkeys(patients.MEASUREMENTS, ("", "not measured")),
        "paid": ("0", "0 measurements"),
        "diagnoses that fit": ("5", "of 10"),
    }
    said = "Patient 1: answers to the first tokens change with the last ones. 5 diagnoses fit what is known."
    assert clinic.readout(one).sentence == said


def test_each_measurement_is_paid() -> None:
    one = state("batch as time", "row_sums", "leak_probe")
    assert list(one.findings) == ["row sums", "leak probe"]
    found = rows(one)
    assert found["row sums"] == ("2", "of 50 rows 50 are 1, 0 are 0; in training 0 are 1")
    assert found["leak probe"] == ("33", "leaks 250, blind 46")
    assert found["values"] == ("", "not measured")
    assert found["paid"] == ("35", "2 measurements")
    assert found["diagnoses that fit"] == ("1", "of 10")
    assert rows(state("no scale", *ALL))["paid"] == ("100", "5 measurements")


@pytest.mark.parametrize(
    ("fault", "measured", "named", "said"),
    [
        ("inverted mask", ["row_sums"], "none yet", "One diagnosis is left: name it."),
        ("inverted mask", ["overfit"], "none yet", "5 diagnoses fit what is known."),
        (
            "inverted mask",
            ["row_sums"],
            "inverted mask",
            "Right: the mask hides what it should show. Nobody could know it with less: row sums (2 passes).",
        ),
        (
            "inverted mask",
            ["leak_probe", "row_sums"],
            "inverted mask",
            "Right: the mask hides what it should show. "
            "You paid 2 measurements, 35 passes; enough was row sums (2 passes).",
        ),
        (
            "batch as time",
            ["leak_probe"],
            "batch as time",
            "Right: samples are attended to in place of tokens. "
            "You paid 1 measurement, 33 passes; enough was values (2 passes).",
        ),
        (
            "healthy",
            [],
            "healthy",
            "Right: nothing is wrong with it. But it was a guess: 3 diagnoses fit what is known. "
            "Enough to know: values and row sums (4 passes).",
        ),
        (
            "healthy",
            ["values"],
            "healthy",
            "Right: nothing is wrong with it. But it was a guess: 2 diagnoses fit what is known. "
            "Enough to know: values and row sums (4 passes).",
        ),
        (
            "healthy",
            ["overfit"],
            "no scale",
            "Not this, though it fits what is known: the scores are not divided by the root of D. Measure more.",
        ),
        (
            "healthy",
            ["values"],
            "no scale",
            "Not this: the scores are not divided by the root of D. It does not fit: values.",
        ),
        (
            "healthy",
            ["values"],
            "inverted mask",
            "Not this: the mask hides what it should show. It does not fit: complaint, values.",
        ),
        ("no scale", [], "inverted mask", "Not this: the mask hides what it should show. It does not fit: complaint."),
    ],
)
def test_verdicts(fault: str, measured: list[str], named: str, said: str) -> None:
    one = clinic.readout(state(fault, *measured, diagnosis=named))
    assert one.sentence == f"Patient {number(fault)}: {patients.complaint(fault)}. {said}"


@EVERY
def test_only_the_right_name_is_right(fault: str) -> None:
    for named in patients.DIAGNOSES:
        one = state(fault, diagnosis=named)
        assert one.right == (named == fault)
        assert bool(one.fewest) == one.right
        assert (" Right" in clinic.readout(one).sentence) == one.right
        full = state(fault, *ALL, diagnosis=named)
        assert full.fitting == (fault,)
        assert bool(full.against) == (named != fault)


@EVERY
def test_the_picture_shows_what_was_measured(fault: str) -> None:
    parts = drawn(state(fault, *ALL))
    data = {name: patients.measure(fault, name).data for name in patients.MEASUREMENTS}
    assert parts.complaint.get_text() == f"Patient {number(fault)}: {patients.complaint(fault)}."
    for line, kind in zip(parts.artists["values"], np.maximum(data["values"], 1e-17), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), kind)
    for place, (line, kind) in enumerate(zip(parts.artists["row sums"], data["row sums"], strict=True)):
        np.testing.assert_array_equal(line.get_ydata(), kind)
        assert np.abs(line.get_xdata() - place).max() < 0.4
        low, high = line.axes.get_ylim()
        assert low < kind.min() <= kind.max() < high
    (line,) = parts.artists["overfit"]
    np.testing.assert_array_equal(line.get_ydata(), data["overfit"])
    for name in ("gradient", "leak probe"):
        image = parts.artists[name][0]
        shown = image.to_rgba(image.get_array(), bytes=True, norm=True)
        colours = [image.to_rgba(np.array([i]), bytes=True, norm=True)[0] for i in range(4)]
        np.testing.assert_array_equal(shown, np.array(colours)[data[name]])
        assert len({tuple(colour) for colour in colours}) == 4


@pytest.mark.parametrize("name", patients.MEASUREMENTS)
def test_what_is_not_measured_is_not_shown(name: str) -> None:
    drawn(state("batch as time", *ALL))
    parts = drawn(state("inverted mask", name.replace(" ", "_")))
    for other in patients.MEASUREMENTS:
        assert parts.missing[other].get_visible() != (other == name)
        assert all(artist.get_visible() == (other == name) for artist in parts.artists[other])


def test_everything_that_changes_is_animated() -> None:
    parts = drawn(state())
    changing = [parts.complaint, *parts.missing.values(), *(one for many in parts.artists.values() for one in many)]
    assert all(artist.get_animated() for artist in changing)


def test_every_value_of_every_control_changes_what_is_seen() -> None:
    painter = plots.Painter(figure())
    for control in clinic.CONTROLS:
        seen = set()
        for value in control.values():
            one = clinic.compute(**(START | {control.name: value}))
            drawn(one)
            seen.add((painter.png() if control.name != "diagnosis" else b"", clinic.readout(one)[1]))
        assert len(seen) == len(control.values()), control.name


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    start, end = state("wrong axis", *ALL), state("no scale", "values", "gradient")
    pictures = []
    for states in ([end], [start, end]):
        own = plots.blank((8, 4.9))
        painter = plots.Painter(own)
        for one in states:
            clinic.draw(own, one)
            picture = painter.png()
        pictures.append(picture)
    assert pictures[0] == pictures[1]


def test_no_title_meets_its_neighbour() -> None:
    drawn(state())
    boxes = [ax.title.get_window_extent() for ax in figure().axes] + [figure()._suptitle.get_window_extent()]
    for one, other in combinations([box for box in boxes if box.width], 2):
        assert not one.overlaps(other)
    assert all(0 <= box.x0 and box.x1 <= figure().bbox.x1 for box in boxes)
    assert math.isclose(figure().bbox.width / figure().bbox.height, 8 / 4.9, rel_tol=1e-6)


def test_no_control_waits_for_a_measurement() -> None:
    patients.measure.cache_clear()
    clinic.clinic().close()
    measured = patients.measure.cache_info().misses
    assert measured == 50
    state("healthy", *ALL, diagnosis="healthy")
    assert patients.measure.cache_info().misses == measured
