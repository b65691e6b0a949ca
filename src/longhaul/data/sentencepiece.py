"""SentencePiece models: a `.model` becomes the `tokenizer.json` that encodes as it does.

Enters: the file's bytes. Leaves: a Unigram or BPE vocabulary with its normalisation.
Never knows: the `tokenizers` library, or text. Nothing in the file is run.
Source: `sentencepiece_model.proto` and `bpe_model.cc` of SentencePiece (Kudo and Richardson,
arXiv 1808.06226); field numbers stand beside the names below.
"""

import base64
import math
import re
from dataclasses import dataclass, field
from typing import Any

from longhaul.core.errors import DataError
from longhaul.data.charsmap import check_charsmap
from longhaul.data.gpt2_files import added_token, tokenizer_json
from longhaul.data.protobuf import Malformed, as_bytes, as_float, as_int, as_text, fields

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


def from_sentencepiece(content: bytes, name: str) -> bytes:
    """The `tokenizer.json` of a SentencePiece `.model`.

    Raises:
        DataError: it is no such model, damaged, or of a kind that cannot be expressed.
    """
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
        elif number == 2:  # TrainerSpec
            for key, setting in fields(as_bytes(value)):
                if key == 3:
                    model.model_type = as_int(setting)
                elif key == 24:
                    model.space_as_suffix = bool(as_int(setting))
                elif key == 35:
                    model.byte_fallback = bool(as_int(setting))
        elif number == 3:  # NormalizerSpec
            for key, setting in fields(as_bytes(value)):
                if key == 2:
                    model.charsmap = bytes(as_bytes(setting))
                elif key == 3:
                    model.add_dummy_prefix = bool(as_int(setting))
                elif key == 4:
                    model.remove_extra_whitespaces = bool(as_int(setting))
                elif key == 5:
                    model.escape_whitespaces = bool(as_int(setting))
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
    """BPE joins the neighbours that make the piece of the highest score: merges in that order.

    Where `x y z` could become the same piece by x + y and by y + z, SentencePiece takes the left
    one and the library the one that comes first here, the shorter beginning.
    """
    numbers = {piece.text: number for number, piece in enumerate(model.pieces)}
    normal = {piece.text for piece in model.pieces if piece.kind == _NORMAL}
    by_score = sorted(
        (piece for piece in model.pieces if piece.kind == _NORMAL),
        key=lambda piece: -piece.score,
    )
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
    """The first character of any text that reads like a special piece.

    SentencePiece never reads `</s>` or `<0x41>` out of a text; the library takes every piece of a
    Unigram vocabulary, and a whole word of a BPE one, so that one is cut in two first.
    """
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
