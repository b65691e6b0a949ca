"""The second pass over a corpus: its tokens, made here or elsewhere, into shards by split.

Tokens made elsewhere are checked against the tokenizer and copied. Documents are those of a
Megatron index; elsewhere each end-of-text token ends one, but for llm.c's at the very beginning.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.config.data import DataSection, TokenizerSection
from longhaul.core.errors import DataError
from longhaul.core.output import Say
from longhaul.core.units import short_bytes, short_count, short_seconds
from longhaul.data.dataset import SourceTokens, TokenStream
from longhaul.data.documents import Breakage, is_held_out, text_digest
from longhaul.data.encoding import tokenized
from longhaul.data.shards import Shard, ShardWriter
from longhaul.data.sources import Corpus
from longhaul.data.survey import (
    Progress,
    SourceSurvey,
    Survey,
    kept_documents,
    take_survey,
)
from longhaul.data.token_files import MAX_PIECE_TOKENS, TokenFile, open_token_file
from longhaul.data.tokenizing import TokenArray, Tokenizer

_DECODED_AT_ONCE = 1 << 16


def split_tail(
    whole: Sequence[Path],
    fraction: float,
    tokenizer: Tokenizer,
    train: ShardWriter,
    held_out: ShardWriter,
) -> None:
    """Move the first int(n · (1 - fraction)) of n tokens to `train`, the rest to `held_out`.

    Shards are removed as soon as they are copied, so that neither disk nor memory holds it all.
    This is nanoGPT's split: 1,003,854 and 111,540 characters of tiny Shakespeare at 0.1.
    """
    cut = int(sum(Shard(path).num_tokens for path in whole) * (1 - fraction))
    begin = 0
    for path in whole:
        for name, tokens, num_bytes in Shard(path).documents():
            before = min(max(cut - begin, 0), len(tokens))
            tail_bytes = num_bytes
            if 0 < before < len(tokens):
                tail_bytes = min(num_bytes, text_bytes(tokenizer, tokens[before:]))
            elif before:
                tail_bytes = 0
            train.add(name, tokens[:before], num_bytes - tail_bytes)
            held_out.add(name, tokens[before:], tail_bytes)
            begin += len(tokens)
        path.unlink()


def text_bytes(tokenizer: Tokenizer, tokens: TokenArray) -> int:
    """UTF-8 bytes of the text that tokens stand for.

    A character whose bytes are torn apart, at the cut or between two chunks, counts as the three
    bytes of U+FFFD instead of its share: a few bytes in 65,536 tokens.
    """
    tokens = tokenizer.without_borders(tokens)
    return sum(
        len(tokenizer.decode(tokens[begin : begin + _DECODED_AT_ONCE].tolist()).encode())
        for begin in range(0, len(tokens), _DECODED_AT_ONCE)
    )


Placed: TypeAlias = tuple[str, TokenArray, int, bool]
"""A document's name, tokens and UTF-8 bytes, and whether it is held out where documents are."""


def write_shards(
    stem: Path,
    corpus: Corpus,
    survey: SourceSurvey,
    split: str,
    documents: Iterable[Placed],
    data: DataSection,
    tokenizer: Tokenizer,
    progress: Progress,
) -> SourceTokens:
    """Write one source's documents into shards whose paths begin with `stem`, split them, and say
    so. DataError if it changed since the survey, or one side of the split is empty.
    """

    def writer(side: str) -> ShardWriter:
        name = f"{stem.name}-{side}"
        return ShardWriter(stem.parent, name, tokenizer.vocab_size, tokenizer.sha256)

    train, held_out = writer("train"), writer("held-out")
    whole = writer("whole") if split == "tail" else None
    num_documents = num_bytes = 0
    for name, tokens, size, apart in documents:
        (whole or (held_out if apart else train)).add(name, tokens, size)
        num_documents += 1
        num_bytes += size
    if (num_documents, num_bytes) != (survey.num_documents, survey.num_bytes):
        raise DataError(
            f"{corpus.name}: it changed while it was prepared ({survey.num_documents:,} documents "
            f"and {survey.num_bytes:,} bytes of text at first, {num_documents:,} and "
            f"{num_bytes:,} later)",
            "start again once nothing writes to it",
        )
    if whole:
        split_tail(whole.close(), data.held_out.fraction, tokenizer, train, held_out)
    return finished(corpus, survey, split, train, held_out, data, progress)


