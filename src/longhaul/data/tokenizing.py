"""Tokenizers: text to token numbers and back, whatever made the vocabulary.

Those that need no training, a token a character or a byte, are looked up in a table, some 25 times
faster than the `tokenizers` library reads the `tokenizer.json` that they are written as.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import UsageError
from longhaul.data.documents import cut_text

TokenArray: TypeAlias = npt.NDArray[np.integer[Any]]

END_OF_TEXT = "<|endoftext|>"
"""How end-of-text is called in vocabularies made here. Text that contains these characters is
text: no tokenizer here ever parses a special token out of a document (or a prompt)."""
ENDS_OF_TEXT = (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>")
"""How it is called in others' vocabularies; the first that is there is taken."""
BEGINS_OF_TEXT = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
"""How the token before a document is called; the first that is there is taken."""
Wanted: TypeAlias = bool | str
"""Of a token at a document's begin or end: none, the usual one, or that of a name."""
SPACE_MARK = "\u2581"
"""What stands for a space in the pieces of SentencePiece."""


def names_of(wanted: Wanted, usual: tuple[str, ...]) -> tuple[str, ...]:
    """What a wanted token may be called."""
    if isinstance(wanted, str):
        return (wanted,)
    return usual if wanted else ()


class Tokenizer(ABC):
    """What every tokenizer can do."""

    file_name = "tokenizer.json"
    """What its file is called in a prepared folder."""
    vocab_size: int
    """One more than the largest token number."""
    end_of_text: int | None
    """The token that ends a document; None if there is none, or it is not to be used."""
    begin_of_text: int | None = None
    """The token before a document, likewise."""
    knows_text = True
    """Tokens stand for text; else they are numbers whose tokenizer is not at hand."""

    def encode(self, text: str) -> TokenArray:
        """Token numbers of a text, without end-of-text; UsageError if they cannot express it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Token numbers of each text, as by `encode`: a tokenizer defines one of the two."""
        return [self.encode(text) for text in texts]

    @property
    def borders(self) -> tuple[Wanted, Wanted]:
        """End-of-text and begin-of-text, to load the tokenizer again with."""
        end, begin = (
            False if token is None else self.name_of(token)
            for token in (self.end_of_text, self.begin_of_text)
        )
        return end, begin

    def without_borders(self, tokens: TokenArray) -> TokenArray:
        """Tokens but those at a document's begin and end."""
        for token in (self.begin_of_text, self.end_of_text):
            if token is not None:
                tokens = tokens[tokens != token]
        return tokens

    def name_of(self, token: int) -> str:
        """How its file calls a token at a document's begin or end."""
        return self.decode([token])

    def special_tokens(self) -> list[str]:
        """Names of tokens that no text becomes, as far as its file has such."""
        return []

    def choose_encoder(self, sample: Sequence[str]) -> str:
        """Encode faster from here on, if a way that gives the same tokens for this sample of text
        is known; else, where one was looked for, why there is none.
        """
        return ""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers; a byte sequence that is no UTF-8 becomes U+FFFD."""

    def token_bytes(self) -> npt.NDArray[np.int64] | None:
        """UTF-8 bytes of each token's text, special ones 0; None if that does not follow."""
        return None

    @abstractmethod
    def content(self) -> bytes:
        """The file; the same vocabulary always gives the same bytes."""

    @property
    def sha256(self) -> str:
        """Hash of `content()`: the tokenizer's identity, kept in every shard made with it."""
        return hashlib.sha256(self.content()).hexdigest()


_CODE_POINTS = 0x110000
_PIECE_CHARACTERS = 1 << 20
_UNKNOWN = "\ufffd"


