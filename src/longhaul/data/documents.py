"""Documents: the unit in which text is read, deduplicated, held out and named.

Enters: nothing. Leaves: the frozen `Document`, and how big pieces of text may get.
Never knows: files, formats, tokens.
"""

from dataclasses import dataclass

MAX_PIECE_BYTES = 16 << 20
"""A text file beyond this is cut into several documents, so that memory stays bounded."""
MAX_LINE_BYTES = 64 << 20
"""A line or a Parquet value beyond this is no document but an accident, and is skipped."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from.

    Attributes:
        text: never empty, and always encodable as UTF-8.
        name: `peps.jsonl:17` (line), `part-0.parquet:17` (row), `os.py` (path relative to the
            source), or `big.txt#2` (second piece of a file that was cut).
    """

    text: str
    name: str


def cut_text(text: str, max_characters: int) -> list[str]:
    """Pieces of at most `max_characters` that add up to `text`.

    Each is cut after a line end if there is one in its second half, else anywhere.
    """
    pieces = []
    begin = 0
    while len(text) - begin > max_characters:
        limit = begin + max_characters
        newline = text.rfind("\n", begin + max_characters // 2, limit)
        end = newline + 1 if newline >= 0 else limit
        pieces.append(text[begin:end])
        begin = end
    pieces.append(text[begin:] if begin else text)
    return pieces
