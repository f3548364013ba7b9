"""The base of every explorer: controls, a picture and numbers that follow them.

An explorer is a pure `compute(**controls) -> data`, a pure `draw(figure, data)`, a pure
`readout(data) -> Readout` and a tuple of controls. The rest is here.

Fast slider moves need no queue of ours: while the kernel is busy, ipywidgets' front end keeps
only the newest value of a control and sends it when the kernel is free.
"""

import html
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ipywidgets as widgets
from matplotlib.figure import Figure

from mha_course import plots
from mha_course.explorers import _cells


class Readout(NamedTuple):
    """The key numbers of one state: a small table whose first row is its head, and a sentence."""

    rows: Sequence[Sequence[str]]
    sentence: str

    def text(self) -> str:
        """The readout as plain text."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in self.rows]
        return "\n".join([*lines, self.sentence])

    def html(self) -> str:
        """The readout as HTML; screen readers announce its changes."""
        style = 'style="padding: 0 1em 0 0; text-align: left; font-variant-numeric: tabular-nums"'
        head, *body = [[html.escape(cell) for cell in row] for row in self.rows]
        lines = ["".join(f"<th {style}>{cell}</th>" for cell in head)]
        lines += ["".join(f"<td {style}>{cell}</td>" for cell in row) for row in body]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        sentence = html.escape(self.sentence)
        return f'<div aria-live="polite"><table>{table}</table><p>{sentence}</p></div>'


@dataclass(frozen=True)
class Slider:
    """A number between `low` and `high`, in steps of `step`, from `start`."""

    name: str
    label: str
    low: float
    high: float
    step: float
    start: float
    digits: int = 1

    def __post_init__(self) -> None:
        """Refuse a range that the steps do not fill, or a start outside it."""
        steps = (self.high - self.low) / self.step
        if steps < 1 or abs(steps - round(steps)) > 1e-6:
            raise ValueError(f"{self.name}: steps of {self.step} must lead from low to high")
        if not self.low <= self.start <= self.high:
            raise ValueError(f"{self.name}: start must lie in [{self.low}, {self.high}]")

    def values(self) -> list[float]:
        """Every value that the slider can take."""
        steps = round((self.high - self.low) / self.step)
        return [self.nearest(self.low + i * self.step) for i in range(steps + 1)]

    def nearest(self, value: float) -> float:
        """The nearest value that the slider can take: a browser can send 119.99999999999999 for 120."""
        steps = round((min(max(value, self.low), self.high) - self.low) / self.step)
        return round(float(self.low + steps * self.step), 10)

    def widget(self) -> widgets.Widget:
        """The ipywidgets slider."""
        return widgets.FloatSlider(
            value=self.start,
            min=self.low,
            max=self.high,
            step=self.step,
            description=self.label,
            readout_format=f".{self.digits}f",
            style={"description_width": "9em"},
            layout=widgets.Layout(width="auto"),
        )


@dataclass(frozen=True)
class Choice:
    """One of several named options."""

    name: str
    label: str
    options: tuple[str, ...]
    start: str

    def values(self) -> list[str]:
        """Every option."""
        return list(self.options)

    def nearest(self, value: str) -> str:
        """The option itself."""
        return value

    def widget(self) -> widgets.Widget:
        """A row of buttons: JupyterLab keeps a list's arrow keys for itself, so no keyboard could move it."""
        buttons = widgets.ToggleButtons(
            options=self.options,
            value=self.start,
            description=self.label,
            style={"description_width": "9em", "button_width": "auto"},
        )
        buttons.add_class("widget-inline-hbox")  # its label beside it, as a slider's is
        return buttons


Control = Slider | Choice