class CharacterTokenizer(Tokenizer):
    """A token for each character of a corpus, by code points; end-of-text, if wanted, the last."""

    def __init__(self, characters: Iterable[str], end_of_text: bool) -> None:
        self.characters = "".join(sorted(set(characters)))
        count = len(self.characters)
        self.end_of_text = count if end_of_text else None
        self.vocab_size = count + end_of_text
        codes = np.frombuffer(self.characters.encode("utf-32-le"), np.uint32)
        self._table: npt.NDArray[np.int32] = np.full(_CODE_POINTS, -1, np.int32)
        self._table[codes] = np.arange(count, dtype=np.int32)

    def encode(self, text: str) -> TokenArray:
        """Token numbers of one text (see `Tokenizer`)."""
        # In pieces, because UTF-32 takes four times the memory of most texts.
        pieces = cut_text(text, _PIECE_CHARACTERS)
        codes = (np.frombuffer(p.encode("utf-32-le", "surrogatepass"), np.uint32) for p in pieces)
        ids = np.concatenate([self._table[piece] for piece in codes])
        if len(ids) and ids.min() < 0:
            unknown = text[int(np.argmax(ids < 0))]
            raise UsageError(
                f"the tokenizer has no character {unknown!r} (U+{ord(unknown):04X}); it knows the "
                f"{len(self.characters)} characters that occur in its corpus",
                "leave it out, or use tokenizer.kind bytes or bpe, which know every text",
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers (see `Tokenizer`); numbers without a character are U+FFFD."""
        symbols = [*self.characters, END_OF_TEXT][: self.vocab_size]
        return "".join(symbols[i] if 0 <= i < len(symbols) else _UNKNOWN for i in ids)

    def token_bytes(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes of each token (see `Tokenizer`)."""
        sizes = [len(character.encode("utf-8", "surrogatepass")) for character in self.characters]
        return np.array(sizes + [0] * (self.vocab_size - len(sizes)), np.int64)

    def content(self) -> bytes:
        """The `tokenizer.json`."""
        end = self.vocab_size > len(self.characters)
        return _table_json(self.characters, end, None, {"type": "Fuse"})


class ByteTokenizer(Tokenizer):
    """One token for each of the 256 bytes of UTF-8; token number = byte, 256 = end-of-text."""

    def __init__(self, end_of_text: bool) -> None:
        self.end_of_text = 256 if end_of_text else None
        self.vocab_size = 256 + end_of_text

    def encode(self, text: str) -> TokenArray:
        """Token numbers of one text (see `Tokenizer`)."""
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers (see `Tokenizer`)."""
        end = END_OF_TEXT.encode() if self.vocab_size > 256 else _UNKNOWN.encode()
        pieces = [bytes([i]) if i < 256 else end if i == 256 else _UNKNOWN.encode() for i in ids]
        return b"".join(pieces).decode(errors="replace")

    def token_bytes(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes of each token (see `Tokenizer`)."""
        return (np.arange(self.vocab_size) < 256).astype(np.int64)

    def content(self) -> bytes:
        """The `tokenizer.json`."""
        splitter = byte_level(use_regex=False)
        return _table_json(byte_symbols(), self.vocab_size > 256, splitter, splitter)


def byte_symbols() -> str:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(
        chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)
    )


def byte_level(use_regex: bool) -> dict[str, Any]:
    """A splitter, and the decoder, of byte-level vocabularies (GPT-2)."""
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": use_regex,
    }  # fmt: skip


def bpe_model(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    """A model of merges in their order."""
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocabulary, "merges": merges,
    }  # fmt: skip


def tokenizer_json(
    splitter: dict[str, Any] | None, decoder: dict[str, Any] | None, model: dict[str, Any]
) -> bytes:
    """The whole file, always the same bytes. End-of-text is special if the vocabulary has it."""
    end_of_text = {
        "id": model["vocab"].get(END_OF_TEXT), "content": END_OF_TEXT, "single_word": False,
        "lstrip": False, "rstrip": False, "normalized": False, "special": True,
    }  # fmt: skip
    special = [end_of_text] if END_OF_TEXT in model["vocab"] else []
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "pre_tokenizer": splitter, "post_processor": None,
        "decoder": decoder, "model": model,
    }  # fmt: skip
    return (json.dumps(whole, ensure_ascii=False, indent=1) + "\n").encode()


def _table_json(
    symbols: str, end_of_text: bool, splitter: dict[str, Any] | None, decoder: dict[str, Any]
) -> bytes:
    """The file of a vocabulary of single characters, which nothing is merged of."""
    tokens = [*symbols, END_OF_TEXT] if end_of_text else symbols
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return tokenizer_json(splitter, decoder, bpe_model(vocabulary, []))


class NumberTokenizer(Tokenizer):
    """Token number = the number; the last one may end a document, as in GPT-2's vocabulary."""

    knows_text = False

    def __init__(self, vocab_size: int, end_of_text: bool) -> None:
        self.vocab_size = vocab_size
        self.end_of_text = vocab_size - 1 if end_of_text else None

    def encode(self, text: str) -> TokenArray:
        """Token numbers of one text (see `Tokenizer`)."""
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
        numbers = {str(number): number for number in range(self.vocab_size)}
        model = {"type": "WordLevel", "vocab": numbers, "unk_token": "0"}
        return tokenizer_json({"type": "WhitespaceSplit"}, None, model)


def recognised(vocabulary: dict[str, Any], end_of_text: bool) -> Tokenizer | None:
    """The tokenizer of this file that writes exactly this `tokenizer.json`; None if none does."""
    model = vocabulary["model"]
    known = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(known, dict):
        return None
    made: list[Tokenizer] = []
    if model.get("type") == "WordLevel":
        made = [NumberTokenizer(len(known), end_of_text)]
    elif all(len(token) == 1 or token == END_OF_TEXT for token in known):
        characters, has_end = known.keys() - {END_OF_TEXT}, END_OF_TEXT in known
        made = [CharacterTokenizer(characters, has_end), ByteTokenizer(has_end)]
    for tokenizer in made:
        if json.loads(tokenizer.content()) == vocabulary:
            tokenizer.end_of_text = tokenizer.end_of_text if end_of_text else None
            return tokenizer
    return None
