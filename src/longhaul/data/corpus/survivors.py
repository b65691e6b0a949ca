"""What is left of parts once duplicates are out: counted, and sampled for a tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longhaul.config.data import TokenizerSection
from longhaul.core.units import Bytes
from longhaul.data.corpus.dedup.paragraphs import cuts_of, without
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import Part, held_out_rows, part_digests, part_texts, text_sizes
from longhaul.data.documents import is_held_out, text_digest
from longhaul.data.survey import TextSample, sample_pieces

_SLACK = 1.2
"""Share of text taken beyond what a sample needs on average."""


@dataclass(frozen=True, slots=True)
class Survivors:
    """Tells which documents of a part are trained on; sent to workers."""

    dropped: tuple[Path, ...] = ()
    """Folders with the rows that each part loses."""
    cut: Path | None = None
    """Folder with what is cut from texts (`paragraphs`)."""

    def texts(self, part: Part) -> Iterator[tuple[str, str, bytes]]:
        """Name, text and digest of each, in order."""
        return (found for _, found in self.rows(part))

    def rows(self, part: Part) -> Iterator[tuple[int, tuple[str, str, bytes]]]:
        """The same, each with its row."""
        lost = self._lost(part)
        cuts = {} if self.cut is None else cuts_of(self.cut, part_id(part))
        for row, (name, text, digest) in enumerate(part_texts(part.path)):
            if row in lost:
                continue
            if row not in cuts:
                yield row, (name, text, digest)
                continue
            left = without(text, cuts[row])
            if left and not left.isspace():
                # What is the same once it is cut lies on the same side of the split.
                yield row, (name, left, text_digest(left.encode()))

    def counted(self, part: Part, held_out: float) -> tuple[int, Bytes, int]:
        """Documents, bytes of text, and documents on the side that is held out, without reading any
        text; only where nothing is cut.
        """
        kept = np.ones(part.num_documents, bool)
        kept[sorted(self._lost(part))] = False
        is_apart = held_out_rows(part_digests(part.path), held_out)
        num_bytes = part.num_bytes
        if not kept.all():
            num_bytes = int(text_sizes(part.path)[kept].sum())
        return int(kept.sum()), num_bytes, int((is_apart & kept).sum())

    def num_lost(self, part: Part) -> int:
        """Documents that it loses."""
        return len(self._lost(part))

    def _lost(self, part: Part) -> set[int]:
        files = (folder / f"{part_id(part)}.npy" for folder in self.dropped)
        return {row for path in files for row in np.load(path).tolist()}


def part_id(part: Part) -> str:
    """What a part is called among those of all sources."""
    return f"{part.path.parent.name}-{part.path.stem}"


@dataclass(frozen=True, slots=True)
class _Look:
    """A job: count a part's survivors, and take pieces of them whose hash is below a bound."""

    part: Part
    survivors: Survivors
    held_out: float
    characters: bool
    bound: int

    @property
    def counts_only(self) -> bool:
        """Whether no text has to be read."""
        return not (self.characters or self.bound) and self.survivors.cut is None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is in a part."""

    num_documents: int
    num_bytes: Bytes
    num_held_out: int
    characters: frozenset[str]
    pieces: tuple[str, ...]


def _look(job: _Look) -> Seen:
    if job.counts_only:
        return Seen(*job.survivors.counted(job.part, job.held_out), frozenset(), ())
    num_documents = num_bytes = num_held_out = 0
    characters: set[str] = set()
    pieces: list[str] = []
    for _, text, digest in job.survivors.texts(job.part):
        num_documents += 1
        num_bytes += len(text.encode())
        num_held_out += is_held_out(digest, job.held_out)
        if job.characters:
            characters.update(text)
        if job.bound:
            pieces += [piece for rank, _, piece in sample_pieces(text) if rank < job.bound]
    return Seen(num_documents, num_bytes, num_held_out, frozenset(characters), tuple(pieces))


def look_at(
    parts: Sequence[Part],
    survivors: Survivors,
    held_out: float,
    tokenizer: TokenizerSection,
    resources: Resources,
) -> tuple[list[Seen], TextSample]:
    """What is in each part, and the sample that one process would have taken of all of them."""
    most = int(tokenizer.training_mb * 1e6) if tokenizer.kind == "bpe" else 0
    sample = TextSample(most)
    share = _SLACK * most / max(1, sum(part.num_bytes for part in parts))
    while True:
        bound = int(min(1.0, share) * (1 << 128))
        jobs = [
            _Look(part, survivors, held_out, tokenizer.kind == "characters", bound)
            for part in parts
        ]
        light = all(job.counts_only for job in jobs)
        found_by_job = run_jobs(_look, jobs, resources, light=light)
        seen = [found for _, found in sorted(found_by_job, key=_position)]
        for found in seen:
            for piece in found.pieces:
                sample.show(piece)
        # Filled to the brim: whatever lies beyond the bound would have been dropped.
        if share >= 1 or not most or sample.has_dropped:
            return seen, sample
        share *= 4
        sample = TextSample(most)


def _position(result: tuple[int, Seen]) -> int:
    return result[0]
