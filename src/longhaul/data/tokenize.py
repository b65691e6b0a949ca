"""The second pass over a corpus: text to tokens to shards, split into train and held-out."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from longhaul.config.data import DataSection
from longhaul.core.errors import DataError
from longhaul.core.output import Say
from longhaul.core.units import short_count, short_seconds
from longhaul.data.dataset import SourceTokens, TokenStream
from longhaul.data.documents import Breakage, ExactDuplicates, is_held_out
from longhaul.data.shards import Shard, ShardWriter, dtype_for
from longhaul.data.sources import Corpus, file_stem
from longhaul.data.survey import KeptDocument, Progress, SourceSurvey, kept_documents
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
    if tokenizer.end_of_text is not None:
        tokens = tokens[tokens != tokenizer.end_of_text]
    return sum(
        len(tokenizer.decode(tokens[begin : begin + _DECODED_AT_ONCE].tolist()).encode())
        for begin in range(0, len(tokens), _DECODED_AT_ONCE)
    )


_BATCH_BYTES = 4 << 20
_BATCH_DOCUMENTS = 1024


class SourceShards:
    """Writes the shards of one source.

    Args:
        folder: where they go.
        number: place of the source in the recipe; keeps file names apart.
        name: of the source.
        tokenizer: makes the tokens.
    """

    def __init__(self, folder: Path, number: int, name: str, tokenizer: Tokenizer) -> None:
        self._folder = folder
        self._stem = f"{number:02d}-{file_stem(name)}"
        self._tokenizer = tokenizer

    def writer(self, side: str) -> ShardWriter:
        """A writer for `train`, `held-out`, or `whole` before a tail split."""
        tokenizer = self._tokenizer
        stem = f"{self._stem}-{side}"
        return ShardWriter(self._folder, stem, tokenizer.vocab_size, tokenizer.sha256)

    def closed(
        self,
        corpus: Corpus,
        survey: SourceSurvey,
        data: DataSection,
        split: str,
        train: ShardWriter,
        held_out: ShardWriter,
        whole: ShardWriter | None,
    ) -> SourceTokens:
        """The source, once everything is written; `whole` is divided between the two sides first.

        Raises:
            DataError: one side of the split is empty, or too small to be of use.
            OSError: a shard could not be written.
        """
        if whole:
            split_tail(whole.close(), data.held_out.fraction, self._tokenizer, train, held_out)
        streams = [TokenStream([Shard(p) for p in out.close()]) for out in (train, held_out)]
        source = SourceTokens(corpus.name, corpus.weight, split, streams[0], streams[1])
        _check_sides(source, survey, data)
        return source


def write_source(
    corpus: Corpus,
    survey: SourceSurvey,
    data: DataSection,
    duplicates: ExactDuplicates | None,
    tokenizer: Tokenizer,
    shards: SourceShards,
    say: Say,
) -> SourceTokens:
    """Tokenize one source, split it, and write its shards.

    Args:
        corpus: the source; read once.
        survey: what the first pass found in it.
        data: the recipe's section.
        duplicates: of this pass, shared by all sources; None keeps duplicates.
        tokenizer: makes the tokens.
        shards: where they go.
        say: is told the figures.

    Raises:
        DataError: it changed since the survey, or one side of the split is empty.
        OSError: a shard could not be written.
    """
    progress = Progress(say, f"data: tokenizing {corpus.name}")
    split = survey.split(data.held_out)
    train, held_out = shards.writer("train"), shards.writer("held-out")
    whole = shards.writer("whole") if split == "tail" else None
    # Everything broken was judged by the survey; here it is only passed over again.
    documents = kept_documents(corpus, Breakage(corpus.name, 1.0), duplicates)
    num_documents = num_bytes = 0
    for kept, tokens in _tokenized(documents, tokenizer):
        out = held_out if is_held_out(kept.digest, data.held_out.fraction) else train
        (whole or out).add(kept.document.name, tokens, kept.num_bytes)
        num_documents += 1
        num_bytes += kept.num_bytes
        progress.at(num_documents, num_bytes)
    if (num_documents, num_bytes) != (survey.num_documents, survey.num_bytes):
        raise DataError(
            f"{corpus.name}: it changed while it was prepared ({survey.num_bytes:,} bytes of text "
            f"at first, {num_bytes:,} later)",
            "start again once nothing writes to it",
        )
    source = shards.closed(corpus, survey, data, split, train, held_out, whole)
    num_tokens = source.train.num_tokens + source.held_out.num_tokens
    say(
        f"data: {corpus.name}: {short_count(num_tokens)} tokens "
        f"({num_bytes / num_tokens:.2f} bytes a token) in {short_seconds(progress.elapsed)}; "
        f"{short_count(source.held_out.num_tokens)} of them held out by {split}"
    )
    return source


def _tokenized(
    documents: Iterator[KeptDocument], tokenizer: Tokenizer
) -> Iterator[tuple[KeptDocument, TokenArray]]:
    """Documents with their tokens, end-of-text last where the tokenizer uses it."""
    ends = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    # Bytes come as uint8, which their end-of-text (256) would not fit into.
    end = np.array(ends, dtype_for(tokenizer.vocab_size))
    for batch in _batches(documents):
        encoded = tokenizer.encode_batch([kept.document.text for kept in batch])
        for kept, tokens in zip(batch, encoded, strict=True):
            yield kept, np.concatenate([tokens, end])


def _batches(documents: Iterable[KeptDocument]) -> Iterator[list[KeptDocument]]:
    """Enough text at once to keep every core of a tokenizer busy, and no more."""
    batch: list[KeptDocument] = []
    size = 0
    for kept in documents:
        batch.append(kept)
        size += kept.num_bytes
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_sides(source: SourceTokens, survey: SourceSurvey, data: DataSection) -> None:
    """Raise DataError if nothing is left on one side of the split."""
    for stream, side in ((source.train, "to train on"), (source.held_out, "held out")):
        if stream.num_tokens:
            continue
        way = "give it more text, or another data.held_out.fraction"
        if source.split == "document":
            way = 'set data.held_out.by = "tail", raise data.held_out.fraction, or give more text'
        raise DataError(
            f"{source.name}: {survey.num_documents:,} documents split by {source.split} at "
            f"data.held_out.fraction {data.held_out.fraction:g} leave nothing {side}",
            way,
        )
