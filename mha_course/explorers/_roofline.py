"""Explorer `roofline`: guess the intensity of a step of attention, then see where it lies and what bounds it."""

from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mha_course import plots
from mha_course.explorers.base import Choice, Explorer, Readout, Slider
from mha_course.profiling import Cost, Machine, attention_costs

BYTES = {"float32": 4, "bfloat16": 2}
LAPTOP, SERVER, GPU = MACHINES = ("laptop core", "this course's machine", "GPU H200")
# Fixed, so that the picture is the same everywhere. Exponentials are not counted: no peak for them is published.
ROOFS = {
    # by arithmetic: 2 units of 8 numbers, multiply-add, 3 GHz (AVX2); DDR4-3200, one channel of 8 bytes
    (LAPTOP, "float32"): Machine(96e9, 25.6e9),
    (LAPTOP, "bfloat16"): Machine(96e9, 25.6e9),  # no instructions for it: computed in float32
    # measured, one thread of an AMD EPYC with AVX-512 and bfloat16, rounded
    (SERVER, "float32"): Machine(100e9, 25e9),
    (SERVER, "bfloat16"): Machine(200e9, 25e9),
    # NVIDIA's data sheet of the H200 SXM, 2024; without sparsity, float32 without tensor cores
    (GPU, "float32"): Machine(67e12, 4.8e12),
    (GPU, "bfloat16"): Machine(989e12, 4.8e12),
}
SOURCES = {LAPTOP: "AVX2 at 3 GHz", SERVER: "measured, 1 thread", GPU: "NVIDIA's data sheet"}

PROJECTION, SCORES, SOFTMAX, SUM, ALL = STEPS = ("q_proj", "scores", "softmax", "weighted sum", "all steps")
EXPLICIT, FUSED = KERNELS = ("explicit", "fused")
GUESS, POINT = SHOW = ("my guess", "my guess and the point")

CONTROLS = (
    Choice("step", "step", STEPS, SCORES),
    Choice("kernel", "attention", KERNELS, EXPLICIT),
    Choice("batch", "B", ("1", "4", "32"), "4"),
    Choice("length", "S", ("128", "512", "2048", "8192"), "512"),
    Choice("width", "E", ("512", "1024", "4096"), "512"),
    Choice("heads", "H", ("1", "8", "32"), "8"),
    Choice("dtype", "dtype", tuple(BYTES), "float32"),
    Choice("machine", "machine", MACHINES, LAPTOP),
    Slider("guess", "guess, 10 to the", -1, 4, 0.05, 1, digits=2),
    Choice("show", "show", SHOW, GUESS),
)

MOVES = {  # what a step reads and writes
    PROJECTION: ("x, W, bias", "q"),
    SCORES: ("q, k", "scores (B, H, S, S)"),
    SOFTMAX: ("scores (B, H, S, S)", "weights"),
    SUM: ("weights (B, H, S, S), v", "heads"),
    "attention": ("q, k, v", "heads"),
    ALL: ("all of every step", "all of every step"),
}

LOW, HIGH = 0.07, 1.5e4  # FLOP per byte
SLOWEST, FASTEST = 1e9, 3e15  # FLOP/s
WORDS = 10


class State(NamedTuple):
    """One state of the explorer."""

    step: str  # "attention" where it is one kernel
    sizes: tuple[int, int, int, int]  # B, S, E, H
    dtype: str
    machine: str
    guess: float  # FLOP per byte
    shown: bool
    costs: dict[str, Cost]  # of every step

    @property
    def roof(self) -> Machine:
        """What the machine can do at most."""
        return ROOFS[self.machine, self.dtype]

    @property
    def cost(self) -> Cost:
        """What the step costs."""
        return reduce(add, self.costs.values()) if self.step == ALL else self.costs[self.step]

    @property
    def seconds(self) -> float:
        """The predicted time; that of all steps is their sum, one after the other."""
        steps = self.costs.values() if self.step == ALL else [self.cost]
        return sum(self.roof.seconds(cost) for cost in steps)

    @property
    def speed(self) -> float:
        """FLOP/s by the prediction: on the roof, or below it for all steps together."""
        return self.cost.flops / self.seconds

    @property
    def others(self) -> list[Cost]:
        """The steps that are not the chosen one."""
        return [cost for step, cost in self.costs.items() if step != self.step]


