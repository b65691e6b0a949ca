"""Tokenizers of the `tokenizers` library: a BPE vocabulary trained here, or anybody's files.

Only this file and `byte_pairs.py` import that library. GPT-2's pair of files (`vocab.bpe` and
`encoder.json`, or `merges.txt` and `vocab.json`; `encoder.py` of GPT-2) becomes the same BPE as a
`tokenizer.json`.
"""

import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from longhaul.core.errors import DataError
from longhaul.data.byte_pairs import BytePairEncoder, Unsuited
from longhaul.data.documents import batched, cut_text
from longhaul.data.tokenizing import (
    BEGINS_OF_TEXT,
    END_OF_TEXT,
    ENDS_OF_TEXT,
    SPACE_MARK,
    TokenArray,
    Tokenizer,
    Wanted,
    bpe_model,
    byte_level,
    names_of,
    tokenizer_json,
)

_WAY = "give both files of one vocabulary, as they were published"


def from_gpt2(encoder: bytes, merges: bytes, name: str) -> bytes:
    """The `tokenizer.json` of a vocabulary, JSON of token → number, and its merges, a line each
    after perhaps a line `#version`. DataError if they are no such pair, or not of each other.
    """
    vocabulary = _vocabulary(encoder, name)
    model = bpe_model(vocabulary, _merges(merges, vocabulary, name))
    splitter = byte_level(use_regex=True)
    return tokenizer_json(splitter, splitter, model)


def _vocabulary(encoder: bytes, name: str) -> dict[str, int]:
    try:
        vocabulary = json.loads(encoder)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: its vocabulary is no JSON ({error})", _WAY) from None
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise DataError(f"{name}: its vocabulary is no JSON object of tokens", _WAY)
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < len(vocabulary):
            what = f"{token!r} as number {number!r} of {len(vocabulary):,}"
            raise DataError(f"{name}: its vocabulary has {what}", _WAY)
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


_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")

# Words with at most one leading mark or space, numbers of up to three digits, runs of marks with
# the line ends after them, and white space: the split of GPT-4's vocabulary. On Python source it
# makes 3 % fewer tokens than GPT-2's (measured, 4,096 tokens).
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_TRYING = (
    "I'll WE'RE 'S\u017f caf\u00e9 e\u0301\u0300 \u00bd\u0663\u2167 12345 a1b2\r\n\n \t\v\x85\u2028"
    " \u00a0\u3000x\n  y \n\u4e2d\u6587\u3002\u0939\u093f\u0928\u094d\u0926 \u0e44\u0e17\u0e22 "
    "\U0001f9d1\u200d\ufe0f\U0001f680\U00010400 <|endoftext|>{}//--\\\x01\x7f\ufffd\U0010ffff   "
)
"""A character of every kind that regular expressions of two libraries may see differently."""

_PIECE_CHARACTERS = 1 << 20
"""A longer text is encoded in pieces cut at line ends: the library keeps a string and offsets
for every token while it works, and memory must follow the piece, not a 64 MiB document."""
_BATCH_CHARACTERS = 4 << 20


class SubwordTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, from a `tokenizer.json` of this name.

    End-of-text, if wanted, is the token of that name, or the first of the four usual ones that
    exists; begin-of-text likewise. DataError if the library cannot read the content.
    """

    def __init__(
        self, content: bytes, end_of_text: Wanted, name: str, begin_of_text: Wanted = False
    ) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            raise DataError(
                f"{name}: not a tokenizer.json ({error})",
                "give the tokenizer.json of a Hugging Face tokenizer",
            ) from None
        self._content = content
        ends = self._known(names_of(end_of_text, ENDS_OF_TEXT))
        begins = self._known(names_of(begin_of_text, BEGINS_OF_TEXT))
        self.end_of_text = self._inner.token_to_id(ends[0]) if ends else None
        self.begin_of_text = self._inner.token_to_id(begins[0]) if begins else None
        # Some files keep the settings of a batch they were once used for.
        self._inner.no_truncation()
        self._inner.no_padding()
        # A document that says "<|endoftext|>" must not end there: only tokens declared special
        # can be read as plain text, and some files do not declare theirs.
        named = dict.fromkeys([*self._known(ENDS_OF_TEXT), *ends[:1], *begins[:1]])
        self._inner.add_special_tokens([AddedToken(token, special=True) for token in named])
        self._inner.encode_special_tokens = True
        self.vocab_size = max(self._inner.get_vocab(with_added_tokens=True).values()) + 1
        self._fast: BytePairEncoder | None = None

    def _known(self, names: Iterable[str]) -> list[str]:
        return [token for token in names if self._inner.token_to_id(token) is not None]

    def name_of(self, token: int) -> str:
        """How the file calls a token."""
        return str(self._inner.id_to_token(token))

    def special_tokens(self) -> list[str]:
        """Names of tokens beside the vocabulary (see `Tokenizer`)."""
        return [token.content for token in self._inner.get_added_tokens_decoder().values()]

    def choose_encoder(self, sample: Sequence[str]) -> str:
        """Encode with tiktoken from here on, if it gives the same tokens; else why not, in words.

        A plain byte-level BPE does (`byte_pairs.py`); it is also compared on a sample of the text.
        """
        added = self._inner.get_added_tokens_decoder().values()
        fast, self._fast = self._fast, None
        try:
            fast = fast or BytePairEncoder(
                self._content, [token.content for token in added if not token.special]
            )
        except Unsuited as reason:
            return str(reason)
        texts = [_TRYING, *sample]
        for text, tokens in zip(texts, self.encode_batch(texts), strict=True):
            found = [fast.encode(piece) for piece in cut_text(text, _PIECE_CHARACTERS)]
            known = [piece for piece in found if piece is not None]
            if len(known) == len(found) and not np.array_equal(np.concatenate(known), tokens):
                return f"tiktoken encodes {text[:40]!r} otherwise"
        self._fast = fast
        return ""

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Token numbers of each text (see `Tokenizer`): by tiktoken on the calling thread, by
        `tokenizers` on all cores.
        """
        if self._fast is not None:
            return [self._encoded_fast(text) for text in texts]
        pieces = [(n, p) for n, text in enumerate(texts) for p in cut_text(text, _PIECE_CHARACTERS)]
        encoded: list[list[TokenArray]] = [[] for _ in texts]
        for batch in batched(pieces, lambda piece: len(piece[1]), _BATCH_CHARACTERS):
            found = self._inner.encode_batch_fast([p for _, p in batch], add_special_tokens=False)
            for (number, _), encoding in zip(batch, found, strict=True):
                encoded[number].append(np.array(encoding.ids, np.uint32))
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in encoded]

    def _encoded_fast(self, text: str) -> TokenArray:
        found = []
        for piece in cut_text(text, _PIECE_CHARACTERS):
            tokens = self._fast.encode(piece) if self._fast is not None else None
            if tokens is None:
                encoding = self._inner.encode_batch_fast([piece], add_special_tokens=False)[0]
                tokens = np.array(encoding.ids, np.uint32)
            found.append(tokens)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers (see `Tokenizer`)."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def token_bytes(self) -> npt.NDArray[np.int64] | None:
        """UTF-8 bytes of each token (see `Tokenizer`), if byte-level or like SentencePiece."""
        decoder = json.dumps(json.loads(self._content).get("decoder"), ensure_ascii=False)
        byte_level = '"ByteLevel"' in decoder
        if not byte_level and SPACE_MARK not in decoder:
            return None
        added = self._inner.get_added_tokens_decoder()
        sizes = np.zeros(self.vocab_size, np.int64)
        for token, number in self._inner.get_vocab(with_added_tokens=True).items():
            if number in added:
                sizes[number] = 0 if added[number].special else len(token.encode())
            elif byte_level:
                sizes[number] = len(token)  # one character stands for each byte
            elif _BYTE_PIECE.fullmatch(token):
                sizes[number] = 1
            else:
                sizes[number] = len(token.replace(SPACE_MARK, " ").encode())
        return sizes

    def content(self) -> bytes:
        """The `tokenizer.json`, byte for byte as it was given."""
        return self._content


def train_bpe(texts: Iterable[str], vocab_size: int, end_of_text: bool) -> SubwordTokenizer:
    """A byte-level BPE vocabulary (Sennrich et al., arXiv 1508.07909) learned from texts.

    The same texts give the same vocabulary. A small corpus may give fewer than `vocab_size`
    tokens; the end-of-text token, if wanted, is number 0.
    """
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT] if end_of_text else [],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return SubwordTokenizer((inner.to_str(pretty=True) + "\n").encode(), end_of_text, "bpe")
