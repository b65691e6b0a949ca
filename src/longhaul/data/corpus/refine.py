"""Large corpora, and those that are cleaned or deduplicated: sources → parts → tokens → shards.

Every stage keeps what it wrote below `home/corpus`, named after all that decides it, so that it is
made once, and a killed preparation goes on where it was.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longhaul.config.corpus import CleanSection, FilterSection
from longhaul.config.data import DataSection, DedupSection, TokenizerSection
from longhaul.core.clocks import RealClock
from longhaul.core.files import sha256_of
from longhaul.core.output import Say
from longhaul.core.units import Bytes, count, short_bytes, short_seconds
from longhaul.data.clean.cleaner import cleaner_of, filter_files
from longhaul.data.corpus.contaminated import ContaminationStage
from longhaul.data.corpus.dedup.duplicates import DedupStage
from longhaul.data.corpus.dedup.paragraphs import ParagraphStage
from longhaul.data.corpus.engine import Resources
from longhaul.data.corpus.parts import Part
from longhaul.data.corpus.reading import SourceParts, read_source
from longhaul.data.corpus.survivors import Seen, Survivors, look_at, part_id
from longhaul.data.corpus.tokens import placed, tokenize_parts
from longhaul.data.dataset import SourceTokens
from longhaul.data.documents import is_held_out
from longhaul.data.sources import Corpus, file_stem
from longhaul.data.survey import Progress, SourceSurvey, Survey, nothing_left
from longhaul.data.tokenize import OtherForm, write_shards
from longhaul.data.tokenizing import Tokenizer

_FORMAT = 2
LARGE_BYTES = 256_000_000
"""Files of a corpus from here on go through parts: below, starting workers costs more than they
bring, and one process remembers every digest in 100 bytes a document."""


def goes_in_parts(corpora: Sequence[Corpus], data: DataSection) -> bool:
    """Whether text is prepared stage by stage rather than in one process."""
    asked = data.clean != CleanSection() or data.filters != FilterSection()
    if asked or data.dedup != DedupSection() or data.contamination.action != "off":
        return True
    return sum(corpus.reader.num_bytes for corpus in corpora) >= LARGE_BYTES


class Refinery:
    """The text sources of one preparation, stage by stage."""

    def __init__(
        self,
        corpora: Sequence[Corpus],
        data: DataSection,
        other: OtherForm | None,
        seed: int,
        tokens: Path,
        resources: Resources,
        say: Say,
    ) -> None:
        """`tokens` is where the tokens of parts go; folders of other stages lie beside it."""
        self._corpora = corpora
        self._data = data
        self._other = other
        self._seed = seed
        self._tokens = tokens
        self._resources = resources
        self._say = say
        self._sources: list[SourceParts] = []
        self._survivors = Survivors()

    def deduplicated(self) -> list[Part]:
        """Read every source into parts, and find what each loses. DataError if too much of a source
        is broken.
        """
        self._read()
        parts = [part for source in self._sources for part in source.parts]
        if self._data.drop_exact_duplicates or self._data.dedup.threshold is not None:
            self._survivors = Survivors((self._duplicates(parts),))
        self._unique = self._survivors
        if self._data.dedup.paragraphs is not None:
            self._cut_paragraphs(parts, self._data.dedup.paragraphs)
        return parts

    def _read(self) -> None:
        for corpus in self._corpora:
            clock = RealClock()
            began = clock.monotonic()
            folder = self._tokens.parent / _named(corpus, self._data)
            cleaner = cleaner_of(self._data, corpus.reader.settings)
            source = read_source(corpus, folder, self._data, cleaner, self._resources, self._say)
            self._sources.append(source)
            skipped = source.summary()
            num_parts = count(len(source.parts), "part")
            self._say(
                f"data: {corpus.name}: {_documents(source.parts):,} documents, "
                f"{short_bytes(_bytes(source.parts))} of text in {num_parts} after "
                f"{short_seconds(clock.monotonic() - began)}; {skipped or 'nothing broken'}"
            )

    def survey(self, tokenizer: TokenizerSection) -> Survey:
        """What is left of each source, and what to train a tokenizer on. DataError if too much of
        one is broken, or nothing is left of it.
        """
        parts = self.deduplicated()
        if self._data.contamination.action != "off":
            self._leave_out_contaminated(parts)
        seen, sample = look_at(
            parts, self._survivors, self._data.held_out.fraction, tokenizer, self._resources
        )
        each = iter(seen)
        surveys = tuple(
            self._survey_of(source, [next(each) for _ in source.parts]) for source in self._sources
        )
        return Survey(surveys, frozenset().union(*(found.characters for found in seen)), sample)

    def _survey_of(self, source: SourceParts, seen: Sequence[Seen]) -> SourceSurvey:
        num_documents = sum(found.num_documents for found in seen)
        num_duplicates = sum(self._unique.num_lost(part) for part in source.parts)
        skipped = source.summary()
        if not num_documents:
            raise nothing_left(source.name, num_duplicates, skipped)
        num_bytes = sum(found.num_bytes for found in seen)
        num_held_out = sum(found.num_held_out for found in seen)
        return SourceSurvey(num_documents, num_bytes, num_held_out, num_duplicates, skipped)

    def _duplicates(self, parts: Sequence[Part]) -> Path:
        known = () if self._other is None else self._other.digests
        exact = self._data.drop_exact_duplicates
        stage = DedupStage(
            tuple(parts), tuple(map(part_id, parts)), self._data.dedup, exact, known,
            self._tokens.parent, self._resources, self._say,
        )  # fmt: skip
        return stage.run()

    def _cut_paragraphs(self, parts: Sequence[Part], most: int) -> None:
        dropped = next(iter(self._survivors.dropped), None)
        stage = ParagraphStage(
            tuple(parts), tuple(map(part_id, parts)), most, dropped, self._tokens.parent,
            self._resources, self._say,
        )  # fmt: skip
        self._survivors = replace(self._survivors, cut=stage.run())
        for source in self._sources:
            for part in source.parts:
                source.removed.merge(stage.removed(part_id(part)))

    def _leave_out_contaminated(self, parts: Sequence[Part]) -> None:
        stage = ContaminationStage(
            tuple(parts), self._survivors, self._data, self._seed, self._tokens, self._resources,
            self._say,
        )  # fmt: skip
        dropped = (*self._survivors.dropped, stage.run())
        self._survivors = replace(self._survivors, dropped=dropped)
        for source in self._sources:
            for part in source.parts:
                source.removed.merge(stage.removed(part))

    def left_out(self) -> dict[str, Any]:
        """What was left out or changed, by source and reason, with examples."""
        return {source.name: source.removed.as_json() for source in self._sources}

    def tokens(
        self, number: int, stem: Path, survey: SourceSurvey, tokenizer: Tokenizer
    ) -> SourceTokens:
        """Lay the tokens of source `number` into shards beside the tokenizer's file. DataError as
        from `write_shards`.
        """
        source, held_out = self._sources[number], self._data.held_out
        progress = Progress(self._say, f"data: writing {source.name}")
        stems = tokenize_parts(
            source.name, source.parts, self._tokens / f"{number:02d}",
            (stem.parent / tokenizer.file_name, tokenizer.borders),
            self._survivors, self._other is not None, self._resources, self._say,
        )  # fmt: skip
        return write_shards(
            stem, self._corpora[number], survey, survey.split(held_out),
            placed(stems, self._is_apart), self._data, tokenizer, progress,
        )  # fmt: skip

    def _is_apart(self, digest: bytes) -> bool:
        fraction = self._data.held_out.fraction
        if self._other is None:
            return is_held_out(digest, fraction)
        return self._other.is_apart(digest, fraction)


def _named(corpus: Corpus, data: DataSection) -> str:
    """A source's folder: twelve digits of its name stand for all that decides what is read."""
    source = corpus.reader.settings
    filters = data.filters if source.filtered else FilterSection()
    decisive = [
        _FORMAT, corpus.identity, source.path, source.text_field, source.adapter, source.url_field,
        data.clean.model_dump(mode="json"), filters.model_dump(mode="json"),
        [sha256_of(path) for path in filter_files(filters)],
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return f"{file_stem(corpus.name)}-{digest[:12]}"


def _documents(parts: Sequence[Part]) -> int:
    return sum(part.num_documents for part in parts)


def _bytes(parts: Sequence[Part]) -> Bytes:
    return sum(part.num_bytes for part in parts)
