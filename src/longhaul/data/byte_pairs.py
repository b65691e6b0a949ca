"""Byte-level BPE by tiktoken: the tokens of a `tokenizer.json` in a quarter of the time.

Whether a vocabulary gives the same tokens in both libraries is not tried but shown. tiktoken joins
two neighbours whenever their bytes together are a token; `tokenizers` joins the pairs on a list.
Before the last join of a token's bytes there are two pieces, and always the same two, because
joining is deterministic and nothing outside has touched those bytes. So both libraries agree on
every text if that pair of each token is on the list: if the list alone makes each token of its own
bytes. The regular expression before it is compared on a sample.
"""

import itertools
import json
import re
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tokenizers import models

from longhaul.data.tokenizing import TokenArray, byte_symbols

if TYPE_CHECKING:
    import tiktoken

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a byte-level splitter means by `use_regex` (`encoder.py` of GPT-2)."""


_UNUSED = "<|unused|>"


class Unsuited(Exception):
    """A vocabulary that only `tokenizers` encodes; the message says why."""


class BytePairEncoder:
    """Encodes with tiktoken what `tokenizers` makes of a `tokenizer.json`; Unsuited if it cannot.

    `added` are tokens that `tokenizers` finds in text before it splits it.
    """

    def __init__(self, content: bytes, added: Iterable[str]) -> None:
        whole = json.loads(content)
        self._split, self._ranks = _split(whole), _ranks(whole["model"])
        self._own = threading.local()
        try:
            self._encoding()
        except ValueError as error:
            raise Unsuited(f"tiktoken does not read its regular expression ({error})") from None
        self._sizes = np.zeros(max(self._ranks.values()) + 1, np.int64)
        self._sizes[list(self._ranks.values())] = [len(token) for token in self._ranks]
        apart = "|".join(re.escape(token) for token in sorted(added))
        self._apart = re.compile(apart) if apart else None

    def encode(self, text: str) -> TokenArray | None:
        """Token numbers of a text, or None where only `tokenizers` knows them."""
        if self._apart is not None and self._apart.search(text):
            return None
        try:
            tokens = self._encoding().encode_to_numpy(text, disallowed_special=())
        except ValueError:  # a run of a million spaces is too deep for its regular expressions
            return None
        # tiktoken leaves out what the expression does not match; `tokenizers` keeps it.
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        return tokens if int(self._sizes[tokens].sum()) == size else None

    def _encoding(self) -> "tiktoken.Encoding":
        """The calling thread's: its regular expressions are at their best for the thread that used
        them first, and take 1.4 times as long for any other (measured).
        """
        import tiktoken

        if not hasattr(self._own, "encoding"):
            self._own.encoding = tiktoken.Encoding(
                "longhaul",
                pat_str=self._split,
                mergeable_ranks=self._ranks,
                # Allowed in no text. Without any, it looks for the empty one between any two
                # characters, which takes as long as all else (measured).
                special_tokens={_UNUSED: max(self._ranks.values()) + 1},
            )
        return cast("tiktoken.Encoding", self._own.encoding)


def _split(whole: dict[str, Any]) -> str:
    """The regular expression that a text is split by."""
    if whole.get("normalizer") is not None:
        raise Unsuited("it normalizes text")
    splitter = whole.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers") if splitter.get("type") == "Sequence" else [splitter]
    *before, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        raise Unsuited("it is not byte-level, or puts a space before each text")
    if last.get("use_regex", True) and not before:
        return _GPT2_SPLIT
    if len(before) == 1 and not last.get("use_regex", True):
        (split,) = before
        pattern = split.get("pattern")
        plain = (split.get("type"), split.get("behavior"), split.get("invert"))
        if plain == ("Split", "Isolated", False) and isinstance(pattern, dict):
            found = pattern.get("Regex")
            if isinstance(found, str):
                return found
    raise Unsuited("it splits text by more than one regular expression")


def _ranks(model: dict[str, Any]) -> dict[bytes, int]:
    """Token number by bytes, of all that merging makes; the numbers rise as the merges follow."""
    plain = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type") != "BPE" or any(model.get(setting) for setting in plain):
        raise Unsuited("it is no plain BPE")
    vocabulary: dict[str, int] = model["vocab"]
    symbols = byte_symbols()
    if not set(symbols) <= vocabulary.keys():
        raise Unsuited("it has no token for some bytes")
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    made = ["".join(pair) for pair in merges]
    numbers = [vocabulary[token] for token in made]
    if any(a > b for a, b in itertools.pairwise(numbers)):
        raise Unsuited("its merges are not in the order of its tokens")
    reachable = {token: vocabulary[token] for token in (*symbols, *made)}
    whole_words = bool(model.get("ignore_merges"))
    if whole_words and len(reachable) < len(vocabulary):
        raise Unsuited("it takes whole words for tokens that no merge makes")
    _check_each(vocabulary, merges, reachable, whole_words)
    values = {symbol: byte for byte, symbol in enumerate(symbols)}
    return {bytes(map(values.__getitem__, token)): n for token, n in reachable.items()}


def _check_each(
    vocabulary: dict[str, int],
    merges: list[list[str]],
    tokens: Iterable[str],
    whole_words: bool,
) -> None:
    """Unsuited unless the list of merges makes each token of its own bytes.

    Where whole words are looked up first, a token may also stay in three pieces or more: then
    neither library makes it by merging.
    """
    bare = models.BPE(vocabulary, [(a, b) for a, b in merges])
    for token in tokens:
        pieces = len(bare.tokenize(token))
        if pieces == 2 or (pieces > 2 and not whole_words):
            raise Unsuited(f"its merges do not make its token {token!r}")
