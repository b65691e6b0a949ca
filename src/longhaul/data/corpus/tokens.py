"""The last stage over parts: tokens of each part made on all cores, then laid into shards in order.

A part's tokens are a shard with the digests of its texts beside it; what the run reads is what one
process would have written.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longhaul.core.output import Say
from longhaul.core.units import Bytes
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import DIGEST_BYTES, Part, beside, mark, marked
from longhaul.data.corpus.progress import CorpusProgress
from longhaul.data.corpus.survivors import Survivors
from longhaul.data.dataset import load_tokenizer
from longhaul.data.documents import Document
from longhaul.data.encoding import tokenized
from longhaul.data.shards import Shard, ShardWriter
from longhaul.data.survey import Kept
from longhaul.data.tokenize import Placed, text_digest_of
from longhaul.data.tokenizing import Tokenizer, Wanted


@dataclass(frozen=True, slots=True)
class _PartTokens:
    """A job: tokens of this part, into files whose names begin with `stem`."""

    part: Part
    stem: Path
    tokenizer: Path
    borders: tuple[Wanted, Wanted]
    """Its end-of-text and begin-of-text."""
    survivors: Survivors
    by_tokens: bool
    """Whether a document's side is that of the text which its tokens stand for (`OtherForm`)."""
    alone: bool
    """Whether the worker has the machine for itself."""


def tokenize_parts(
    name: str,
    parts: Sequence[Part],
    folder: Path,
    tokenizer: tuple[Path, tuple[Wanted, Wanted]],
    survivors: Survivors,
    by_tokens: bool,
    resources: Resources,
    say: Say,
) -> Iterator[Path]:
    """Stems of the files that hold the tokens of each part, in order, each once it and those before
    it are made: parts are laid into shards while others are in work.

    `tokenizer`: its file, and whether it ends documents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    alone = min(resources.workers, len(parts)) <= 1 and not resources.ray
    jobs = [
        _PartTokens(part, folder / part.path.stem, *tokenizer, survivors, by_tokens, alone)
        for part in parts
    ]
    whole = [marked(job.stem) is not None for job in jobs]
    numbers = [number for number, is_whole in enumerate(whole) if not is_whole]
    waiting = [jobs[number] for number in numbers]
    total = sum(part.num_bytes for part in parts)
    progress = CorpusProgress(say, f"data: tokenizing {name}", total)
    progress.begin_at(total - sum(job.part.num_bytes for job in waiting))
    given = 0
    for position, (documents, num_bytes) in run_jobs(_tokenize_part, waiting, resources):
        progress.done(waiting[position].part.num_bytes, documents, num_bytes)
        whole[numbers[position]] = True
        while given < len(jobs) and whole[given]:
            yield jobs[given].stem
            given += 1
    for job in jobs[given:]:
        yield job.stem


def _tokenize_part(job: _PartTokens) -> tuple[int, Bytes]:
    """Documents and bytes of text whose tokens were written."""
    if not job.alone:
        # As many workers as cores each start one thread a core otherwise.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = _loaded(job.tokenizer, *job.borders)
    writer = ShardWriter(job.stem.parent, job.stem.name, tokenizer.vocab_size, tokenizer.sha256)
    digests: list[bytes] = []
    num_empty = empty_bytes = num_bytes = 0
    for (document, size, digest), tokens in tokenized(_kept(job), tokenizer):
        writer.add(document.name, tokens, size)
        num_bytes += size
        if len(tokens):
            digests.append(text_digest_of(tokens, tokenizer) if job.by_tokens else digest)
        else:
            num_empty += 1
            empty_bytes += size
    shards = [path.name for path in writer.close()]
    np.save(beside(job.stem, ".npy"), np.frombuffer(b"".join(digests), np.uint8))
    mark(job.stem, {"shards": shards, "empty": num_empty, "empty_bytes": empty_bytes})
    return len(digests) + num_empty, num_bytes


@lru_cache(maxsize=1)
def _loaded(path: Path, end_of_text: Wanted, begin_of_text: Wanted) -> Tokenizer:
    return load_tokenizer(path, end_of_text, begin_of_text)


def _kept(job: _PartTokens) -> Iterator[Kept]:
    for name, text, digest in job.survivors.texts(job.part):
        yield Document(text, name), len(text.encode()), digest


def placed(stems: Iterable[Path], is_apart: Callable[[bytes], bool]) -> Iterator[Placed]:
    """Documents of parts whose tokens were made, in order, for `write_shards`; `is_apart` tells by
    a digest whether one is for validation.
    """
    for stem in stems:
        facts = marked(stem) or {}
        digests: npt.NDArray[np.uint8] = np.load(beside(stem, ".npy"))
        rows = iter(digests.reshape(-1, DIGEST_BYTES))
        for shard in facts["shards"]:
            for name, tokens, size in Shard(stem.parent / shard).documents():
                yield name, tokens, size, is_apart(next(rows).tobytes())
        # A text without a token is counted where it would have stood.
        nothing = np.zeros(0, np.uint16)
        for number in range(facts["empty"]):
            yield "", nothing, 0 if number else facts["empty_bytes"], False
