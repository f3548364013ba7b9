"""Explorer `clinic`: a patient, a complaint, measurements that cost, and a diagnosis."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy import ndarray

from mha_course import plots
from mha_course.explorers import _clinic_patients as patients
from mha_course.explorers._clinic_patients import DIAGNOSES, MEASUREMENTS, PATIENTS, SIZE, STEPS, Finding
from mha_course.explorers.base import Choice, Control, Explorer, Readout, Slider

NONE, OFF, ON = "none yet", "no", "yes"
FLOOR = 1e-17  # where smaller differences are drawn
VERDICTS = {
    patients.MOVES: ("moves, as it may", plots.COLOURS[0]),
    patients.LEAK: ("leak: moves, must not", plots.COLOURS[1]),
    patients.BLIND: ("blind: may, but does not", "black"),
    patients.STILL: ("still, as it must", "#DDDDDD"),
}
SHADES = ListedColormap([VERDICTS[i][1] for i in range(len(VERDICTS))])

CONTROLS: tuple[Control, ...] = (
    Slider("patient", "patient", 1, len(PATIENTS), 1, 1, digits=0),
    *(Choice(name.replace(" ", "_"), name, (OFF, ON), OFF) for name in MEASUREMENTS),
    Choice("diagnosis", "diagnosis", (NONE, *DIAGNOSES), NONE),
)


class State(NamedTuple):
    """One state of the explorer: what is known of a patient."""

    patient: int
    complaint: str
    findings: dict[str, Finding]  # of the measurements that were taken
    fitting: tuple[str, ...]  # diagnoses that explain all of it
    named: str
    right: bool
    against: str  # what contradicts the diagnosis named; "" if nothing
    fewest: dict[str, int]  # measurements that were enough and their passes; empty unless the diagnosis is right


def compute(*, patient: float, diagnosis: str, **wanted: str) -> State:
    """Take the measurements that are paid for, and compare them with what each diagnosis would show."""
    number = int(patient)
    fault = PATIENTS[number - 1]
    taken = tuple(name for name in MEASUREMENTS if wanted[name.replace(" ", "_")] == ON)
    findings = {name: patients.measure(fault, name) for name in taken}
    against = ""
    if diagnosis != NONE:
        differ = [name for name in taken if patients.measure(diagnosis, name).sign != findings[name].sign]
        complaint = [] if patients.complaint(diagnosis) == patients.complaint(fault) else ["complaint"]
        against = ", ".join([*complaint, *differ])
    enough = patients.fewest(fault) if diagnosis == fault else ()
    return State(
        number,
        patients.complaint(fault),
        findings,
        patients.fitting(fault, taken),
        diagnosis,
        diagnosis == fault,
        against,
        {name: patients.measure(fault, name).passes for name in enough},
    )


def draw(figure: Figure, state: State) -> None:
    """Draw the measurements that were taken, a panel each; the others say that they were not."""
    parts = plots.once(figure, _lay_out)
    parts.complaint.set_text(f"Patient {state.patient}: {state.complaint}.")
    for name in MEASUREMENTS:
        taken = name in state.findings
        parts.missing[name].set_visible(not taken)
        for artist in parts.artists[name]:
            artist.set_visible(taken)
        if taken:
            parts.fill[name](parts.artists[name], state.findings[name].data)


def readout(state: State) -> Readout:
    """What each measurement found and took, and what the diagnosis is worth."""
    rows = [("measurement", "passes", "found")]
    for name in MEASUREMENTS:
        found = state.findings.get(name)
        rows.append((name, str(found.passes) if found else "", found.said if found else "not measured"))
    rows.append(("paid", str(_price(state)), f"{_count(len(state.findings), 'measurement')}"))
    rows.append(("diagnoses that fit", str(len(state.fitting)), f"of {len(DIAGNOSES)}"))
    return Readout(rows, f"Patient {state.patient}: {state.complaint}. {_verdict(state)}")


def clinic() -> Explorer:
    """Choose a patient, pay for measurements, name what is wrong; the fewer the better."""
    for fault in PATIENTS:  # now, half a second in all, so that no control has to wait for it
        for name in MEASUREMENTS:
            patients.measure(fault, name)
    return Explorer(
        title="The clinic: what is wrong with this attention?",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "Patient 1, whose answers to the first tokens change with the last ones: five empty panels for values, "
            "row sums, overfitting, a gradient and the leak probe say that nothing was measured yet."
        ),
        size=(8, 4.9),
    )


def _verdict(state: State) -> str:
    count = len(state.fitting)
    if state.named == NONE:
        return "One diagnosis is left: name it." if count == 1 else f"{count} diagnoses fit what is known."
    if not state.right:
        if state.against:
            return f"Not this: {DIAGNOSES[state.named]}. It does not fit: {state.against}."
        return f"Not this, though it fits what is known: {DIAGNOSES[state.named]}. Measure more."
    needed = _count(sum(state.fewest.values()), "pass")
    fewest = f"{' and '.join(state.fewest)} ({needed})"
    right = f"Right: {DIAGNOSES[state.named]}."
    if count > 1:
        return f"{right} But it was a guess: {count} diagnoses fit what is known. Enough to know: {fewest}."
    if len(state.findings) == len(state.fewest) and _price(state) <= sum(state.fewest.values()):
        return f"{right} Nobody could know it with less: {fewest}."
    paid = f"{_count(len(state.findings), 'measurement')}, {_count(_price(state), 'pass')}"
    return f"{right} You paid {paid}; enough was {fewest}."


def _price(state: State) -> int:
    return sum(found.passes for found in state.findings.values())


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}{'es' if what.endswith('s') else 's'}"


def _lay_out(figure: Figure) -> SimpleNamespace:
    figure.get_layout_engine().set(wspace=0.06, hspace=0.06)
    title = figure.suptitle("Patient 1", x=0.01, ha="left", fontsize=12, weight="bold", animated=True)
    values, sums, overfit, gradient, probe, key = figure.subplots(2, 3, height_ratios=(1, 1.15)).flat
    key.set_axis_off()
    key.legend(
        handles=[Patch(facecolor=colour, edgecolor="0.3", label=said) for said, colour in VERDICTS.values()],
        title="gradient and leak probe",
        alignment="left",
        loc="center left",
        fontsize=10,
    )
    panels = {  # how to lay a measurement out, and how to show its data
        "values": (values, _lay_out_values, _fill_values),
        "row sums": (sums, _lay_out_sums, _fill_sums),
        "gradient": (gradient, _lay_out_gradient, _fill_map),
        "leak probe": (probe, _lay_out_probe, _fill_map),
        "overfit": (overfit, _lay_out_overfit, _fill_overfit),
    }
    artists, missing = {}, {}
    for name, (ax, lay_out, _) in panels.items():
        ax.set_title(name)  # unless it gets a better one
        artists[name] = lay_out(ax)
        where: dict[str, Any] = {"transform": ax.transAxes, "ha": "center", "va": "center", "color": "0.35"}
        missing[name] = ax.text(0.5, 0.5, "not measured", animated=True, **where)
    values.legend(loc="center", fontsize=9, ncols=2, handletextpad=0, columnspacing=0.8, bbox_to_anchor=(0.5, 0.72))
    fill = {name: panel[2] for name, panel in panels.items()}
    return SimpleNamespace(complaint=title, artists=artists, missing=missing, fill=fill)


def _lay_out_values(ax: Axes) -> list[Any]:
    how: dict[str, Any] = {"linestyle": "none", "animated": True, "zorder": 3}
    (weights,) = ax.plot(range(SIZE), [1] * SIZE, "o", color=plots.COLOURS[0], markersize=9, label="weights", **how)
    (out,) = ax.plot(range(SIZE), [1] * SIZE, "s", color=plots.COLOURS[4], markersize=5, label="out", **how)
    ax.set(yscale="log", ylim=(FLOOR / 10, 100), xlim=(-0.5, SIZE - 0.5), xticks=range(SIZE), xlabel="row")
    ax.set_ylabel("off the reference")
    ax.set_yticks([1e-16, 1e-8, 1])
    ax.minorticks_off()
    return [weights, out]


def _fill_values(artists: list[Any], data: ndarray) -> None:
    for line, differences in zip(artists, np.maximum(data, FLOOR), strict=True):
        line.set_ydata(differences)


def _lay_out_sums(ax: Axes) -> list[Any]:
    rows = SIZE * SIZE * patients.HEADS
    spread = np.random.default_rng(0).permutation(rows) / rows - 0.5  # in an order that has no pattern
    how: dict[str, Any] = {"linestyle": "none", "markersize": 5, "animated": True, "zorder": 3}
    lines = [
        ax.plot(place + 0.6 * spread, np.ones(rows), marker, color=plots.COLOURS[colour], **how)[0]
        for place, (marker, colour) in enumerate((("o", 0), ("^", 2)))
    ]
    ax.axhline(1, color="0.4", linestyle="--", linewidth=1.2)
    ax.set(xlim=(-0.5, 1.5), ylim=(-0.2, 3.2), yticks=[0, 1, 2, 3], ylabel="sum of weights")
    ax.set_xticks([0, 1], ["evaluation", "training"])
    return lines


def _fill_sums(artists: list[Any], data: ndarray) -> None:
    for line, sums in zip(artists, data, strict=True):
        line.set_ydata(sums)


def _lay_out_overfit(ax: Axes) -> list[Any]:
    line = ax.plot(range(STEPS + 1), [0] * (STEPS + 1), color=plots.COLOURS[0], animated=True, zorder=3)[0]
    ax.set(xlim=(0, STEPS), ylim=(0, 1.05), xlabel="steps on one batch", ylabel="share right")
    return [line]


def _fill_overfit(artists: list[Any], data: ndarray) -> None:
    artists[0].set_ydata(data)


def _lay_out_gradient(ax: Axes) -> list[Any]:
    image = _map(ax, SIZE)
    ax.set(xlabel="token", ylabel="sample", xticks=range(SIZE), yticks=range(SIZE))
    ax.set_title(f"gradient of out[{patients.SAMPLE}, {patients.ROW}]")
    return [image]


def _lay_out_probe(ax: Axes) -> list[Any]:
    image = _map(ax, SIZE * SIZE)
    middles = SIZE * np.arange(SIZE) + (SIZE - 1) / 2
    ax.set(xlabel="sample of the changed token", ylabel="sample of the row")
    ax.set_xticks(middles, range(SIZE))
    ax.set_yticks(middles, range(SIZE))
    how: dict[str, Any] = {"color": "white", "linewidth": 1, "animated": True, "zorder": 3}
    edges = SIZE * np.arange(1, SIZE) - 0.5
    return [image, *(line(at, **how) for line in (ax.axhline, ax.axvline) for at in edges)]


def _map(ax: Axes, cells: int) -> Any:
    """A square of verdicts."""
    image = ax.imshow(
        np.zeros((cells, cells)), cmap=SHADES, vmin=-0.5, vmax=len(VERDICTS) - 0.5, interpolation="nearest"
    )
    image.set_animated(True)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    return image


def _fill_map(artists: list[Any], data: ndarray) -> None:
    artists[0].set_data(data)
