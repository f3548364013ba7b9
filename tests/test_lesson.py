"""What a notebook's cells call: the same stored text whatever the reader does, and no stray output."""

import base64
import gc
import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import nbclient
import nbformat
import pytest
import torch
from ipywidgets.widgets.widget import _instances

from mha_course import dot_product, lesson, plots

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


class Shell:
    """IPython's shell, as far as a lesson asks for it: it calls nobody when a cell ends."""

    class events:
        @staticmethod
        def register(name: str, function: Any) -> None:
            assert name == "post_run_cell"

        @staticmethod
        def unregister(name: str, function: Any) -> None:
            assert name == "post_run_cell"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, dict]]:
    """What is handed to IPython's display: (data, metadata)."""
    outputs: list[tuple[dict, dict]] = []

    def record(data: dict, metadata: dict | None = None, *, raw: bool) -> None:
        assert raw
        outputs.append((data, metadata or {}))

    monkeypatch.setattr(lesson, "display", record)
    monkeypatch.setattr(lesson, "get_ipython", Shell)
    return outputs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def live(bundle: dict[str, Any]) -> widgets.Widget:
    return _instances[bundle[VIEW]["model_id"]]


# start


def test_start_seeds_and_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MHA_COURSE_THREADS", raising=False)
    torch.set_num_threads(2)
    lesson.start()
    assert torch.get_num_threads() == 1
    first = torch.rand(3)
    lesson.start(0)
    torch.testing.assert_close(torch.rand(3), first, rtol=0, atol=0)
    lesson.start(1)
    assert not torch.equal(torch.rand(3), first)
    torch.manual_seed(1)
    want = torch.rand(3)
    lesson.start(seed=1)
    torch.testing.assert_close(torch.rand(3), want, rtol=0, atol=0)


@pytest.mark.parametrize(("text", "threads"), [("2", 2), ("1", 1), ("03", 3)])
def test_start_takes_the_number_of_threads_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, threads: int
) -> None:
    monkeypatch.setenv("MHA_COURSE_THREADS", text)
    lesson.start()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("text", ["", "two", "0", "-1", "1.5", "1 2", "²"])
def test_start_names_a_variable_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MHA_COURSE_THREADS", text)
    with pytest.raises(ValueError, match=rf"^MHA_COURSE_THREADS must be a whole number of at least 1, got '{text}'$"):
        lesson.start()


# predict and reveal

NASTY = 'Is a < b & "c"?'
OPTIONS = ["<b>yes</b>", 'a < b & "c"', "no"]


def test_prediction_reads_as_text_and_as_radio_buttons() -> None:
    guess = lesson.predict("Which one?", ["left", "right"])
    bundle = guess._repr_mimebundle_()
    assert bundle["text/plain"] == "Predict. Which one?\n  ( ) left\n  ( ) right"
    assert set(bundle) == {"text/plain", VIEW}
    question, buttons = live(bundle).children
    assert question.value == "<b>Predict.</b> Which one?"
    assert isinstance(buttons, widgets.ToggleButtons)
    assert (buttons.options, buttons.value) == (("left", "right"), None)


def test_choice_follows_the_buttons() -> None:
    guess = lesson.predict("Which one?", ["left", "right"])
    assert guess.choice is None
    live(guess._repr_mimebundle_()).children[1].value = "right"
    assert guess.choice == "right"


@pytest.mark.parametrize("chosen", [None, *OPTIONS])
def test_stored_text_is_the_same_whatever_was_chosen(chosen: str | None) -> None:
    guess = lesson.predict(NASTY, OPTIONS)
    buttons = live(guess._repr_mimebundle_()).children[1]
    buttons.value = chosen
    assert guess._repr_mimebundle_()["text/plain"] == f"Predict. {NASTY}\n" + "\n".join(f"  ( ) {o}" for o in OPTIONS)
    bundle = guess.reveal("x < 1")._repr_mimebundle_()
    assert bundle["text/plain"] == "Measured: x < 1."
    assert set(bundle) == {"text/plain", VIEW}


def test_html_is_escaped() -> None:
    guess = lesson.predict(NASTY, OPTIONS)
    question, buttons = live(guess._repr_mimebundle_()).children
    assert question.value == "<b>Predict.</b> Is a &lt; b &amp; &quot;c&quot;?"
    for option in OPTIONS:
        buttons.value = option
        text = live(guess.reveal("<i>1</i>")._repr_mimebundle_()).value
        assert text == f"Your prediction: <b>{html.escape(option)}</b>. Measured: <b>&lt;i&gt;1&lt;/i&gt;</b>."


