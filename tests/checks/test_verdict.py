"""A verdict as text and as a panel."""

import re
from html.parser import HTMLParser

import pytest

from mha_course.checks import Verdict, check
from mha_course.checks.verdict import NOT_ATTEMPTED

RIGHT = Verdict(True, None, "3 cases, every number agrees with the reference")
WRONG = Verdict(False, "the scores are not scaled", "largest difference 0.54", ("Where?", "What."))
STUB = Verdict(False, NOT_ATTEMPTED, "the function raises NotImplementedError")


def test_text():
    assert str(RIGHT) == "Right.\n3 cases, every number agrees with the reference."
    assert str(WRONG) == (
        "Not right yet: the scores are not scaled.\nLargest difference 0.54.\nHint 1: Where?\nHint 2: What."
    )
    assert str(STUB) == "Not attempted yet.\nThe function raises NotImplementedError."


def test_a_message_with_a_full_stop_gets_no_second():
    assert str(Verdict(False, "it raises E: no.", "")) == "Not right yet: it raises E: no."


@pytest.mark.parametrize(
    ("verdict", "word", "symbol", "colour"),
    [
        (RIGHT, "Right", "\u2713", "success"),
        (WRONG, "Not right yet", "\u2717", "error"),
        (STUB, "Not attempted yet", "\u25cb", "info"),
    ],
)
def test_colour_word_and_symbol(verdict, word, symbol, colour):
    panel = verdict._repr_html_()
    assert f"<b>{word}</b>" in panel
    assert f">{symbol}</span>" in panel
    colours = set(re.findall(r"var\((--jp-\w+-color1), #[0-9a-f]{6}\)", panel))
    assert colours == {f"--jp-{colour}-color1"}, "border and symbol share a colour with a fallback"
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
