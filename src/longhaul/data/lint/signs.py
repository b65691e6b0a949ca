r"""Signs in a single document that something went wrong with its text.

A document is counted where a sign is dense, not where it occurs: code has `\n` in its strings.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

_EXAMPLES = 3
_EXCERPT = 30
"""Characters to each side of an example."""
_LONG_LINE = 10_000
_NEARLY_NOTHING = 32
"""Characters; a sentence has more."""
_STRETCHES = 64

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check saw in a document that could show its sign; `spans` are empty if it does not."""

    occurrences: int = 0
    first: Span = (0, 0)


_CLEAN: Final = Seen()


@dataclass(frozen=True, slots=True)
class Check:
    """Looks for one kind of sign."""

    kind: str
    find: Callable[[str], Seen | None]
    """None where a document cannot show it: one without backslashes has none doubled."""
    floor: float
    """Share of the documents that could show it, from which on it is a finding."""
    remedy: str
    ceiling: float = 1.0
    """Share beyond which it is the way of the source, and no fault."""


@dataclass(slots=True)
class Sign:
    """One kind of sign in one source."""

    check: Check
    documents: int = 0
    """In which it is dense."""
    eligible: int = 0
    """Which could show it."""
    occurrences: int = 0
    examples: list[str] = field(default_factory=list)
    """Where, and an excerpt."""
    where: list[int] = field(default_factory=list)
    """Affected documents of each stretch of `stretch` documents, in the source's order."""
    stretch: int = 1

    @property
    def kind(self) -> str:
        """What it is called."""
        return self.check.kind

    @property
    def share(self) -> float:
        """Of the documents that could show it (0 to 1)."""
        return self.documents / max(1, self.eligible)

    def add(self, ordinal: int, name: str, text: str, seen: Seen) -> None:
        """One more document that could show it, number `ordinal` of the source."""
        self.eligible += 1
        if not seen.occurrences:
            return
        self.documents += 1
        self.occurrences += seen.occurrences
        while ordinal // self.stretch >= _STRETCHES:
            padded = [*self.where, *[0] * (len(self.where) % 2)]
            self.where = [a + b for a, b in zip(padded[::2], padded[1::2], strict=True)]
            self.stretch *= 2
        self.where += [0] * (ordinal // self.stretch + 1 - len(self.where))
        self.where[ordinal // self.stretch] += 1
        if len(self.examples) < _EXAMPLES:
            begin, end = seen.first
            end = min(end, begin + _EXCERPT) + _EXCERPT
            self.examples.append(f"{name}: {excerpt(text[max(0, begin - _EXCERPT) : end])}")


_SHOWN_AS = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\ufffd": "\ufffd"})


def excerpt(text: str) -> str:
    """On one line, with white space in sight; backslashes as they are: `repr` doubles them."""
    shown = text.translate(_SHOWN_AS)
    return "".join(c if c.isprintable() or c == "\ufffd" else f"\\x{ord(c):02x}" for c in shown)


class DocumentSigns:
    """Looks at the documents of one source."""

    def __init__(self) -> None:
        self.signs = [Sign(check) for check in CHECKS]
        self._ordinal = 0

    def see(self, name: str, text: str) -> None:
        """One more document."""
        for sign in self.signs:
            seen = sign.check.find(text)
            if seen is not None:
                sign.add(self._ordinal, name, text, seen)
        self._ordinal += 1

    def found(self) -> Iterator[Sign]:
        """Signs that some document shows."""
        return (sign for sign in self.signs if sign.documents)


def _dense(
    pattern: re.Pattern[str],
    text: str,
    enough: Callable[[int, int], bool] = lambda n, covered: True,
) -> Seen:
    spans = [match.span() for match in pattern.finditer(text)]
    covered = sum(end - begin for begin, end in spans)
    return Seen(len(spans), spans[0]) if spans and enough(len(spans), covered) else _CLEAN


_BACKSLASHES = re.compile(r"\\+")


def _doubled_backslashes(text: str) -> Seen | None:
    if "\\" not in text:
        return None
    spans = [match.span() for match in _BACKSLASHES.finditer(text)]
    if len(spans) < 3:
        return None
    # Text that was escaped once too often has no odd run left; by itself, nearly all text has one.
    odd = sum((end - begin) % 2 for begin, end in spans)
    if odd * 20 > len(spans):
        return _CLEAN
    return Seen(len(spans), spans[0])


_ESCAPES = re.compile(r"\\(?:r\\n|[nrt])")


def _leaked_escapes(text: str) -> Seen | None:
    if "\\" not in text:
        return _CLEAN
    # Where text was escaped once too often, escapes outnumber what they stand for.
    lines = text.count("\n")
    return _dense(_ESCAPES, text, lambda count, _: count >= 3 and count > lines)


_ENTITIES = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,7}|#x[0-9a-fA-F]{1,6});")


def _entities(text: str) -> Seen | None:
    if "&" not in text:
        return _CLEAN
    return _dense(_ENTITIES, text, lambda count, _: count >= 3 and count * 1000 >= len(text))


_WIDE = re.compile(r"[ \t\u00a0]{40,}")
_HIGH = re.compile(r"\n(?:[ \t]*\r?\n){5,}")


def _white_space(text: str) -> Seen | None:
    most = _CLEAN
    if "\n" in text:
        most = _dense(_HIGH, text, lambda _, covered: covered * 20 >= len(text))
    if not most.occurrences and any(sign * 10 in text for sign in " \t\u00a0"):
        most = _dense(_WIDE, text, lambda _, covered: covered * 20 >= len(text))
    return most


def _trailing(text: str) -> Seen | None:
    lines = text.count("\n")
    if lines < 5:
        return None
    count = sum(map(text.count, (" \n", "\t\n", " \r\n", "\t\r\n")))
    if count < 3 or count * 10 < lines:
        return _CLEAN
    at = max(text.find(" \n"), text.find("\t\n"), text.find(" \r\n"), text.find("\t\r\n"))
    return Seen(count, (at, at + 2))


def _carriage_returns(text: str) -> Seen | None:
    if "\n" not in text:
        return None
    count = text.count("\r\n")
    if not count:
        return _CLEAN
    at = text.find("\r\n")
    return Seen(count, (at, at + 2))


def _mixed_line_ends(text: str) -> Seen | None:
    windows = text.count("\r\n")
    rest = text.count("\n") - windows
    if windows + rest < 4:
        return None
    if not windows or not rest:
        return _CLEAN
    at = text.find("\r\n")
    return Seen(min(windows, rest), (at, at + 2))


_HIGH_BYTES = (
    "\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013\u2014"
    "\u2018-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122"
)
"""What Latin-1 and Windows-1252 make of UTF-8's continuation bytes."""
_MOJIBAKE = re.compile(f"[\u00c2\u00c3\u00d0\u00d1][{_HIGH_BYTES}]|\u00e2(?:\u20ac|\u0080)")


def _mojibake(text: str) -> Seen | None:
    if text.isascii() or not any(map(text.__contains__, "\u00c2\u00c3\u00d0\u00d1\u00e2")):
        return _CLEAN
    return _dense(_MOJIBAKE, text, lambda count, _: count >= 2)


def _replacements(text: str) -> Seen | None:
    if text.isascii() or "\ufffd" not in text:
        return _CLEAN
    at = text.find("\ufffd")
    return Seen(text.count("\ufffd"), (at, at + 1))


_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")
_LONG = re.compile(rf"[^\n]{{{_LONG_LINE},}}")


def _long_lines(text: str) -> Seen | None:
    if len(text) < _LONG_LINE:
        return _CLEAN
    return _dense(_LONG, text)


def _near_empty(text: str) -> Seen | None:
    if len(text) > 4 * _NEARLY_NOTHING or len(text.strip()) >= _NEARLY_NOTHING:
        return _CLEAN
    return Seen(1, (0, len(text)))


# Floors: the most that any of the clean corpora has is 0.8 % (white space behind lines, in one) and
# 0.3 % (backslashes, replacement characters); 5 % is what a run is embarrassed by.
_FLOOR = 0.02
_ENCODING_FLOOR = 0.01
CHECKS = (
    Check(
        "escaped line ends", _leaked_escapes, _FLOOR,
        "the text was taken from JSON or code without decoding it: decode it once more",
    ),
    Check(
        "doubled backslashes", _doubled_backslashes, _FLOOR,
        "a cleaning or deduplication step escaped the text again: undo it, or leave these out",
    ),
    Check("HTML entities", _entities, _FLOOR, "unescape it with html.unescape"),
    Check("runs of white space", _white_space, 0.03, "collapse it, or look at the extraction"),
    Check("white space behind lines", _trailing, _FLOOR, "strip the ends of lines"),
    Check(
        "carriage returns in some documents", _carriage_returns, _FLOOR,
        "turn all line ends into \\n", ceiling=0.98,
    ),
    Check("mixed line ends", _mixed_line_ends, _FLOOR, "turn all line ends into \\n"),
    Check(
        "text in a wrong encoding", _mojibake, _ENCODING_FLOOR,
        "decode it as UTF-8 where it was taken for Latin-1 or Windows-1252",
    ),
    Check(
        "replacement characters", _replacements, _ENCODING_FLOOR,
        "what they stand for is lost: extract it again with the right encoding",
    ),
    Check(
        "control characters", lambda text: _dense(_CONTROLS, text), _ENCODING_FLOOR,
        "remove them; they are left from terminals, printers and broken encodings",
    ),
    Check(
        f"lines beyond {_LONG_LINE:,} characters", _long_lines, _FLOOR,
        "look whether it is minified code, data or text that lost its line ends",
    ),
    Check(
        "near-empty documents", _near_empty, 0.05,
        "drop them, or join them into documents: each costs an end of text",
    ),
)  # fmt: skip
