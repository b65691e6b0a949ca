"""Tokenizers: text to token numbers and back, whatever made the vocabulary.

Enters: text. Leaves: arrays of token numbers, and one `tokenizer.json` in the format that
everyone reads. Never knows: corpora, shards, where the text came from.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.core.files import write_bytes
from longhaul.core.strict import parse_json, read_bytes
from longhaul.core.units import Bytes

_MOST_TOKENIZER_BYTES: Bytes = 256 << 20
TokenArray: TypeAlias = npt.NDArray[np.integer[Any]]

END_OF_TEXT = "<|endoftext|>"
"""How end-of-text is called in vocabularies made here. Text that contains these characters is
text: no tokenizer here ever parses a special token out of a document (or a prompt)."""


class Tokenizer(ABC):
    """What every tokenizer can do.

    Attributes:
        vocab_size: one more than the largest token number.
        end_of_text: the token that ends a document; None if the vocabulary has none, or if it
            is not to be used.
    """

    vocab_size: int
    end_of_text: int | None

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Token numbers of each text, without end-of-text.

        Raises:
            UsageError: a text holds something the vocabulary cannot express.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers; a byte sequence that is no UTF-8 becomes U+FFFD."""

    def token_bytes(self) -> npt.NDArray[np.int64] | None:
        """UTF-8 bytes of text that each token number stands for (special tokens for none).

        None where that does not follow from the vocabulary.
        """
        return None

    @abstractmethod
    def content(self) -> bytes:
        """The `tokenizer.json`; the same vocabulary always gives the same bytes."""

    def encode(self, text: str) -> TokenArray:
        """Token numbers of one text, without end-of-text."""
        return self.encode_batch([text])[0]

    @property
    def sha256(self) -> str:
        """Hash of `content()`: the tokenizer's identity, kept in every shard made with it."""
        return hashlib.sha256(self.content()).hexdigest()

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`, atomically."""
        write_bytes(path, self.content())


def load_tokenizer(path: Path, end_of_text: bool = True) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, made here or by anybody else.

    Args:
        path: the file.
        end_of_text: use its end-of-text token, if it has one.

    Raises:
        DataError: it is missing or no `tokenizer.json`.
    """
    from longhaul.data.alphabets import ByteTokenizer, CharacterTokenizer
    from longhaul.data.number_tokens import NumberTokenizer

    try:
        content = read_bytes(path, _MOST_TOKENIZER_BYTES)
        vocabulary = parse_json(content, path.name)
        if not isinstance(vocabulary, dict) or "model" not in vocabulary:
            raise ValueError("it has no 'model'")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: not a tokenizer.json ({error})",
            "give the tokenizer.json of a Hugging Face tokenizer",
        ) from None
    for kind in (NumberTokenizer, CharacterTokenizer, ByteTokenizer):
        if (known := kind.recognise(vocabulary, end_of_text)) is not None:
            return known
    from longhaul.data.subwords import SubwordTokenizer

    return SubwordTokenizer(content, end_of_text, str(path))