def test_reveal_before_a_choice_and_after_a_change_of_mind() -> None:
    guess = lesson.predict("Which one?", ["left", "right"])
    early = guess.reveal(0.25)
    assert live(early._repr_mimebundle_()).value == "Your prediction: <b>no choice made</b>. Measured: <b>0.25</b>."
    buttons = live(guess._repr_mimebundle_()).children[1]
    buttons.value = "left"
    late = guess.reveal(0.25)
    buttons.value = "right"
    assert "<b>left</b>" in live(late._repr_mimebundle_()).value, "a reveal keeps the choice it was made with"
    assert "no choice made" in live(early._repr_mimebundle_()).value


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ("yes", TypeError, r"^options must be a list of strings, got 'yes'$"),
        ([1, 2], TypeError, r"^options must be a list of strings, got \[1, 2\]$"),
        (["a", None], TypeError, r"^options must be a list of strings"),
        (None, TypeError, r"^options must be a list of strings, got None$"),
        ((option for option in "ab"), TypeError, r"^options must be a list of strings, got <generator"),
        ([], ValueError, r"^options must be two or more different strings, got \[\]$"),
        (["only"], ValueError, r"^options must be two or more different strings, got \['only'\]$"),
        (["a", "b", "a"], ValueError, r"^options must be two or more different strings"),
    ],
)
def test_predict_bad_input(options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        lesson.predict("Which one?", options)


@pytest.mark.unchecked
def test_predict_wants_a_question() -> None:
    with pytest.raises(TypeError, match=r"^question must be a string, got NoneType$"):
        lesson.predict(None, ["a", "b"])


# show


def test_show_displays_the_picture_and_its_description(shown: list) -> None:
    figure = plots.heatmap([[0.0, 1.0]])
    lesson.show(figure, "Two cells.")
    (picture, metadata), (caption, _) = shown
    assert base64.b64decode(picture["image/png"]) == plots.png(figure)
    assert picture["text/plain"] == caption["text/plain"] == "Two cells."
    width, height = plots.css_size(figure)
    assert metadata == {"image/png": {"alt": "Two cells.", "width": width, "height": height}}
    assert caption["text/markdown"] == "*Two cells.*"


def test_show_twice_gives_the_same_bytes(shown: list) -> None:
    for _ in range(2):
        lesson.show(plots.heatmap([[0.0, 1.0]]), "Two cells.")
    assert shown[:2] == shown[2:]


def test_the_description_is_plain_text_not_markdown(shown: list) -> None:
    lesson.show(plots.blank(), "q*k costs $1 at <b>a_b</b> [x](y) `z` ")
    assert shown[1][0]["text/markdown"] == r"*q\*k costs \$1 at \<b\>a\_b\</b\> \[x\](y) \`z\`*"
    assert shown[0][1]["image/png"]["alt"] == shown[1][0]["text/plain"] == "q*k costs $1 at <b>a_b</b> [x](y) `z` "


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("figure", "alt", "error", "match"),
    [
        (plots.blank, "text", TypeError, r"^figure must be a matplotlib Figure, got function$"),
        (None, "text", TypeError, r"^figure must be a matplotlib Figure, got NoneType$"),
        (plots.blank(), "", ValueError, r"^alt must say in a sentence what is to be seen in the figure$"),
        (plots.blank(), " \n", ValueError, r"^alt must say"),
        (plots.blank(), None, TypeError, r"^alt must be a string, got NoneType$"),
    ],
)
def test_show_bad_input(figure: Any, alt: str, error: type[Exception], match: str, shown: list) -> None:
    with pytest.raises(error, match=match):
        lesson.show(figure, alt)
    assert shown == []


# show_source


def example() -> str:
    """Has a fence in it:

    ```
    and goes on
    """
    return "</details>"


def test_show_source_folds_functions_classes_and_modules_in_order(shown: list) -> None:
    lesson.show_source(dot_product.attention, dot_product.AttentionTrace, dot_product)
    function, cls, module = (data for data, _ in shown)
    assert function["text/plain"].startswith("def attention(\n")
    assert function["text/plain"].endswith("return AttentionTrace(scores, weights, weights @ v)")
    assert "<summary>Source of <code>mha_course.dot_product.attention</code></summary>" in function["text/markdown"]
    assert cls["text/plain"].startswith("class AttentionTrace(NamedTuple):")
    assert module["text/plain"] == Path(dot_product.__file__).read_text().rstrip()
    assert "<code>mha_course.dot_product</code>" in module["text/markdown"]
    for data in (function, cls, module):
        assert data["text/markdown"].startswith("<details><summary>")
        assert f"\n\n```python\n{data['text/plain']}\n```\n\n</details>" in data["text/markdown"]


