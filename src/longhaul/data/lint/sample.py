"""A sample of a source in small pieces, fair and of fixed size, for what costs more than a look at
every document.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

PIECE_CHARACTERS = 4096
_SHORTEST = 256
"""Of a rest of a document; a whole document may be shorter."""
MOST_PIECES = 400


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A stretch of a document."""

    ordinal: int
    """Of its document in the source, from 0."""
    offset: int
    """Characters of its document before it."""
    name: str
    text: str


class PieceSample:
    """The pieces with the smallest hashes: neither order nor size of the source decides which, and
    copies are as likely as they are frequent.
    """

    def __init__(self, most: int = MOST_PIECES) -> None:
        self._most = most
        self._kept: list[tuple[int, Piece]] = []  # a heap, the largest hash first
        self._count = 0

    def see(self, name: str, text: str) -> None:
        """One more document."""
        ordinal = self._count
        self._count += 1
        for offset in range(0, len(text), PIECE_CHARACTERS):
            piece = text[offset : offset + PIECE_CHARACTERS]
            if offset and len(piece) < _SHORTEST:
                continue
            # The place is hashed too: of a text that stands there a thousand times, a sample has
            # as much as the source.
            content = piece.encode()
            place = b"%d:%d" % (ordinal, offset)
            digest = blake2b(content, digest_size=7, key=place).digest()
            rank = -int.from_bytes(digest, "big")
            if len(self._kept) < self._most:
                heapq.heappush(self._kept, (rank, Piece(ordinal, offset, name, piece)))
            elif rank > self._kept[0][0]:
                heapq.heapreplace(self._kept, (rank, Piece(ordinal, offset, name, piece)))

    def pieces(self) -> list[Piece]:
        """In the order of the source."""
        return sorted(piece for _, piece in self._kept)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces())
