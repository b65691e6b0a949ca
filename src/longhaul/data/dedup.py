"""Exact duplicates, and the hash of a text that also decides what is held out.

Enters: UTF-8 bytes of documents, one after the other. Leaves: a digest, and whether it is new.
Never knows: the texts themselves once they are hashed.
"""

import hashlib


def text_digest(content: bytes) -> bytes:
    """128-bit BLAKE2b of a document's UTF-8 bytes; the same on every machine."""
    return hashlib.blake2b(content, digest_size=16).digest()


def is_held_out(digest: bytes, fraction: float) -> bool:
    """Whether a text belongs to the validation split: a property of the text alone.

    A document therefore never changes sides when others are added, removed or reordered, and
    growing the fraction only adds to the held-out side.
    """
    return int.from_bytes(digest[:8], "big") < fraction * 2.0**64


class ExactDuplicates:
    """Remembers which texts were seen, by digest: about 100 bytes of memory a document."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._seen: set[bytes] = set()

    def is_new(self, digest: bytes) -> bool:
        """True the first time; later ones are counted as dropped."""
        if digest in self._seen:
            self.num_dropped += 1
            return False
        self._seen.add(digest)
        return True
