r"""Normalisation that cuts, and never adds: its result is a subsequence of the text, once the
characters of `REPLACEMENTS` are replaced one for one.

OPT-175B's whitespace and formatting crept in with its own cleaning (stray backslashes); here a
property test shows that nothing can.
"""

import re
import unicodedata

from longhaul.config.corpus import CleanSection

REPLACEMENTS: dict[str, dict[str, str]] = {
    "whitespace": {
        # Old Macintosh line ends, page breaks and Unicode's line ends; \r\n loses its \r.
        **dict.fromkeys("\r\v\f\x85\u2028\u2029", "\n"),
        # Spaces that look like one; not the ideographic space, which is as wide as a character.
        **dict.fromkeys("\u00a0\u1680\u202f\u205f", " "),
        **dict.fromkeys(map(chr, range(0x2000, 0x200B)), " "),
    },
    # Control characters without which two words would grow together.
    "characters": dict.fromkeys("\v\f\x85", "\n"),
}
"""What one character becomes, by switch."""

_LINE_BREAKS = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f]")
# Begun nowhere but at its first space, and never given back: a run of a million costs a million.
_TRAILING = re.compile(r"(?<![ \t])[ \t]++(?=\n|\Z)")
_LEADING_LINES = re.compile(r"(?:[ \t]*+\n)*")
_EMPTY_LINES = re.compile(r"\n{4,}")
# ECMA-48 control sequences, such as colours: without their first character they would be text.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)")
# Not here: joiners (U+200C, U+200D) and marks of direction (U+200E, U+200F), which spell words.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0001]"
)
_ASCII_CONTROLS = bytes([*range(9), *range(11, 13), *range(14, 32), 127])
_PAGE_BREAKS = re.compile("[\v\f\x85]")


def normalise(text: str, switches: CleanSection) -> tuple[str, list[str]]:
    """The text with each switch applied, and the switches that changed something."""
    changed = []
    if switches.characters and (cut := without_unseen(text)) != text:
        changed.append("characters")
        text = cut
    if switches.whitespace and (cut := with_plain_whitespace(text)) != text:
        changed.append("whitespace")
        text = cut
    if switches.unicode and not unicodedata.is_normalized("NFC", text):
        changed.append("unicode")
        text = unicodedata.normalize("NFC", text)
    return text, changed


def without_unseen(text: str) -> str:
    """Without control characters and characters of no width; page breaks become line ends."""
    if text.isascii() and len(text.encode().translate(None, _ASCII_CONTROLS)) == len(text):
        return text  # ten times as fast as the search for characters of no width
    if "\x1b" in text:
        text = _SEQUENCES.sub("", text)
    return _PAGE_BREAKS.sub("\n", _UNSEEN.sub("", text))


def with_plain_whitespace(text: str) -> str:
    r"""Lines end in `\n` and in no space, at most two in a row are empty, none at the beginning,
    and the last ends once if it ended at all.
    """
    if "\r" in text or "\f" in text or "\v" in text or not text.isascii():
        text = _SPACES.sub(" ", _LINE_BREAKS.sub("\n", text))
    if " \n" in text or "\t\n" in text or text[-1:] in (" ", "\t"):
        text = _TRAILING.sub("", text)
    if (leading := _LEADING_LINES.match(text)) is not None:
        text = text[leading.end() :]
    if "\n\n\n\n" in text:
        text = _EMPTY_LINES.sub("\n\n\n", text)
    return f"{text.rstrip()}\n" if text.endswith("\n\n") else text
