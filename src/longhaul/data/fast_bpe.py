"""The byte-level BPE of a `tokenizer.json` by tiktoken, four times as fast, where both agree.

Tiktoken joins any two neighbours whose bytes together are a token, lowest number first; the
`tokenizers` library joins the pairs of a list, in its order. `_same_merges` tells whether that is
the same for every text; the split into words is compared on text.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from longhaul.data.tokenizing import TokenArray, byte_symbols

_GPT2_SPLIT = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # as ByteLevel's
)

_RUN = 900_000
"""Texts come in pieces of 1,048,576 characters: a run of a million covers the middle of one."""

Ranks = dict[bytes, int]


class FastBPE:
    """Encodes as a `tokenizer.json` does."""

    def __init__(self, ranks: Ranks, split: str) -> None:
        import tiktoken

        self._encoding = tiktoken.Encoding(
            "longhaul", pat_str=split, mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, text: str) -> TokenArray | None:
        """Token numbers; None where tiktoken gives up: its expressions remember no more than a
        million characters of white space in a row.
        """
        if text[_RUN // 8 : _RUN].isspace() and len(text) > _RUN:
            return None
        try:
            return np.array(self._encoding.encode_ordinary(text), np.uint32)
        except ValueError:
            return None

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray | None]:
        """Each text's, on all cores unless the environment says that others use them."""
        cores = os.cpu_count() or 1
        alone = os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() not in ("false", "0")
        if cores == 1 or not alone or len(texts) == 1:
            return [self.encode(text) for text in texts]
        with ThreadPoolExecutor(min(cores, len(texts))) as pool:
            return list(pool.map(self.encode, texts))


def fast_bpe(content: bytes) -> FastBPE | None:
    """The same BPE for tiktoken; None where it is none, or not certainly the same."""
    try:
        vocabulary = json.loads(content)
        split = _split_of(vocabulary)
        ranks = _ranks_of(vocabulary)
        merges = _merges_of(vocabulary)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None
    if split is None or ranks is None or not _same_merges(ranks, merges):
        return None
    try:
        return FastBPE(ranks, split)
    except (ImportError, ValueError):
        return None


def _split_of(vocabulary: dict[str, Any]) -> str | None:
    """The expression that cuts text into words; None if more is done to the text than that."""
    if vocabulary.get("normalizer") is not None:
        return None
    steps = vocabulary["pre_tokenizer"]
    steps = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    *before, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if not before:
        return _GPT2_SPLIT if last.get("use_regex", True) else None
    [step] = before
    plain = step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]
    return str(step["pattern"]["Regex"]) if plain and not last.get("use_regex", True) else None


def _ranks_of(vocabulary: dict[str, Any]) -> Ranks | None:
    model = vocabulary["model"]
    other = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    if model["type"] != "BPE" or model.get("byte_fallback") or any(map(model.get, other)):
        return None
    added = {token["content"] for token in vocabulary["added_tokens"]}
    if not all(token["special"] for token in vocabulary["added_tokens"]):
        return None  # they are found in plain text
    values = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    ranks = {
        bytes(values[symbol] for symbol in token): number
        for token, number in model["vocab"].items()
        if token not in added
    }
    return ranks if all(bytes([byte]) in ranks for byte in range(256)) else None


def _merges_of(vocabulary: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    values = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    merges = []
    for merge in vocabulary["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        merges.append((bytes(values[c] for c in left), bytes(values[c] for c in right)))
    return merges


def _same_merges(ranks: Ranks, merges: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether joining by numbers joins the pairs of the list, in its order, in every text.

    It does if each longer token is made by one pair, later ones have higher numbers, and joining
    its own bytes by numbers ends with that pair. In a longer text the neighbours that together are
    a token were joined of the same bytes in the same order, as nothing reached across their ends.
    """
    numbers = [ranks.get(left + right, -1) for left, right in merges]
    if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 0):
        return False
    if len(merges) != sum(len(token) > 1 for token in ranks):
        return False
    return all(
        _is_only_split(left + right, number, ranks)
        or _joined(left + right, number, ranks) == [left, right]
        for (left, right), number in zip(merges, numbers, strict=True)
    )


def _is_only_split(token: bytes, number: int, ranks: Ranks) -> bool:
    never = number
    return (
        sum(
            ranks.get(token[:cut], never) < number and ranks.get(token[cut:], never) < number
            for cut in range(1, len(token))
        )
        == 1
    )


def _joined(token: bytes, number: int, ranks: Ranks) -> list[bytes]:
    """Its bytes, joined by tokens of lower numbers as long as any of them fits."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 1:
        pairs = [ranks.get(parts[at] + parts[at + 1], number) for at in range(len(parts) - 1)]
        lowest = min(pairs)
        if lowest >= number:
            break
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts
