"""What a notebook's cells call: start, predict, show, show_source, expect_error, progress.

Each of them leaves text in the stored notebook that is the same whatever the reader chose and
whatever the machine, so that nbval can compare it; what differs lives in widgets.
"""

import html
import inspect
import os
import re
import textwrap
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

import ipywidgets as widgets
import torch
from IPython.core.getipython import get_ipython
from IPython.display import display
from matplotlib.figure import Figure

from mha_course import plots

T = TypeVar("T")
Bundle = dict[str, Any]


def start(seed: int = 0) -> None:
    """Seed PyTorch and compute with one thread, so that a lesson gives the same numbers anywhere.

    Args:
        seed: of PyTorch's global generator.

    The environment variable MHA_COURSE_THREADS sets another number of threads; `course.py cpus`
    uses it to try whether the numbers depend on it.

    Raises:
        ValueError: MHA_COURSE_THREADS is not a whole number of at least 1.
    """
    threads = os.environ.get("MHA_COURSE_THREADS", "1")
    if not threads.isdecimal() or int(threads) < 1:
        raise ValueError(f"MHA_COURSE_THREADS must be a whole number of at least 1, got {threads!r}")
    torch.set_num_threads(int(threads))
    torch.manual_seed(seed)


class Prediction:
    """A question with options, shown as buttons, and the reader's choice.

    Without a kernel it reads as plain text. They are buttons, not radio buttons, since JupyterLab
    keeps the arrow keys for itself.
    """

    def __init__(self, question: str, options: Sequence[str]) -> None:
        """Ask `question`; see `predict`."""
        if not isinstance(question, str):
            raise TypeError(f"question must be a string, got {type(question).__name__}")
        if not isinstance(options, list | tuple) or not all(isinstance(o, str) for o in options):
            raise TypeError(f"options must be a list of strings, got {options!r}")
        if len(options) < 2 or len(set(options)) < len(options):
            raise ValueError(f"options must be two or more different strings, got {options!r}")
        self.question, self.options = question, tuple(options)
        self._buttons = widgets.ToggleButtons(options=self.options, index=None, style={"button_width": "auto"})

    @property
    def choice(self) -> str | None:
        """The option chosen so far, None if none."""
        choice: str | None = self._buttons.value
        return choice

    def reveal(self, measured: str | float) -> "Reveal":
        """Show the measured value beside the choice.

        Args:
            measured: the value, already rounded: it is stored and compared as text.

        Returns:
            An object to leave as the last line of a cell.
        """
        return Reveal(self.choice, str(measured))

    def __repr__(self) -> str:
        """The question and its options as text."""
        options = "".join(f"\n  ( ) {option}" for option in self.options)
        return f"Predict. {self.question}{options}"

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        question = widgets.HTML(f"<b>Predict.</b> {html.escape(self.question)}")
        return _live(widgets.VBox([question, self._buttons]), repr(self))


class Reveal:
    """The measured value, with the reader's prediction beside it while a kernel is there."""

    def __init__(self, choice: str | None, measured: str) -> None:
        """Keep what `Prediction.reveal` hands over."""
        self._choice, self._measured = choice, measured

    def __repr__(self) -> str:
        """The measured value as text."""
        return f"Measured: {self._measured}."

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        choice = "no choice made" if self._choice is None else html.escape(self._choice)
        text = f"Your prediction: <b>{choice}</b>. Measured: <b>{html.escape(self._measured)}</b>."
        return _live(widgets.HTML(text), repr(self))


def predict(question: str, options: Sequence[str]) -> Prediction:
    """Ask the reader for a prediction before a result is shown.

    Args:
        question: one sentence, plain text.
        options: two or more different answers.

    Returns:
        A Prediction: leave it as the last line of a cell, and call its `reveal(measured)` in a
        later one.

    Raises:
        TypeError: question is not a string, or options is not a list of strings.
        ValueError: fewer than two options, or an option that stands twice.
    """
    return Prediction(question, options)