def finished(
    corpus: Corpus,
    survey: SourceSurvey,
    split: str,
    train: ShardWriter,
    held_out: ShardWriter,
    data: DataSection,
    progress: Progress,
) -> SourceTokens:
    """Close a source's shards and say what they hold; DataError if one side is empty."""
    streams = [TokenStream([Shard(path) for path in out.close()]) for out in (train, held_out)]
    source = SourceTokens(corpus.name, corpus.weight, split, streams[0], streams[1])
    way = "give it more text, or another data.held_out.fraction"
    if split == "document":
        way = 'set data.held_out.by = "tail", raise data.held_out.fraction, or give more text'
    for stream, side in ((source.train, "to train on"), (source.held_out, "held out")):
        if not stream.num_tokens:
            raise DataError(
                f"{source.name}: {survey.num_documents:,} documents split by {split} at "
                f"data.held_out.fraction {data.held_out.fraction:g} leave nothing {side}",
                way,
            )
    num_tokens = source.train.num_tokens + source.held_out.num_tokens
    how = f"({survey.num_bytes / num_tokens:.2f} bytes a token)"
    if corpus.token_files:
        text = f"{short_bytes(survey.num_bytes)} of text" if survey.num_bytes else "text not known"
        how = f"copied as they are ({survey.num_documents:,} documents, {text})"
    progress.say(
        f"data: {source.name}: {short_count(num_tokens)} tokens {how} in "
        f"{short_seconds(progress.elapsed)}; {short_count(source.held_out.num_tokens)} of them "
        f"held out by {split}"
    )
    return source


@dataclass(frozen=True, slots=True)
class TokenSurvey:
    """One source of tokens, read through once."""

    survey: SourceSurvey
    by_text: bool
    """Whether other sources are text, which may hold the same documents."""
    digests: frozenset[bytes]
    """Of its documents' text, if other sources are text."""
    for_validation: frozenset[bytes]
    """Of those in files for validation, if the recipe leaves it to them and some are not."""


@dataclass(frozen=True, slots=True)
class OtherForm:
    """What one source has to know of those that are tokens.

    A document lies on one side of the split in whatever form it comes: its side is that of the
    text which its tokens stand for, as some tokenizers do not give back all of it.
    """

    digests: frozenset[bytes]
    for_validation: frozenset[bytes]

    @classmethod
    def of(cls, surveys: Iterable[TokenSurvey]) -> "OtherForm":
        """All of them together."""
        every = list(surveys)
        return cls(
            frozenset[bytes]().union(*(each.digests for each in every)),
            frozenset[bytes]().union(*(each.for_validation for each in every)),
        )

    def is_apart(self, digest: bytes, fraction: float) -> bool:
        """Whether a document is for validation."""
        return digest in self.for_validation or is_held_out(digest, fraction)


def write_tokens(
    stem: Path,
    corpus: Corpus,
    surveyed: TokenSurvey,
    other: OtherForm,
    data: DataSection,
    tokenizer: Tokenizer,
    say: Say,
) -> SourceTokens:
    """Copy one source of tokens into shards. DataError as from `write_shards`."""
    progress = Progress(say, f"data: copying {corpus.name}")
    table, by_file = tokenizer.token_bytes(), bool(surveyed.for_validation)
    split = "file" if by_file else surveyed.survey.split(data.held_out)

    def documents() -> Iterator[Placed]:
        for name, tokens, _ in _token_documents(corpus, tokenizer):
            digest = _digest(tokens, tokenizer, surveyed.by_text)
            apart = other.is_apart(digest, 0.0 if by_file else data.held_out.fraction)
            yield name, tokens, _text_size(table, tokens), apart

    return write_shards(
        stem, corpus, surveyed.survey, split, documents(), data, tokenizer, progress
    )


def survey_tokens(
    corpus: Corpus, data: DataSection, tokenizer: Tokenizer, by_text: bool, say: Say
) -> TokenSurvey:
    """Read one source of tokens, and check it: DataError if they are not what they should be.

    `by_text`: other sources are text. Then 100 bytes of memory a document.
    """
    progress = Progress(say, f"data: reading {corpus.name}")
    table = tokenizer.token_bytes()
    num_documents = num_bytes = num_held_out = num_given = num_tokens = 0
    digests, given = set(), set()
    for _, tokens, is_given in _token_documents(corpus, tokenizer):
        digest = _digest(tokens, tokenizer, by_text)
        if by_text:
            digests.add(digest)
        num_documents += 1
        num_tokens += len(tokens)
        num_bytes += _text_size(table, tokens)
        num_held_out += is_held_out(digest, data.held_out.fraction)
        num_given += is_given
        if is_given:
            given.add(digest)
        progress.at(num_documents, num_tokens * 2)
    if not num_tokens:
        raise DataError(f"{corpus.name}: no token in it", "give it tokens, or leave it out")
    survey = SourceSurvey(num_documents, num_bytes, num_held_out, 0, "")
    by_file = data.held_out.by == "auto" and 0 < num_given < num_documents
    for_validation = frozenset(given if by_file else ())
    return TokenSurvey(survey, by_text, frozenset(digests), for_validation)


