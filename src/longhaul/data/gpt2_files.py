"""GPT-2's pair of tokenizer files: `vocab.bpe` and `encoder.json`, or `merges.txt`, `vocab.json`.

Enters: the two files' bytes. Leaves: the same byte-level BPE as a `tokenizer.json`.
Never knows: where they came from, or the `tokenizers` library. Source: `encoder.py` of GPT-2.
"""

import json
from typing import Any

from longhaul.core.errors import DataError
from longhaul.data.tokenizing import END_OF_TEXT

_WAY = "give both files of one vocabulary, as they were published"


def from_gpt2(encoder: bytes, merges: bytes, name: str) -> bytes:
    """The `tokenizer.json` of a vocabulary and its merges.

    Args:
        encoder: JSON object, token → number.
        merges: a line for each merge, the first one first; a line `#version` may come before.
        name: of the merges' file, for messages.

    Raises:
        DataError: they are no such pair, or not of each other.
    """
    vocabulary = _vocabulary(encoder, name)
    pairs = _merges(merges, vocabulary, name)
    added = []
    if (number := vocabulary.get(END_OF_TEXT)) is not None:
        added = [added_token(number, END_OF_TEXT, special=True)]
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
    }  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocabulary, "merges": pairs,
    }  # fmt: skip
    return tokenizer_json(None, byte_level, byte_level, model, added)


def _vocabulary(encoder: bytes, name: str) -> dict[str, int]:
    try:
        vocabulary = json.loads(encoder)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: its vocabulary is no JSON ({error})", _WAY) from None
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise DataError(f"{name}: its vocabulary is no JSON object of tokens", _WAY)
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < len(vocabulary):
            raise DataError(
                f"{name}: its vocabulary has {token!r} as number {number!r} of {len(vocabulary):,}",
                _WAY,
            )
    if len(set(vocabulary.values())) != len(vocabulary):
        raise DataError(f"{name}: its vocabulary has a number twice", _WAY)
    return vocabulary


def _merges(merges: bytes, vocabulary: dict[str, int], name: str) -> list[list[str]]:
    try:
        # Not splitlines: some tokens hold characters that it takes for line ends.
        lines = merges.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 (byte {error.start:,})", _WAY) from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise DataError(f"{name}:{number}: {line[:40]!r} is no merge of two tokens", _WAY)
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise DataError(f"{name}:{number}: {token[:40]!r} is not in the vocabulary", _WAY)
        pairs.append(pair)
    return pairs


def added_token(number: int, content: str, special: bool) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    return {
        "id": number, "content": content, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": special,
    }  # fmt: skip


def tokenizer_json(
    normalizer: dict[str, Any] | None,
    splitter: dict[str, Any] | None,
    decoder: dict[str, Any],
    model: dict[str, Any],
    added: list[dict[str, Any]],
) -> bytes:
    """The whole file; the same parts always give the same bytes."""
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": None,
        "decoder": decoder, "model": model,
    }  # fmt: skip
    return (json.dumps(whole, ensure_ascii=False, indent=1) + "\n").encode()
