"""The stage that looks for documents which hold what the model is judged by."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from longhaul.config.data import DataSection
from longhaul.core.files import write_bytes
from longhaul.core.output import Say
from longhaul.core.units import count
from longhaul.data.contamination import Contamination, contamination_of
from longhaul.data.corpus.dedup.buckets import save
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import Part, beside, mark, marked
from longhaul.data.corpus.progress import CorpusProgress
from longhaul.data.corpus.survivors import Survivors, part_id
from longhaul.data.documents import Document, is_held_out
from longhaul.data.removed import Removed


@dataclass(frozen=True)
class ContaminationStage:
    """Finds what the recipe asks for among the survivors of these parts."""

    parts: tuple[Part, ...]
    survivors: Survivors
    data: DataSection
    seed: int
    tokens: Path
    """Folder of this preparation, beside those of other stages."""
    resources: Resources
    say: Say

    @property
    def _folder(self) -> Path:
        return self.tokens / "contaminated"

    def run(self) -> Path:
        """The folder with the rows that each part loses."""
        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        downloads = self.tokens.parent.parent / "downloads"
        held_out = self._held_out() if self.data.held_out.by != "tail" else ()
        looking = contamination_of(self.data, self.seed, downloads, self.say, held_out)
        path = folder / "looking.pickle"
        write_bytes(path, pickle.dumps(looking))
        fraction = self.data.held_out.fraction if self.data.held_out.by != "tail" else 0.0
        jobs = [
            _Look(part, self.survivors, path, folder / part_id(part), fraction)
            for part in self.parts
        ]
        waiting = [job for job in jobs if marked(job.stem) is None]
        size = sum(part.num_bytes for part in self.parts)
        progress = CorpusProgress(self.say, "data: looking for contamination", size)
        progress.begin_at(size - sum(job.part.num_bytes for job in waiting))
        for position, documents in run_jobs(_look, waiting, self.resources):
            done = waiting[position].part.num_bytes
            progress.done(done, documents, done)
        path.unlink()
        everything = Removed()
        for part in self.parts:
            everything.merge(self.removed(part))
        for reason, found in sorted(everything.reasons.items()):
            where = found.examples[0][0]
            self.say(f"data: {reason}: {count(found.documents, 'document')}, such as {where}")
        if not everything.reasons:
            self.say("data: no document to train on holds what the model is judged by")
        return folder

    def _held_out(self) -> Iterator[Document]:
        for part in self.parts:
            for name, text, digest in self.survivors.texts(part):
                if is_held_out(digest, self.data.held_out.fraction):
                    yield Document(text, name)

    def removed(self, part: Part) -> Removed:
        """What was found in a part."""
        return Removed.from_json((marked(self._folder / part_id(part)) or {})["removed"])


@dataclass(frozen=True, slots=True)
class _Look:
    """A job: look through a part."""

    part: Part
    survivors: Survivors
    looking: Path
    stem: Path
    held_out: float
    """Share of documents that are held out, and not looked at themselves."""


def _look(job: _Look) -> int:
    contamination = _loaded(job.looking, job.looking.stat().st_mtime_ns)
    removed, lost, number = Removed(), [], 0
    for row, (name, text, digest) in job.survivors.rows(job.part):
        number += 1
        if job.held_out and is_held_out(digest, job.held_out):
            continue
        if not contamination.keep(Document(text, name), removed):
            lost.append(row)
    save(beside(job.stem, ".npy"), np.array(lost, np.int64))
    mark(job.stem, {"removed": removed.as_json()})
    return number


@lru_cache(maxsize=1)
def _loaded(path: Path, written: int) -> Contamination:
    looking: Contamination = pickle.loads(path.read_bytes())  # noqa: S301 - of our own making
    return looking