def compute(
    *,
    step: str,
    kernel: str,
    batch: str,
    length: str,
    width: str,
    heads: str,
    dtype: str,
    machine: str,
    guess: float,
    show: str,
) -> State:
    """Count what each step costs, and take the machine's roof."""
    B, S, E, H = sizes = (int(batch), int(length), int(width), int(heads))
    costs = attention_costs(B, S, S, E, H, itemsize=BYTES[dtype], explicit=kernel == EXPLICIT)
    return State(
        step=step if step in costs or step == ALL else "attention",
        sizes=sizes,
        dtype=dtype,
        machine=machine,
        guess=10**guess,
        shown=show == POINT,
        costs=costs,
    )


def draw(figure: Figure, state: State) -> None:
    """Draw the roof, the guess on it, and the point if it is shown."""
    parts = plots.once(figure, _lay_out)
    roofs = [state.roof, *(ROOFS[name, state.dtype] for name in MACHINES if name != state.machine)]
    for line, roof in zip((parts.roof, *parts.other_roofs), roofs, strict=True):
        line.set_data([LOW, roof.ridge, HIGH], [roof.attainable(x) for x in (LOW, roof.ridge, HIGH)])
    ridge = state.roof.ridge
    parts.memory_side.set_width(ridge - LOW)
    parts.memory.set_x(ridge / 1.12)
    parts.compute.set_x(ridge * 1.12)
    parts.guess.set_data([state.guess], [state.roof.attainable(state.guess)])
    parts.point.set_data([state.cost.intensity], [state.speed])
    others = [cost.intensity for cost in state.others]
    parts.others.set_data(others, [state.roof.attainable(x) for x in others])
    parts.point.set_visible(state.shown)
    parts.others.set_visible(state.shown)
    parts.title.set_text(_named(state))


def readout(state: State) -> Readout:
    """What the step moves and the guess; once the point is shown, its numbers too."""
    cost, roof = state.cost, state.roof
    reads, writes = MOVES[state.step]
    found = {
        "FLOPs": _amount(cost.flops, "FLOP"),
        "bytes": _amount(cost.bytes, "B"),
        "FLOP per byte": _number(cost.intensity),
        "bound": _bound(state),
        "predicted time": _time(state.seconds),
        "speed": _amount(state.speed, "FLOP/s"),
    }
    rows = [
        (state.step, "in one kernel" if state.step == "attention" else state.dtype),
        ("reads", reads),
        ("writes", writes),
        ("machine", SOURCES[state.machine]),
        ("peak", _amount(roof.peak, "FLOP/s")),
        ("bandwidth", _amount(roof.bandwidth, "B/s")),
        ("ridge", f"{_number(roof.ridge)} FLOP per byte"),
        ("your guess", f"{_number(state.guess)} FLOP per byte"),
        *((name, text if state.shown else "?") for name, text in found.items()),
    ]
    return Readout(rows, _sentence(state))


def roofline() -> Explorer:
    """Guess how many FLOPs a step does for each byte; then show the point, and what bounds the step."""
    return Explorer(
        title="Where is this step under the roof?",
        controls=CONTROLS,
        compute=compute,
        draw=draw,
        readout=readout,
        alt=(
            "FLOP/s against FLOP per byte, both logarithmic. The roof of a laptop core rises to its ridge at 3.75 FLOP "
            "per byte and is flat behind it, at 96 GFLOP/s. A diamond at 10 FLOP per byte, the guess, lies on the flat "
            "part; the point of the step is not shown yet."
        ),
        size=(8, 4.1),
    )


def _named(state: State) -> str:
    B, S, E, H = state.sizes
    return f"{state.step} in {state.dtype}, B = {B}, S = {S}, E = {E}, H = {H}"


