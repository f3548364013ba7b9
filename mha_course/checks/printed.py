"""Let the first prints of a solution through, and drop the rest."""

import io
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

LINES = 20
CHARACTERS = 2000


def limited_output(lines: int = LINES, characters: int = CHARACTERS) -> "LimitedOutput":
    """Limit what the code in a `with` block prints, on sys.stdout and sys.stderr together.

    What is printed first is shown at once. What goes beyond the limits is dropped, and one line says
    at the end how much that was. What is written past Python's two streams, by a child process or by a
    handler of logging that holds a stream of its own, is not limited.

    Raises:
        ValueError: a limit is below 0.
    """
    if lines < 0 or characters < 0:
        raise ValueError(f"lines and characters must be 0 or more, got {lines} and {characters}")
    return LimitedOutput(lines, characters)


class LimitedOutput:
    """How much is still let through, and how much was dropped.

    Attributes:
        lines: lines that may still be shown.
        characters: characters that may still be shown.
        on: False once the `with` block is left: then everything is let through.
    """

    def __init__(self, lines: int, characters: int):
        self.lines, self.characters = lines, characters
        self.on = True
        self._begun = False  # whether the last line shown was begun and not ended
        self._full = False  # whether something was dropped; nothing later is shown then, so that there are no holes
        self._ends = 0  # line ends that were dropped
        self._tail = False  # whether the last line dropped was begun and not ended
        self._kept: tuple[Any, Any] = (None, None)

    @property
    def dropped(self) -> int:
        """How many lines were not shown, or not in full."""
        return self._ends + self._tail

    def take(self, text: str) -> str:
        """The part of a text that is let through; the rest is counted."""
        if not self.on or not text:
            return text
        shown = "" if self._full else self._first(text)
        if len(shown) < len(text):
            self._full = True
            self._ends += text.count("\n", len(shown))
            self._tail = text[-1] != "\n"
        return shown

    def _first(self, text: str) -> str:
        shown = text[: self.characters] if self.lines else ""
        lines = shown.split("\n", self.lines)
        if len(lines) > self.lines:  # cut behind the last line that may be shown
            shown = shown[: len(shown) - len(lines[-1])]
        begun = shown[-1] != "\n" if shown else self._begun
        if begun and text[len(shown) : len(shown) + 1] == "\n":  # the end of a line that is shown
            shown += "\n"
            begun = False
        self._begun = begun
        self.lines -= shown.count("\n")
        self.characters = max(0, self.characters - len(shown))
        return shown

    def notice(self) -> str:
        """What to say at the end; "" where nothing was dropped."""
        n = self.dropped
        begin = "\n" if self._begun else ""
        return f"{begin}[... and {n} more line{'s' * (n != 1)} printed, not shown]\n" if n else ""

    def __enter__(self) -> "LimitedOutput":
        """Put a limited stream in the place of each of the two."""
        self._kept = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (x and _Stream(x, self) for x in self._kept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the streams back, and say what was dropped."""
        self.on = False
        sys.stdout, sys.stderr = self._kept
        notice = self.notice()
        if notice and sys.stdout is not None:
            with suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
                sys.stdout.write(notice)
                sys.stdout.flush()


class _Stream(io.TextIOBase):
    """A stream that lets through what its limit takes; all else is the stream's behind it."""

    def __init__(self, behind: Any, limit: LimitedOutput):
        self._behind, self._limit = behind, limit

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        shown = self._limit.take(text)
        if shown:
            self._behind.write(shown)
        return len(text)

    def flush(self) -> None:
        self._behind.flush()

    def close(self) -> None:
        """Leave the stream behind it open: it is the caller's."""

    @property
    def buffer(self) -> "_Bytes":
        return _Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._behind, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return getattr(self._behind, "errors", None)

    def fileno(self) -> int:
        return int(self._behind.fileno())

    def isatty(self) -> bool:
        return bool(self._behind.isatty())

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


class _Bytes(io.RawIOBase):
    """What sys.stdout.buffer is, so that bytes count too."""

    def __init__(self, stream: _Stream):
        self._stream = stream

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._stream.write(taken.decode(self._stream.encoding, "replace"))
        return len(taken)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True