def _digest(tokens: TokenArray, tokenizer: Tokenizer, by_text: bool) -> bytes:
    if by_text:
        return text_digest_of(tokens, tokenizer)
    # By 32-bit numbers, so that a file's type of tokens does not count.
    return text_digest(tokens.astype("<u4").tobytes())


def text_digest_of(tokens: TokenArray, tokenizer: Tokenizer) -> bytes:
    """Digest of the text that a document's tokens stand for."""
    tokens = tokenizer.without_borders(tokens)
    return text_digest(tokenizer.decode(tokens.tolist()).encode(errors="surrogatepass"))


class TextInOneProcess:
    """Text sources that are read twice by one process: to know them, and to make their tokens; or
    once (`one_pass.py`), with the same `seen` and `is_apart`.
    """

    def __init__(
        self, corpora: tuple[Corpus, ...], data: DataSection, other: OtherForm | None, say: Say
    ) -> None:
        self._corpora = corpora
        self._data = data
        self._other = other
        self._say = say
        self._known = frozenset[bytes]() if other is None else other.digests
        self.seen = set(self._known) if data.drop_exact_duplicates else None

    def survey(self, tokenizer: TokenizerSection) -> Survey:
        """The first pass. DataError if too much of a source is broken, or nothing is left of it."""
        return take_survey(self._corpora, self._data, tokenizer, self._say, self._known)

    def tokens(
        self, number: int, stem: Path, survey: SourceSurvey, tokenizer: Tokenizer
    ) -> SourceTokens:
        """Tokenize source `number`, after those before it. DataError as from `write_shards`."""
        corpus = self._corpora[number]
        progress = Progress(self._say, f"data: tokenizing {corpus.name}")
        # Everything broken was judged by the survey; here it is only passed over again.
        kept = kept_documents(corpus, Breakage(corpus.name, 1.0), self.seen)

        def documents() -> Iterator[Placed]:
            num_bytes = 0
            for number, (each, tokens) in enumerate(tokenized(kept, tokenizer, self._say), 1):
                document, size, digest = each
                yield document.name, tokens, size, self.is_apart(digest, tokens, tokenizer)
                num_bytes += size
                progress.at(number, num_bytes)

        split = survey.split(self._data.held_out)
        return write_shards(
            stem, corpus, survey, split, documents(), self._data, tokenizer, progress
        )

    def is_apart(self, digest: bytes, tokens: TokenArray, tokenizer: Tokenizer) -> bool:
        """Whether a document is held out where documents are."""
        fraction = self._data.held_out.fraction
        if self._other is None:
            return is_held_out(digest, fraction)
        return self._other.is_apart(text_digest_of(tokens, tokenizer), fraction)


_VALIDATION = re.compile(r"(^|[^a-z])(val|valid|validation)([^a-z]|$)")


def _text_size(table: npt.NDArray[np.int64] | None, tokens: TokenArray) -> int:
    return 0 if table is None else int(table[tokens].sum())


def _token_documents(
    corpus: Corpus, tokenizer: Tokenizer
) -> Iterator[tuple[str, TokenArray, bool]]:
    """Name and tokens of documents, or pieces of them, and whether their file is for validation."""
    for found in corpus.token_files:
        file = open_token_file(found)
        is_given = _VALIDATION.search(found.name.lower()) is not None
        documents = _checked_pieces(file, tokenizer.vocab_size)
        if file.index is None:  # else a piece is a document, or the next part of one
            documents = _by_end_of_text(documents, tokenizer.end_of_text)
        for number, tokens in enumerate(documents, 1):
            yield f"{file.name}:{number}", tokens, is_given


def _by_end_of_text(pieces: Iterator[TokenArray], end_of_text: int | None) -> Iterator[TokenArray]:
    carried: list[TokenArray] = []
    for tokens in pieces:
        begin = 0
        ends = [] if end_of_text is None else (np.flatnonzero(tokens == end_of_text) + 1).tolist()
        for end in ends:
            document = np.concatenate([*carried, tokens[begin:end]])
            begin = end
            if len(document) == 1:
                # Nothing but the sign before the first document; it goes with that one.
                carried = [document]
                continue
            yield document
            carried = []
        carried.append(tokens[begin:])
        if sum(map(len, carried)) >= MAX_PIECE_TOKENS:
            yield np.concatenate(carried)
            carried = []
    if sum(map(len, carried)):
        yield np.concatenate(carried)


def _checked_pieces(file: TokenFile, vocab_size: int) -> Iterator[TokenArray]:
    for position, tokens in file.pieces():
        if int(tokens.max()) >= vocab_size or int(tokens.min()) < 0:
            at = int(np.argmax((tokens >= vocab_size) | (tokens < 0)))
            raise DataError(
                f"{file.path}: token {tokens[at]:,} at position {position + at:,} is beyond the "
                f"tokenizer's vocabulary of {vocab_size:,}",
                "give the tokenizer that made these tokens, or check data.sources.format",
            )
        yield tokens