def test_show_source_of_source_that_holds_a_fence_and_of_a_local_function(shown: list) -> None:
    def local() -> int:
        return 1

    lesson.show_source(example, local)
    (fenced, _), (inner, _) = shown
    assert "\n````python\n" in fenced["text/markdown"]
    assert fenced["text/markdown"].endswith("\n````\n\n</details>")
    assert inner["text/plain"] == "def local() -> int:\n    return 1", "dedented"
    assert "&lt;locals&gt;.local</code>" in inner["text/markdown"]


made: dict[str, Any] = {}
exec("def f(): pass", made)


@pytest.mark.parametrize("item", [len, 3, None, torch.add, made["f"], type("Made", (), {"__module__": "nowhere"})])
def test_show_source_without_source(item: Any, shown: list) -> None:
    with pytest.raises(TypeError, match=r"^objects must have Python source, got "):
        lesson.show_source(item)
    assert shown == []


# progress


def parts(shown: list) -> tuple[widgets.IntProgress, widgets.Label]:
    ((data, _),) = shown
    return live(data).children


def test_progress_yields_every_step_and_shows_how_far(shown: list) -> None:
    seen = []
    for i in lesson.progress("abc", "letters"):
        bar, count = parts(shown)
        seen.append((i, bar.value, bar.max, bar.bar_style, count.value))
    assert seen == [
        ("a", 0, 3, "info", "0 of 3 letters"),
        ("b", 1, 3, "info", "1 of 3 letters"),
        ("c", 2, 3, "info", "2 of 3 letters"),
    ]
    assert (bar.value, bar.bar_style, count.value) == (3, "success", "3 of 3 letters")


def test_progress_text_is_fixed_from_the_start(shown: list) -> None:
    for _ in lesson.progress(range(2), "trainings"):
        pass
    ((data, _),) = shown
    assert data["text/plain"] == "2 trainings"
    assert set(data) == {"text/plain", VIEW}


def test_progress_of_nothing(shown: list) -> None:
    assert list(lesson.progress([], "steps")) == []
    bar, count = parts(shown)
    assert (bar.bar_style, count.value) == ("success", "0 of 0 steps")


def test_progress_of_an_iterator_takes_its_total(shown: list) -> None:
    assert list(lesson.progress((i * i for i in range(3)), "squares", total=3)) == [0, 1, 4]
    assert parts(shown)[1].value == "3 of 3 squares"


def test_progress_without_a_length_says_so_at_once() -> None:
    with pytest.raises(TypeError, match=r"^total must be given, since steps has no length$"):
        lesson.progress(iter([1]), "steps")


@pytest.mark.unchecked
def test_progress_bad_total() -> None:
    with pytest.raises(TypeError, match=r"^total must be an integer, got str$"):
        lesson.progress([1], "steps", total="3")
    with pytest.raises(ValueError, match=r"^total must be at least 0, got -3$"):
        lesson.progress([1], "steps", total=-3)


def test_outside_a_notebook_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    guess = lesson.predict("Which?", ["a", "b"])
    assert str(guess) == "Predict. Which?\n  ( ) a\n  ( ) b"
    assert str(guess.reveal(3)) == "Measured: 3."
    lesson.show(plots.blank((1, 1)), "A picture.")
    assert list(lesson.progress([1, 2], "steps")) == [1, 2]
    assert capsys.readouterr().out == "A picture.\nA picture.\n2 steps\n"


def test_expect_error_prints_type_and_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    with lesson.expect_error(ValueError, KeyError):
        raise ValueError("first line\nsecond line")
    assert capsys.readouterr().out == "ValueError: first line\n"
    with lesson.expect_error(ValueError):
        raise ValueError
    assert capsys.readouterr().out == "ValueError: \n"


def test_expect_error_fails_when_nothing_is_raised() -> None:
    with pytest.raises(AssertionError, match=r"^expected ValueError or KeyError, got none$"):
        with lesson.expect_error(ValueError, KeyError):
            pass


def test_expect_error_lets_others_through() -> None:
    with pytest.raises(ZeroDivisionError), lesson.expect_error(ValueError):
        1 / 0  # noqa: B018


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_progress_turns_red_when_the_loop_fails(error: type[BaseException], shown: list) -> None:
    def cell() -> None:
        for i in lesson.progress(range(4), "steps"):
            if i == 2:
                raise error("stop")

    with pytest.raises(error, match="stop"):
        cell()
    gc.collect()
    bar, count = parts(shown)
    assert (bar.value, bar.bar_style, count.value) == (2, "danger", "2 of 4 steps")


def test_progress_turns_red_on_a_break_and_when_closed(shown: list) -> None:
    for i in lesson.progress(range(4), "steps"):
        if i == 1:
            break
    gc.collect()
    bar, count = parts(shown)
    assert (bar.bar_style, count.value) == ("danger", "1 of 4 steps")

    shown.clear()
    steps = lesson.progress(range(4), "steps")
    assert next(steps) == 0
    assert parts(shown)[0].bar_style == "info"
    steps.close()
    assert parts(shown)[0].bar_style == "danger"