class Explorer(widgets.VBox):  # type: ignore[misc]
    """A panel of controls with a picture and the key numbers.

    Args:
        title: what the panel shows.
        controls: from top left to bottom right.
        compute: takes every control by name, returns the data of one state.
        draw: `draw(figure, data)` lays the figure out on its first call (`plots.once`) and only
            replaces data after that.
        readout: data -> the key numbers of that state.
        alt: one sentence that describes the first picture.
        size: of the picture in inches.
    """

    def __init__(
        self,
        *,
        title: str,
        controls: Sequence[Control],
        compute: Callable[..., Any],
        draw: Callable[[Figure, Any], None],
        readout: Callable[[Any], Readout],
        alt: str,
        size: tuple[float, float] = (8, 3.6),
    ) -> None:
        """Build the panel and draw its first state; an error there is raised as it is."""
        self._compute, self._draw, self._readout = compute, draw, readout
        self.specification = tuple(controls)
        self.controls = {control.name: control.widget() for control in controls}
        if len(self.controls) < len(controls):
            raise ValueError("every control must have a name of its own")
        self._figure = plots.blank(size)
        self._painter = plots.Painter(self._figure)

        self._first, numbers = self._state()
        self._first_text = f"{title}\n{alt}\n{numbers.text()}"
        width, height = plots.css_size(self._figure)
        self._first_metadata = {"image/png": {"alt": alt, "width": width, "height": height}}
        self.picture = widgets.Image(
            value=self._first,
            format="png",
            width=width,
            height=height,
            # at the top of its row, or numbers that are higher than it would stretch it
            layout=widgets.Layout(max_width="100%", height="auto", margin="0", align_self="flex-start"),
        )
        # No tooltip: ipywidgets 8.1 cannot show an Image that has one.
        self.numbers = widgets.HTML(numbers.html(), layout=widgets.Layout(flex="1 1 18em"))
        self.error = widgets.HTML("")
        for control in self.controls.values():
            control.observe(self._update, names="value")
        # One or two columns of controls; the numbers beside the picture, or under it.
        columns = "repeat(auto-fit, minmax(min(100%, 26em), 1fr))"
        panel = widgets.GridBox(
            list(self.controls.values()),
            layout=widgets.Layout(grid_template_columns=columns, max_width=f"{width}px"),
        )
        beside = widgets.HBox([self.picture, self.numbers], layout=widgets.Layout(flex_flow="row wrap"))
        heading = widgets.HTML(f"<b>{html.escape(title)}</b>")
        super().__init__([heading, panel, self.error, beside])

    def _state(self) -> tuple[bytes, Readout]:
        """Compute, draw and read out the state that the controls now name."""
        values = {control.name: control.nearest(self.controls[control.name].value) for control in self.specification}
        data = self._compute(**values)
        self._draw(self._figure, data)
        return self._painter.png(), self._readout(data)

    def _update(self, _change: Any = None) -> None:
        """Follow the controls; an error is shown in the panel, and the last picture stays."""
        try:
            picture, numbers = self._state()
        except Exception as error:
            said = html.escape(f"{type(error).__name__}: {error}")
            self.error.value = (
                '<div role="alert" style="border-left: 4px solid #D55E00; padding: 0 0.6em">'
                f"<b>This state could not be drawn.</b> {said}</div>"
            )
            return
        self.picture.value, self.numbers.value, self.error.value = picture, numbers.html(), ""

    def close(self) -> None:
        """Close every widget of the panel and let go of the figure; the last picture stays on the page."""
        if self.comm is None:  # closed before, or never finished
            return
        parts: list[widgets.Widget] = [self]
        for part in parts:  # grows while we walk it
            parts += getattr(part, "children", ())
            parts += [getattr(part, name) for name in ("layout", "style") if part.has_trait(name)]
        for part in parts[1:]:
            part.unobserve_all()
            part.close()
        del self._figure, self._painter
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live panel, and for pages without a kernel the picture of the first state."""
        _cells.shown(self)
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["image/png"] = b64encode(self._first).decode()
        bundle["text/plain"] = self._first_text
        return bundle, self._first_metadata
