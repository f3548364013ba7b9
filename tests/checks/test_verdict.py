"""A verdict as text and as a panel."""

import re
from html.parser import HTMLParser

import pytest

from mha_course.checks import Verdict, check
from mha_course.checks.verdict import NOT_ATTEMPTED

RIGHT = Verdict(True, None, "3 cases, every number agrees with the reference")
WRONG = Verdict(False, "the scores are not scaled", "largest difference 0.54", ("Where?", "What."))
REMARKED = Verdict(
    True, None, "20 cases agree", ("One.",), names=("a",), remarks=("assumed: True may attend", "Heads <b>.")
)
UNJUDGED = Verdict(False, "no file heads.py", "looked in a folder", judged=False)
STUB = Verdict(False, NOT_ATTEMPTED, "the function raises NotImplementedError")


def test_text():
    assert str(RIGHT) == "Right.\n3 cases, every number agrees with the reference."
    assert str(WRONG) == (
        "Not right yet: the scores are not scaled.\nLargest difference 0.54.\nHint 1: Where?\nHint 2: What."
    )
    assert str(STUB) == "Not attempted yet.\nThe function raises NotImplementedError."
    assert str(REMARKED) == (
        "Right.\n20 cases agree.\nRemark: assumed: True may attend.\nRemark: Heads <b>.\nHint 1: One."
    )
    assert str(UNJUDGED) == "Could not be judged: no file heads.py.\nLooked in a folder."


def test_a_verdict_without_names_and_remarks_has_none_and_is_judged():
    assert (RIGHT.names, RIGHT.remarks, RIGHT.judged) == ((), (), True)
    assert Verdict(True, None, "x", (), (), (), True) == Verdict(True, None, "x")


def test_only_a_right_solution_is_true_in_an_if():
    assert [bool(x) for x in (RIGHT, REMARKED, WRONG, STUB, UNJUDGED)] == [True, True, False, False, False]


def test_the_panel_without_names_and_remarks_is_the_one_stored_in_notebooks():
    assert WRONG._repr_html_() == (
        '<div role="status" style="border-left: 5px solid var(--jp-error-color1, #d9534f); padding: 0.4em 0.8em; '
        'color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color1, transparent)">'
        '<div><span aria-hidden="true" style="color: var(--jp-error-color1, #d9534f); font-weight: bold">\u2717</span> '
        "<b>Not right yet</b>: the scores are not scaled.</div><div>Largest difference 0.54.</div>"
        '<details style="margin-top: 0.3em"><summary>Hint 1</summary>Where?'
        '<details style="margin-top: 0.3em"><summary>Hint 2</summary>What.</details></details></div>'
    )


def test_remarks_stand_between_evidence_and_hints_escaped():
    panel = REMARKED._repr_html_()
    lines = "<div>20 cases agree.</div><div>Remark: assumed: True may attend.</div><div>Remark: Heads &lt;b&gt;.</div>"
    assert f"{lines}<details" in panel


def test_a_message_with_a_full_stop_gets_no_second():
    assert str(Verdict(False, "it raises E: no.", "")) == "Not right yet: it raises E: no."


@pytest.mark.parametrize(
    ("verdict", "word", "symbol", "colour"),
    [
        (RIGHT, "Right", "\u2713", "success"),
        (WRONG, "Not right yet", "\u2717", "error"),
        (STUB, "Not attempted yet", "\u25cb", "info"),
        (UNJUDGED, "Could not be judged", "?", "layout"),
    ],
)
def test_colour_word_and_symbol(verdict, word, symbol, colour):
    panel = verdict._repr_html_()
    assert f"<b>{word}</b>" in panel
    assert f">{symbol}</span>" in panel
    colours = set(re.findall(r"var\(--jp-(\w+)-color[14], #[0-9a-f]{6}\)", panel))
    assert colours == {colour}, "border and symbol share a colour with a fallback"
    assert "border-left: 5px solid var(--jp-" in panel
    assert "color: var(--jp-ui-font-color1, inherit)" in panel


def test_the_panel_says_what_the_text_says_and_folds_the_second_hint_in_the_first():
    panel = WRONG._repr_html_()
    assert "</b>: the scores are not scaled.</div><div>Largest difference 0.54.</div>" in panel
    assert panel.index("Hint 1") < panel.index("Where?") < panel.index("Hint 2")
    assert panel.count("<details") == panel.count("</details></details>") + 1 == 2
    assert "open" not in panel


def test_what_an_exception_says_is_escaped():
    def broken(scores):
        raise ValueError("<script>alert('x')</script> & <b>")

    panel = check("softmax", broken)._repr_html_()
    assert "<script" not in panel
    assert "&lt;script&gt;" in panel
    verdict = Verdict(False, "a < b", "<i>", ("<u>", "&"))

    class Text(HTMLParser):
        seen = ""

        def handle_data(self, data):
            self.seen += data

    parser = Text()
    parser.feed(verdict._repr_html_())
    assert parser.seen == "\u2717 Not right yet: a < b.<i>.Hint 1<u>Hint 2&"