def test_progress_turns_red_when_the_steps_fail(shown: list) -> None:
    def steps() -> Iterator[float]:
        yield 1.0
        yield 1 / 0

    with pytest.raises(ZeroDivisionError):
        list(lesson.progress(steps(), "steps", total=2))
    assert parts(shown)[0].bar_style == "danger"


# In a real kernel

CELLS = {
    "start": "from mha_course import lesson, plots, explorers\nlesson.start()",
    "predict": "guess = lesson.predict('Is a < b?', ['yes & no', 'no'])\nguess",
    "loop": "for i in lesson.progress(range(3), 'steps'):\n    pass",
    "break": "for i in lesson.progress(range(5), 'tries'):\n    if i == 2: break",
    "interrupt": "for i in lesson.progress(range(7), 'runs'):\n    if i == 3: raise KeyboardInterrupt",
    "choose": "guess._buttons.value = 'no'",
    "reveal": "guess.reveal(0.5)",
    "show": "lesson.show(plots.heatmap([[0, 1]]), 'Two cells.')",
    "source": "lesson.show_source(lesson.predict)",
    "explorer": "explorers.geometry()",
    "move": "panel = _\npanel.controls['q_angle'].value = 90",
    "explorer again": "panel",
}


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in (*CELLS.values(), *CELLS.values())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    root = Path(__file__).parents[1]
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(root)}}
    ).execute()
    return notebook


def outputs_of(notebook: nbformat.NotebookNode, name: str, turn: int = 0) -> list[nbformat.NotebookNode]:
    return notebook.cells[turn * len(CELLS) + list(CELLS).index(name)].outputs


TEXTS = {
    "start": [],
    "predict": ["Predict. Is a < b?\n  ( ) yes & no\n  ( ) no"],
    "loop": ["3 steps"],
    "break": ["5 tries"],
    "interrupt": ["7 runs", "KeyboardInterrupt"],
    "choose": [],
    "reveal": ["Measured: 0.5."],
    "show": ["Two cells.", "Two cells."],
    "move": [],
}


@pytest.mark.parametrize("turn", [0, 1], ids=["first run", "second run in one kernel"])
@pytest.mark.parametrize("name", TEXTS)
def test_kernel_stores_this_text_and_nothing_else(notebook: nbformat.NotebookNode, name: str, turn: int) -> None:
    outputs = outputs_of(notebook, name, turn)
    assert [o.ename if o.output_type == "error" else o.get("data", o)["text/plain"] for o in outputs] == TEXTS[name]


def test_kernel_prints_nothing_and_fails_nowhere_else(notebook: nbformat.NotebookNode) -> None:
    kinds = {(o.output_type, o.get("ename")) for cell in notebook.cells for o in cell.outputs}
    assert kinds == {("display_data", None), ("execute_result", None), ("error", "KeyboardInterrupt")}


def test_kernel_keeps_the_alternative_text(notebook: nbformat.NotebookNode) -> None:
    picture, caption = outputs_of(notebook, "show")
    assert picture.metadata["image/png"]["alt"] == "Two cells."
    assert {"width", "height"} < set(picture.metadata["image/png"])
    assert caption.data["text/markdown"] == "*Two cells.*"
    (panel,) = outputs_of(notebook, "explorer")
    assert panel.metadata["image/png"]["alt"].startswith("A query and three keys")
    assert panel.data["text/plain"].startswith("What a dot product sees\n")


def test_kernel_shows_the_same_picture_twice_and_after_a_move(notebook: nbformat.NotebookNode) -> None:
    for name in ("show", "explorer"):
        first, second = (outputs_of(notebook, name, turn)[0].data for turn in (0, 1))
        assert first["image/png"] == second["image/png"]
        assert first["text/plain"] == second["text/plain"]
    before, after = outputs_of(notebook, "explorer")[0].data, outputs_of(notebook, "explorer again")[0].data
    for kind in ("image/png", "text/plain"):
        assert before[kind] == after[kind]


def test_kernel_leaves_the_bars_in_their_colours(notebook: nbformat.NotebookNode) -> None:
    states = [model["state"] for model in notebook.metadata.widgets[STATE]["state"].values()]
    bars = {(s["max"], s.get("value", 0), s["bar_style"]) for s in states if s["_model_name"] == "IntProgressModel"}
    assert bars == {(3, 3, "success"), (5, 2, "danger"), (7, 3, "danger")}


def test_kernel_source_is_folded(notebook: nbformat.NotebookNode) -> None:
    (source,) = outputs_of(notebook, "source")
    assert source.data["text/markdown"].startswith("<details><summary>Source of <code>mha_course.lesson.predict</code>")
    assert source.data["text/plain"].startswith("def predict(question: str")
