"""The tokenizer of tokens whose text is not known: a number is written as its digits.

Enters: text such as "464 3290 318". Leaves: the numbers, and back; so that a run on somebody
else's tokens can still be sampled from. Its `tokenizer.json` (a WordLevel vocabulary split at
white space) is read by the `tokenizers` library with the same result.
Never knows: corpora.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from longhaul.core.errors import UsageError
from longhaul.data.tokenizing import TokenArray, Tokenizer


class NumberTokenizer(Tokenizer):
    """Token number = the number.

    Args:
        vocab_size: how many numbers there are.
        end_of_text: the last one ends a document, as in GPT-2's vocabulary.
    """

    def __init__(self, vocab_size: int, end_of_text: bool) -> None:
        self.vocab_size = vocab_size
        self.end_of_text = vocab_size - 1 if end_of_text else None

    @classmethod
    def recognise(cls, vocabulary: dict[str, Any], end_of_text: bool) -> Self | None:
        """The tokenizer of a parsed `tokenizer.json`, if it is one of this kind."""
        model = vocabulary["model"]
        if not isinstance(model, dict) or model.get("type") != "WordLevel":
            return None
        made = cls(len(model.get("vocab", {})), end_of_text)
        return made if json.loads(made.content()) == vocabulary else None

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Token numbers of each text (see `Tokenizer`)."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> TokenArray:
        for word in text.split():
            if not (word.isascii() and word.isdecimal() and int(word[:20]) < self.vocab_size):
                raise UsageError(
                    f"{word[:20]!r} is no token: this tokenizer knows the numbers 0 to "
                    f"{self.vocab_size - 1:,} and no text",
                    "write token numbers separated by spaces, or prepare the data with the "
                    'tokenizer that made it (tokenizer.kind = "file")',
                )
        return np.array([int(word) for word in text.split()], np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        """The numbers, separated by spaces (see `Tokenizer`)."""
        return " ".join(str(int(i)) for i in ids)

    def content(self) -> bytes:
        """The `tokenizer.json`."""
        whole: dict[str, Any] = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None, "decoder": None,
            "model": {
                "type": "WordLevel", "vocab": {str(i): i for i in range(self.vocab_size)},
                "unk_token": "0",
            },
        }  # fmt: skip
        return (json.dumps(whole, indent=1) + "\n").encode()
