"""Text to shards in one pass, where the tokenizer is there before the text has been read.

The shards are those that two passes make (`survey.py`, then `tokenize.py`). A source whose split is
`auto` goes into shards that hold all of it until it is known to be split by document.
"""

from collections.abc import Callable
from pathlib import Path

from longhaul.config.data import DataSection, HeldOutSection
from longhaul.core.output import Say
from longhaul.core.units import short_bytes, short_seconds
from longhaul.data.dataset import SourceTokens
from longhaul.data.documents import Breakage
from longhaul.data.encoding import tokenized
from longhaul.data.shards import Shard, ShardWriter
from longhaul.data.sources import Corpus
from longhaul.data.survey import (
    FEWEST_FOR_DOCUMENT_SPLIT,
    Progress,
    SourceSurvey,
    kept_documents,
    nothing_left,
)
from longhaul.data.tokenize import finished, split_tail
from longhaul.data.tokenizing import TokenArray, Tokenizer


class SplitWriter:
    """Writes a source's documents into `STEM-train` and `STEM-held-out` shards."""

    def __init__(self, stem: Path, held_out: HeldOutSection, tokenizer: Tokenizer) -> None:
        def writer(side: str) -> ShardWriter:
            name = f"{stem.name}-{side}"
            return ShardWriter(stem.parent, name, tokenizer.vocab_size, tokenizer.sha256)

        self.train, self.held_out = writer("train"), writer("held-out")
        self.num_documents = self.num_bytes = self.num_held_out = 0
        self._tokenizer = tokenizer
        self._fraction = held_out.fraction
        self._by = held_out.by
        self._whole = writer("whole")
        self._apart: list[bool] = []

    def add(self, name: str, tokens: TokenArray, num_bytes: int, apart: bool) -> None:
        """Write a document; `apart`: it is held out where documents are."""
        self.num_documents += 1
        self.num_bytes += num_bytes
        self.num_held_out += apart
        if self._by == "document":
            (self.held_out if apart else self.train).add(name, tokens, num_bytes)
            return
        self._whole.add(name, tokens, num_bytes)
        if self._by == "tail":
            return
        if len(tokens):  # the others are in no shard
            self._apart.append(apart)
        enough = self.num_documents >= FEWEST_FOR_DOCUMENT_SPLIT
        if enough and 0 < self.num_held_out < self.num_documents:
            self._by = "document"
            self._part_whole()

    def _part_whole(self) -> None:
        sides = iter(self._apart)
        for path in self._whole.close():
            for name, tokens, num_bytes in Shard(path).documents():
                (self.held_out if next(sides) else self.train).add(name, tokens, num_bytes)
            path.unlink()
        self._apart = []

    def split(self) -> str:
        """Everything was added: `document` or `tail`, as `SourceSurvey.split` says."""
        if self._by != "document":
            whole = self._whole.close()
            split_tail(whole, self._fraction, self._tokenizer, self.train, self.held_out)
        return "document" if self._by == "document" else "tail"


def write_in_one_pass(
    stem: Path,
    corpus: Corpus,
    seen: set[bytes] | None,
    is_apart: Callable[[bytes, TokenArray], bool],
    data: DataSection,
    tokenizer: Tokenizer,
    say: Say,
) -> tuple[SourceSurvey, SourceTokens]:
    """Write one source's shards, whose paths begin with `stem`; all share `seen`.

    `is_apart` tells by its digest and tokens whether a document is held out where documents are.
    DataError if too much of the source is broken, nothing is left of it, or a side is empty.
    """
    progress = Progress(say, f"data: reading and tokenizing {corpus.name}")
    breakage = Breakage(corpus.name, data.max_broken_fraction)
    out = SplitWriter(stem, data.held_out, tokenizer)
    for (document, size, digest), tokens in tokenized(
        kept_documents(corpus, breakage, seen), tokenizer, say
    ):
        out.add(document.name, tokens, size, is_apart(digest, tokens))
        progress.at(out.num_documents, out.num_bytes)
    breakage.judge()
    num_dropped, skipped = breakage.num_duplicates, breakage.summary()
    if not out.num_documents:
        raise nothing_left(corpus.name, num_dropped, skipped)
    survey = SourceSurvey(out.num_documents, out.num_bytes, out.num_held_out, num_dropped, skipped)
    dropped = f"{num_dropped:,} exact duplicates dropped; " if seen is not None else ""
    say(
        f"data: {corpus.name}: {out.num_documents:,} documents, {short_bytes(out.num_bytes)} read "
        f"in {short_seconds(progress.elapsed)}; {dropped}{skipped or 'nothing broken'}"
    )
    split = out.split()
    return survey, finished(corpus, survey, split, out.train, out.held_out, data, progress)
