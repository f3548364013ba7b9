"""What a check found, as data, as text that never changes, and as a panel in a notebook."""

import html
from dataclasses import dataclass
from typing import NamedTuple

NOT_ATTEMPTED = "not attempted yet"


@dataclass(frozen=True, repr=False)
class Verdict:
    """What `check` found out about a solution; true in an `if` when the solution is right.

    Attributes:
        ok: whether the solution does what the exercise asks for.
        fault: what is wrong, None if nothing is; "not attempted yet" for a stub.
        evidence: what was seen: the largest difference, in which case and where.
        hints: where to look, then what to change; never the solution. Empty if nothing is wrong.
        names: stable ids of what is wrong, for programs. Empty where a check has none.
        remarks: what was assumed on the way, and what is unusual without being wrong.
        judged: False if the solution could not be judged at all; fault then says why.
    """

    ok: bool
    fault: str | None
    evidence: str
    hints: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    judged: bool = True

    def __bool__(self) -> bool:
        """Whether the solution is right, so that `assert check(...)` means what it says."""
        return self.ok

    def __repr__(self) -> str:
        """The verdict in lines of plain text, the same on every machine."""
        named = "" if self.fault in (None, NOT_ATTEMPTED) else f": {self.fault}"
        lines = [_end(f"{_look(self).word}{named}")]
        if self.evidence:
            lines.append(_sentence(self.evidence))
        lines += [f"Remark: {_end(remark)}" for remark in self.remarks]
        lines += [f"Hint {i}: {hint}" for i, hint in enumerate(self.hints, 1)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The verdict as a panel; colour, word and symbol say the same; hints are folded."""
        symbol, word, colour = _look(self)
        named = "" if self.fault in (None, NOT_ATTEMPTED) else f": {self.fault}"
        head = html.escape(_end(named))
        evidence = f"<div>{html.escape(_sentence(self.evidence))}</div>" if self.evidence else ""
        remarks = "".join(f"<div>Remark: {html.escape(_end(remark))}</div>" for remark in self.remarks)
        folded = ""
        for i, hint in reversed(list(enumerate(self.hints, 1))):
            folded = (
                f'<details style="margin-top: 0.3em"><summary>Hint {i}</summary>{html.escape(hint)}{folded}</details>'
            )
        return (
            f'<div role="status" style="border-left: 5px solid {colour}; padding: 0.4em 0.8em; '
            "color: var(--jp-ui-font-color1, inherit); "
            'background: var(--jp-layout-color1, transparent)">'
            f'<div><span aria-hidden="true" style="color: {colour}; font-weight: bold">{symbol}'
            f"</span> <b>{word}</b>{head}</div>{evidence}{remarks}{folded}</div>"
        )


class _Look(NamedTuple):
    symbol: str
    word: str
    colour: str


# JupyterLab's own colours change with its theme; the fallbacks, for pages without it, have at
# least 3:1 on white and on near-black.
_RIGHT = _Look("\u2713", "Right", "var(--jp-success-color1, #2e8b57)")
_WRONG = _Look("\u2717", "Not right yet", "var(--jp-error-color1, #d9534f)")
_STUB = _Look("\u25cb", "Not attempted yet", "var(--jp-info-color1, #3b8fc2)")
_UNJUDGED = _Look("?", "Could not be judged", "var(--jp-layout-color4, #808080)")  # grey in both themes


def _look(verdict: Verdict) -> _Look:
    if not verdict.judged:
        return _UNJUDGED
    if verdict.ok:
        return _RIGHT
    return _STUB if verdict.fault == NOT_ATTEMPTED else _WRONG


def _sentence(text: str) -> str:
    return _end(f"{text[0].upper()}{text[1:]}")


def _end(text: str) -> str:
    """With one full stop: an exception's message may bring its own."""
    return text.rstrip(".") + "."