def show(figure: Figure, alt: str) -> None:
    """Display a figure with its description, as alternative text and as a line under it.

    Args:
        figure: any matplotlib figure.
        alt: one sentence that says what is to be seen.

    Raises:
        TypeError: figure is not a matplotlib figure, or alt is not a string.
        ValueError: alt is empty.
    """
    if not isinstance(figure, Figure):
        raise TypeError(f"figure must be a matplotlib Figure, got {type(figure).__name__}")
    if not isinstance(alt, str):
        raise TypeError(f"alt must be a string, got {type(alt).__name__}")
    if not alt.strip():
        raise ValueError("alt must say in a sentence what is to be seen in the figure")
    width, height = plots.css_size(figure)
    _display(
        {"image/png": b64encode(plots.png(figure)).decode(), "text/plain": alt},
        {"image/png": {"alt": alt, "width": width, "height": height}},
    )
    # Plain text: a `*` or `$` in it is neither emphasis nor a formula.
    escaped = re.sub(r"([\\`*_{}\[\]<>$~|&])", r"\\\1", alt.strip())
    _display({"text/markdown": f"*{escaped}*", "text/plain": alt})


def show_source(*objects: Any) -> None:
    """Display the source of functions, classes or modules, folded until the reader opens it.

    Args:
        objects: what to show, in order.

    Raises:
        TypeError: an object that has no Python source.
    """
    for item in objects:
        try:
            source = textwrap.dedent(inspect.getsource(item)).rstrip()
        except (TypeError, OSError) as error:
            raise TypeError(f"objects must have Python source, got {item!r}: {error}") from error
        name = item.__name__ if inspect.ismodule(item) else f"{item.__module__}.{item.__qualname__}"
        title = f"Source of <code>{html.escape(name)}</code>"
        fence = "`" * (1 + max([2, *map(len, re.findall("`+", source))]))  # longer than any inside
        folded = f"<details><summary>{title}</summary>\n\n{fence}python\n{source}\n{fence}\n\n</details>"
        _display({"text/markdown": folded, "text/plain": source})


@contextmanager
def expect_error(*kinds: type[Exception]) -> Iterator[None]:
    """Run a cell's block that is meant to fail, and print how it failed.

    Args:
        kinds: the exception types that may be raised.

    Prints the exception's type and the first line of its message.

    Raises:
        AssertionError: the block raised nothing. Other exceptions pass through.
    """
    try:
        yield
    except kinds as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    else:
        raise AssertionError(f"expected {' or '.join(kind.__name__ for kind in kinds)}, got none")


def progress(steps: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `steps` and show how far the loop is.

    Args:
        steps: anything to iterate over.
        label: what the steps are, in the plural: "trainings".
        total: number of steps; len(steps) if None.

    Returns:
        An iterator over the same steps. The bar turns red when the cell ends before the loop does,
        by an error, by a break or by an interrupted kernel.

    Raises:
        TypeError: steps has no length and total is not given; total is not an integer.
        ValueError: total is negative.
    """
    if total is None:
        if not isinstance(steps, Sized):
            raise TypeError("total must be given, since steps has no length")
        total = len(steps)
    if not isinstance(total, int):
        raise TypeError(f"total must be an integer, got {type(total).__name__}")
    if total < 0:
        raise ValueError(f"total must be at least 0, got {total}")
    return _advance(steps, label, total)


def _advance(steps: Iterable[T], label: str, total: int) -> Iterator[T]:
    bar = widgets.IntProgress(max=max(total, 1), bar_style="info")
    count = widgets.Label(f"0 of {total} {label}")
    _display(_live(widgets.HBox([bar, count]), f"{total} {label}"))
    finished = False

    def mark(*_: Any) -> None:
        bar.bar_style = "success" if finished else "danger"

    # An error or an interrupt in the loop's body does not reach this generator, and its traceback
    # keeps it alive: the end of the cell is the moment to look.
    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", mark)
    try:
        for done, step in enumerate(steps, 1):
            yield step
            bar.value, count.value = done, f"{done} of {total} {label}"
        finished = True
    finally:
        mark()
        if shell is not None:
            shell.events.unregister("post_run_cell", mark)


def _display(bundle: Bundle, metadata: Bundle | None = None) -> None:
    """Display a mime bundle; outside a notebook print its text."""
    if get_ipython() is None:
        print(bundle["text/plain"])
    else:
        display(bundle, metadata=metadata, raw=True)


def _live(widget: widgets.Widget, text: str) -> Bundle:
    """A widget's mime bundle with our own, stable, plain text."""
    bundle: Bundle = widget._repr_mimebundle_()
    bundle["text/plain"] = text
    return bundle
