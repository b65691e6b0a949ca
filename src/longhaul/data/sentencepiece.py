"""SentencePiece models: a `.model` becomes the `tokenizer.json` that encodes as it does.

Nothing in the file is run, and nothing in it is trusted. Sources: `sentencepiece_model.proto` and
`bpe_model.cc` of SentencePiece; "Encoding" in the documentation of Protocol Buffers.
"""

import base64
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.data.tokenizing import added_token, tokenizer_json

Value: TypeAlias = int | memoryview


class Malformed(ValueError):
    """The bytes are no message."""


def fields(content: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: an int for varints, else the field's bytes. Malformed if
    there is a length beyond the message, a field number 0, a group, or an endless varint.
    """
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise Malformed(f"field number {number} at byte {at:,}")
        if wire == 0:
            value, at = _varint(content, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise Malformed(f"wire type {wire} at byte {at:,}")
        if size > len(content) - at:
            raise Malformed(f"a field of {size:,} bytes, {len(content) - at:,} before the end")
        yield number, content[at : at + size]
        at += size


def as_bytes(value: Value) -> memoryview:
    """A field that must be a string, bytes or a message."""
    if isinstance(value, int):
        raise Malformed("a number where bytes belong")
    return value


def as_text(value: Value) -> str:
    """A field that must be a string."""
    try:
        return bytes(as_bytes(value)).decode()
    except UnicodeDecodeError:
        raise Malformed(f"a string that is not UTF-8 ({bytes(as_bytes(value))[:20]!r})") from None


def as_int(value: Value) -> int:
    """A field that must be an int32, int64, enum or bool."""
    if not isinstance(value, int):
        raise Malformed("bytes where a number belongs")
    return value - (1 << 64) if value >> 63 else value


def as_float(value: Value) -> float:
    """A field that must be a float."""
    if isinstance(value, int) or len(value) != 4:
        raise Malformed("no float where one belongs")
    number: float = struct.unpack("<f", value)[0]
    return number


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise Malformed("it ends within a number")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise Malformed(f"a number of more than 10 bytes before byte {at:,}")


_BYTES = np.arange(256, dtype=np.int64)
_Int64s = npt.NDArray[np.int64]


def check_charsmap(charsmap: bytes) -> None:
    """Walk every path of the trie; Malformed if one, or a replacement, lies outside of it."""
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


MAX_MODEL_BYTES = 256 << 20
"""The largest published vocabularies take 5 MB; a file beyond this is something else."""

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
_SPACE = "\u2581"
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_WAY = "give a SentencePiece model (type unigram or bpe), or the tokenizer.json of the same one"


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    score: float
    kind: int


@dataclass(slots=True)
class _Model:
    """What of a ModelProto decides how it encodes; defaults are the format's."""

    pieces: list[_Piece] = field(default_factory=list)
    model_type: int = _UNIGRAM
    byte_fallback: bool = False
    space_as_suffix: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


_SPECS = {  # TrainerSpec and NormalizerSpec
    2: {3: "model_type", 24: "space_as_suffix", 35: "byte_fallback"},
    3: {
        2: "charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces",
        5: "escape_whitespaces",
    },
}  # fmt: skip


def from_sentencepiece(content: bytes, name: str) -> bytes:
    """The `tokenizer.json` of a SentencePiece `.model`; DataError if it cannot be expressed."""
    try:
        model = _parsed(memoryview(content))
        _check(model)
    except Malformed as problem:
        raise DataError(f"{name}: not a SentencePiece model ({problem})", _WAY) from None
    added = [
        added_token(number, piece.text, special=True)
        for number, piece in enumerate(model.pieces)
        if piece.kind == _CONTROL
    ]
    vocabulary = _unigram(model) if model.model_type == _UNIGRAM else _bpe(model)
    return tokenizer_json(_normalizer(model), _splitter(model), _decoder(model), vocabulary, added)


def _parsed(content: memoryview) -> _Model:
    model = _Model()
    for number, value in fields(content):
        if number == 1:
            model.pieces.append(_piece(as_bytes(value)))
        elif number in _SPECS:
            for key, setting in fields(as_bytes(value)):
                name = _SPECS[number].get(key)
                if name == "charsmap":
                    model.charsmap = bytes(as_bytes(setting))
                elif name is not None:
                    setattr(model, name, type(getattr(model, name))(as_int(setting)))
    return model


def _piece(content: memoryview) -> _Piece:
    text, score, kind = "", 0.0, _NORMAL
    for number, value in fields(content):
        if number == 1:
            text = as_text(value)
        elif number == 2:
            score = as_float(value)
        elif number == 3:
            kind = as_int(value)
    return _Piece(text, score, kind)


def _check(model: _Model) -> None:
    if not model.pieces:
        raise Malformed("no piece in it")
    if model.model_type not in (_UNIGRAM, _BPE):
        raise Malformed(f"model type {model.model_type}; longhaul reads 1, unigram, and 2, bpe")
    seen: set[str] = set()
    for number, piece in enumerate(model.pieces):
        if not piece.text or piece.text in seen:
            raise Malformed(f"piece {number:,}, {piece.text!r}, is empty or occurs twice")
        seen.add(piece.text)
        if not math.isfinite(piece.score):
            raise Malformed(f"piece {number:,}, {piece.text!r}, has the score {piece.score}")
        if not _NORMAL <= piece.kind <= _BYTE or piece.kind == _UNUSED:
            raise Malformed(f"piece {number:,}, {piece.text!r}, is of type {piece.kind}")
        if piece.kind == _BYTE and not _BYTE_PIECE.fullmatch(piece.text):
            raise Malformed(f"piece {number:,}, {piece.text!r}, is said to be a byte")
    if sum(piece.kind == _UNKNOWN for piece in model.pieces) != 1:
        raise Malformed("it needs one unknown piece")
    num_bytes = sum(piece.kind == _BYTE for piece in model.pieces)
    if num_bytes != 256 * model.byte_fallback:
        raise Malformed(f"{num_bytes} pieces for the 256 bytes")
    if model.space_as_suffix or not model.escape_whitespaces:
        raise Malformed("spaces as suffixes, or not escaped, are not supported")
    if model.charsmap:
        check_charsmap(model.charsmap)


def _unigram(model: _Model) -> dict[str, Any]:
    # A user's piece is a word of its own (`_splitter`), of which no other pieces may be likelier.
    most = max(0.0, *(piece.score for piece in model.pieces))
    return {
        "type": "Unigram",
        "unk_id": next(n for n, piece in enumerate(model.pieces) if piece.kind == _UNKNOWN),
        "vocab": [
            [piece.text, most * len(piece.text) if piece.kind == _USER else piece.score]
            for piece in model.pieces
        ],
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: _Model) -> dict[str, Any]:
    """BPE joins the neighbours that make the piece of the highest score: merges in that order."""
    numbers = {piece.text: number for number, piece in enumerate(model.pieces)}
    normal = {piece.text for piece in model.pieces if piece.kind == _NORMAL}
    by_score = sorted(
        (piece for piece in model.pieces if piece.kind == _NORMAL),
        key=lambda piece: -piece.score,
    )
    # Where `x y z` could become one piece by x + y and by y + z, SentencePiece takes the left one,
    # and the library the one that comes first here, the shorter beginning.
    merges = [
        [piece.text[:cut], piece.text[cut:]]
        for piece in by_score
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in normal and piece.text[cut:] in normal
    ]
    return {
        "type": "BPE", "dropout": None, "continuing_subword_prefix": None,
        "unk_token": next(p.text for p in model.pieces if p.kind == _UNKNOWN),
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": model.byte_fallback,
        # Words that are in the vocabulary are taken whole: the only way to a user's piece.
        "ignore_merges": any(piece.kind == _USER for piece in model.pieces),
        "vocab": numbers, "merges": merges,
    }  # fmt: skip


def _normalizer(model: _Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        rules = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    return {"type": "Sequence", "normalizers": steps}


def _splitter(model: _Model) -> dict[str, Any] | None:
    users = [piece.text for piece in model.pieces if piece.kind == _USER]
    splits = []
    if model.model_type == _UNIGRAM or users:
        splits.append(_split(_specials(model)))
    if users:
        # Not as the library's added tokens: those cut the text before spaces are dealt with.
        longest_first = sorted(users, key=lambda text: -len(text))
        splits.append(_split("|".join(map(_escaped, longest_first))))
    # Words, where no piece reaches from one into the next: the same tokens, found faster.
    inside = re.compile(f"[^{_SPACE}]{_SPACE}")
    if not any(piece.kind == _NORMAL and inside.search(piece.text) for piece in model.pieces):
        splits.append(_split(f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+"))
    return {"type": "Sequence", "pretokenizers": splits} if splits else None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _escaped(text: str) -> str:
    # Not re.escape, which escapes spaces and more in ways that other engines need not know.
    return re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)


def _specials(model: _Model) -> str:
    """The first character of any text that reads like a special piece."""
    # SentencePiece never reads `</s>` or `<0x41>` out of a text; the library takes every piece of a
    # Unigram vocabulary, and a whole word of a BPE one, so that one is cut in two first.
    special = [
        _escaped(piece.text[0]) + f"(?={_escaped(piece.text[1:])})"
        for piece in model.pieces
        if piece.kind in (_CONTROL, _UNKNOWN) and len(piece.text) > 1
    ]
    return "|".join([*special, "<(?=0x[0-9A-F]{2}>)"])


def _decoder(model: _Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    ]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
