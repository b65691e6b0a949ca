"""Sources that are tokens already: checked against a tokenizer, cut into documents, copied.

Documents are those of a Megatron index; elsewhere each end-of-text token ends one. Where a script
writes it before each document instead (llm.c), the one at the very beginning goes with the first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longhaul.config.data import DataSection
from longhaul.core.errors import DataError
from longhaul.core.output import Say
from longhaul.core.units import short_bytes
from longhaul.data.dataset import SourceTokens
from longhaul.data.documents import is_held_out, text_digest
from longhaul.data.sources import Corpus
from longhaul.data.survey import Progress, SourceSurvey
from longhaul.data.token_files import MAX_PIECE_TOKENS, TokenFile, open_token_file
from longhaul.data.tokenize import Placed, write_shards, written
from longhaul.data.tokenizing import TokenArray, Tokenizer

_VALIDATION = re.compile(r"(^|[^a-z])(val|valid|validation)([^a-z]|$)")


@dataclass(frozen=True, slots=True)
class TokenDocument:
    """One document, or a piece of one that is too long to be held at once."""

    name: str
    tokens: TokenArray
    from_validation_file: bool


def write_tokens(
    stem: Path, corpus: Corpus, data: DataSection, tokenizer: Tokenizer, say: Say
) -> tuple[SourceSurvey, SourceTokens]:
    """Copy one source of tokens into shards; the files are read twice, the first time to check.

    Raises:
        DataError: a file is not what it should be, has a token beyond the vocabulary, or as
            `write_shards`.
    """
    progress = Progress(say, f"data: copying {corpus.name}")
    table = tokenizer.token_bytes()
    survey, given = _survey(corpus, data, tokenizer, table, progress)
    split = "file" if given and data.held_out.by == "auto" else survey.split(data.held_out)

    def documents() -> Iterator[Placed]:
        for document in token_documents(corpus, tokenizer):
            held_out = document.from_validation_file
            if split != "file":
                held_out = _by_content(document, data.held_out.fraction)
            yield document.name, document.tokens, _text_size(table, document.tokens), held_out

    source = write_shards(stem, corpus, survey, split, documents(), data, tokenizer)
    size = f"{short_bytes(survey.num_bytes)} of text" if survey.num_bytes else "text not known"
    how = f"copied as they are ({survey.num_documents:,} documents, {size})"
    say(written(source, how, progress))
    return survey, source


def _survey(
    corpus: Corpus,
    data: DataSection,
    tokenizer: Tokenizer,
    table: npt.NDArray[np.int64] | None,
    progress: Progress,
) -> tuple[SourceSurvey, bool]:
    """What is there, and whether files for validation are among others."""
    num_documents = num_bytes = num_held_out = num_given = num_tokens = 0
    for document in token_documents(corpus, tokenizer):
        num_documents += 1
        num_tokens += len(document.tokens)
        num_bytes += _text_size(table, document.tokens)
        num_held_out += _by_content(document, data.held_out.fraction)
        num_given += document.from_validation_file
        progress.at(num_documents, num_tokens * 2)
    if not num_tokens:
        raise DataError(f"{corpus.name}: no token in it", "give it tokens, or leave it out")
    survey = SourceSurvey(num_documents, num_bytes, num_held_out, 0, "")
    return survey, 0 < num_given < num_documents


def _by_content(document: TokenDocument, fraction: float) -> bool:
    # By 32-bit numbers, so that a file's type of tokens has no say in it.
    return is_held_out(text_digest(document.tokens.astype("<u4").tobytes()), fraction)


def _text_size(table: npt.NDArray[np.int64] | None, tokens: TokenArray) -> int:
    return 0 if table is None else int(table[tokens].sum())


def token_documents(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[TokenDocument]:
    """The documents of every file, in order; at most some 2 million tokens are held at once.

    Raises:
        DataError: a file is not what it should be, or a token is beyond the vocabulary.
    """
    for found in corpus.token_files:
        file = open_token_file(found)
        validation = _VALIDATION.search(found.name.lower()) is not None
        cut = _by_index if file.index is not None else _by_end_of_text
        for name, tokens in cut(file, tokenizer):
            yield TokenDocument(name, tokens, validation)


def _by_index(file: TokenFile, tokenizer: Tokenizer) -> Iterator[tuple[str, TokenArray]]:
    """Each piece is a document, or the next part of one: pieces never hold parts of two."""
    for number, (position, tokens) in enumerate(file.pieces(), 1):
        _check(file, position, tokens, tokenizer)
        yield f"{file.name}:{number}", tokens


def _by_end_of_text(file: TokenFile, tokenizer: Tokenizer) -> Iterator[tuple[str, TokenArray]]:
    end_of_text = tokenizer.end_of_text
    carried: list[TokenArray] = []
    number = 1
    for position, tokens in file.pieces():
        _check(file, position, tokens, tokenizer)
        begin = 0
        ends = [] if end_of_text is None else (np.flatnonzero(tokens == end_of_text) + 1).tolist()
        for end in ends:
            document = np.concatenate([*carried, tokens[begin:end]])
            begin = end
            if len(document) == 1:
                # Nothing but the sign before the first document; it goes with that one.
                carried = [document]
                continue
            yield f"{file.name}:{number}", document
            carried, number = [], number + 1
        carried.append(tokens[begin:])
        if sum(map(len, carried)) >= MAX_PIECE_TOKENS:
            yield f"{file.name}:{number}", np.concatenate(carried)
            carried, number = [], number + 1
    if sum(map(len, carried)):
        yield f"{file.name}:{number}", np.concatenate(carried)


def _check(file: TokenFile, position: int, tokens: TokenArray, tokenizer: Tokenizer) -> None:
    largest = tokenizer.vocab_size
    if int(tokens.max()) < largest and int(tokens.min()) >= 0:
        return
    at = int(np.argmax((tokens >= largest) | (tokens < 0)))
    raise DataError(
        f"{file.path}: token {tokens[at]:,} at position {position + at:,} is beyond the "
        f"tokenizer's vocabulary of {largest:,}",
        "give the tokenizer that made these tokens, or check data.sources.format",
    )