def _bound(state: State) -> str:
    if state.step != ALL:
        return state.roof.bound(state.cost)
    memory = sum(state.roof.seconds(cost) for cost in state.costs.values() if state.roof.bound(cost) == "memory")
    return f"memory for {memory / state.seconds:.0%} of the time"


def _sentence(state: State) -> str:
    side = "memory" if state.guess < state.roof.ridge else "compute"
    if not state.shown:
        return f"Your guess says that {side} bounds this step. Move it where you think it is, then show the point."
    ratio = state.guess / state.cost.intensity
    off = f"{_number(max(ratio, 1 / ratio))} times too {'high' if ratio > 1 else 'low'}"
    said = f"Your guess was {'close' if 2 / 3 <= ratio <= 3 / 2 else off}."
    if state.step == ALL:
        return f"{said} The steps run one after the other, each at its own speed: the mean is not above the roof."
    bound = state.roof.bound(state.cost)
    if bound == "memory":
        idle = state.roof.peak / state.speed
        said = f"{said} Memory bounds this step: its arithmetic could go {_number(idle)} times as fast."
        return f"{said} Its exponentials are not counted." if state.step == SOFTMAX else said
    return f"{said} Compute bounds this step: its bytes arrive in time."


def _number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _amount(x: float, unit: str) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if x >= size:
            return f"{_number(x / size)} {letter}{unit}"
    return f"{x / 1000:.3g} k{unit}"


def _time(seconds: float) -> str:
    for unit, name in ((1, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def _lay_out(figure: Figure) -> SimpleNamespace:
    ax = figure.subplots()
    grey, own, point, guess = "0.7", "black", plots.COLOURS[0], plots.COLOURS[1]
    title = ax.set_title("step")
    title.set_animated(True)
    memory_side = ax.axvspan(LOW, 1, color=plots.COLOURS[5], alpha=0.18, animated=True, zorder=0)
    words = {"fontsize": WORDS, "va": "bottom", "animated": True, "zorder": 6}
    parts = SimpleNamespace(
        title=title,
        memory_side=memory_side,
        memory=ax.text(1, 1.3 * SLOWEST, "memory bounds", ha="right", **words),
        compute=ax.text(1, 1.3 * SLOWEST, "compute bounds", ha="left", **words),
        other_roofs=[ax.plot([], [], color=grey, linewidth=1.5, animated=True, zorder=2)[0] for _ in MACHINES[1:]],
        roof=ax.plot([], [], color=own, linewidth=2.5, animated=True, zorder=3)[0],
        others=_markers(ax, "o", "white", "0.35", 7, 4),
        guess=_markers(ax, "D", "none", guess, 12, 7),
        point=_markers(ax, "o", point, point, 9, 8),
    )
    ax.set(xscale="log", yscale="log", xlim=(LOW, HIGH), ylim=(SLOWEST, FASTEST))
    ax.set(xlabel="intensity (FLOP per byte)", ylabel="speed (FLOP/s)")
    ax.set_xticks([10.0**n for n in range(-1, 5)], ["0.1", "1", "10", "100", "1,000", "10,000"])
    ax.set_yticks([10.0**n for n in range(9, 16)], ["1 G", "10 G", "100 G", "1 T", "10 T", "100 T", "1 P"])
    ax.minorticks_off()
    handles = [
        Line2D([], [], color=own, linewidth=2.5, label="roof"),
        Line2D([], [], color=grey, linewidth=1.5, label="other machines"),
        _handle(parts.guess, "your guess"),
        _handle(parts.point, "the step"),
        _handle(parts.others, "other steps"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=WORDS, handlelength=1.5)
    return parts


def _markers(ax: Axes, marker: str, face: str, edge: str, size: float, order: int) -> Line2D:
    style: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": 2}
    return ax.plot([], [], marker, markersize=size, animated=True, zorder=order, **style)[0]


def _handle(markers: Line2D, label: str) -> Line2D:
    handle = Line2D([], [], linestyle="none", label=label)
    handle.update_from(markers)
    handle.set_animated(False)
    handle.set_label(label)
    return handle
