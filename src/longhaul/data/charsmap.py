"""SentencePiece's compiled normalisation rules, checked before a library walks them.

Enters: the bytes of `precompiled_charsmap`. Leaves: nothing, or why they are damaged: the
library indexes them without looking, and would end the process.
Never knows: what the rules do to a text.

Layout: uint32 size of the trie in bytes; the trie, a double array of 32-bit units (darts-clone);
replacement texts, each ended by NUL. A unit has its label in bits 0-7 and 31, a leaf flag in
bit 8, and the way to its children in bits 9-30; a leaf has the place of its text in bits 0-30.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from longhaul.data.protobuf import Malformed

_BYTES = np.arange(256, dtype=np.int64)
_Int64s = npt.NDArray[np.int64]


def check_charsmap(charsmap: bytes) -> None:
    """Walk every path of the trie.

    Raises:
        Malformed: a path or a replacement would lie outside of what is there.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or size % 4 or not size or size > len(charsmap) - 4:
        raise Malformed(f"normalisation rules of {size:,} bytes in a field of {len(charsmap):,}")
    texts = charsmap[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise Malformed("normalisation rules that are not UTF-8") from None
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    content = np.frombuffer(texts, np.uint8)
    seen: npt.NDArray[Any] = np.zeros(len(units), bool)
    bases = _children_of(units, np.zeros(1, np.int64))
    while len(bases):
        # Whatever byte a text has next is looked up, so all 256 must have a place.
        if int(bases.max()) | 255 >= len(units):
            raise Malformed("normalisation rules that lead out of their table")
        places = bases[:, None] ^ _BYTES
        matched = (units[places] & (1 << 31 | 255)) == _BYTES
        found = np.unique(places[:, 1:][matched[:, 1:]])
        found = found[~seen[found]]
        seen[found] = True
        bases = _children_of(units, found)
        leaves = bases[(units[found] >> 8 & 1).astype(bool)]
        _check_leaves(units, leaves, content)


def _children_of(units: _Int64s, places: _Int64s) -> _Int64s:
    found = units[places]
    return places ^ ((found >> 10) << ((found & 1 << 9) >> 6))


def _check_leaves(units: _Int64s, leaves: _Int64s, content: npt.NDArray[np.uint8]) -> None:
    if not len(leaves):
        return
    if int(leaves.max()) >= len(units):
        raise Malformed("normalisation rules that lead out of their table")
    texts = units[leaves] & (1 << 31) - 1
    if int(texts.max()) >= len(content) or ((content[texts] & 0xC0) == 0x80).any():
        raise Malformed("normalisation rules with a replacement that is not there")
