"""Preflight: whether the text can be had, read and learned from.

Of each source on this machine the beginning is read, looked at as `longhaul data lint` does, and
kept as the text of the small twin. One that is elsewhere is not fetched, which takes hours, but
looked up: the small twin reads Python's own library in its place.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from longhaul.config.data import SourceSection
from longhaul.config.recipe import source_name
from longhaul.config.size import known_vocabulary
from longhaul.core.addresses import without_secrets
from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError, LonghaulError
from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.data.dataset import MANIFEST, open_dataset
from longhaul.data.documents import Breakage, Document
from longhaul.data.forecast import forecast
from longhaul.data.lint.findings import is_telling
from longhaul.data.lint.signs import DocumentSigns
from longhaul.data.mixture import plan_of
from longhaul.data.prepare import prepared_folder
from longhaul.data.remote import is_here, listed
from longhaul.data.sources import locate
from longhaul.data.tokenizer_files import find_tokenizer, load_given
from longhaul.data.tokenizing import Tokenizer
from longhaul.data.verification import MEMORY, Verification
from longhaul.run.preflight.context import Check, PreflightContext, failed, judged

_SAMPLE_BYTES: Bytes = 2_000_000
"""Of all sources together; twenty times what the small twin trains on."""
_SAMPLE_S: Seconds = 5.0
"""For one source; beyond it, what has been read must do."""
_FEWEST_BYTES: Bytes = 200_000
"""With less the small twin reads hardly anything twice."""
_MOST_COMPARED: Bytes = 16 << 30
"""Of prepared files; what half a minute reads."""
_NAME = "data"


def check_data(context: PreflightContext) -> Iterator[Check]:
    """Every source, and the tokenizer if it is a file. DataError if a source that should be on this
    machine is not: nothing else can be said then.
    """
    sources = context.recipe.data.sources
    missing = []
    for number, source in enumerate(sources):
        try:
            check, documents = _look(context, source, _SAMPLE_BYTES // len(sources))
        except DataError as error:
            if not _is_elsewhere(source):
                raise
            check, documents = failed(_NAME, error), []
        size = sum(len(document.text) for document in documents)
        if size < _FEWEST_BYTES // len(sources):
            missing.append(number)
        else:
            _write(context.sample_of(number), documents)
        yield check
    for turn, number in enumerate(missing):
        _write(context.sample_of(number), _stand_in(context, turn, len(missing)))
    yield from _tokenizer(context)
    yield from _prepared(context)


def _prepared(context: PreflightContext) -> Iterator[Check]:
    if any(map(_is_elsewhere, context.recipe.data.sources)) or not context.typed.prepared.is_dir():
        return  # nothing is fetched here
    try:
        folder = prepared_folder(context.recipe, context.typed.prepared, lambda _: None)
        if not (folder / MANIFEST).exists():
            return
        verification = Verification(folder, (folder / MEMORY,))
        size = verification.left_bytes
        if size > _MOST_COMPARED:
            figure = f"{short_bytes(size)} in {folder} to compare beside training"
            yield judged(
                _NAME, f"{figure}; `longhaul data lint {context.typed.recipe}` compares it now"
            )
            return
        verification.compare_all()
        dataset, recipe = open_dataset(folder), context.recipe
        plan = plan_of(dataset, recipe.data, recipe.block_length(), recipe.order.cycle)
        mixture = list(forecast(plan, recipe))
    except DataError as error:
        yield failed(_NAME, error)
    else:
        figure = f"{verification.num_files} prepared files match their checksums"
        yield judged(_NAME, figure, compared=size)
        for line in mixture:
            yield judged(_NAME, line)


def _look(
    context: PreflightContext, source: SourceSection, most: Bytes
) -> tuple[Check, Sequence[Document]]:
    name, downloads = source_name(source.name, source.path), context.typed.prepared / "downloads"
    if _is_elsewhere(source) and not is_here(source.path, downloads):
        names = listed(source.path, "text" if source.format == "auto" else "tokens")
        where = without_secrets(source.path)
        figure = f"{name}: {len(names):,} files answer at {where}; not fetched"
        return judged(_NAME, figure, files=len(names)), []
    corpus = locate(source, context.recipe.seed, downloads, lambda _: None)
    if corpus.token_files:
        figure = f"{name}: {len(corpus.token_files)} files of tokens; there is no text to look at"
        return judged(_NAME, figure), []
    breakage = Breakage(name, context.recipe.data.max_broken_fraction)
    seen, documents, size = DocumentSigns(), list[Document](), 0
    for document in _beginning(corpus.documents(breakage), most):
        seen.see(document.name, document.text)
        documents.append(document)
        size += len(document.text.encode())
    breakage.judge()
    signs = [sign for sign in seen.found() if is_telling(sign)]
    odd = ", ".join(f"{sign.kind} in {sign.share:.1%} of documents" for sign in signs)
    figure = f"{name}: the first {len(documents):,} documents ({short_bytes(size)})"
    figure += f"; look at: {odd}" if odd else "; nothing suspicious"
    figure += f"; {breakage.summary()}" if breakage.num_broken else ""
    kinds = [sign.kind for sign in signs]
    return judged(_NAME, figure, documents=len(documents), signs=kinds), documents


def vocabulary(context: PreflightContext) -> tuple[int, bool]:
    """Tokens of the run's vocabulary, and whether that is known for certain."""
    with suppress(LonghaulError):
        given = _given_tokenizer(context)
        if given is not None:
            return given.vocab_size, True
    return known_vocabulary(context.recipe)


def _tokenizer(context: PreflightContext) -> Iterator[Check]:
    try:
        given = _given_tokenizer(context)
    except DataError as error:
        yield failed("tokenizer", error)
        return
    if given is not None:
        figure = f"{given.vocab_size:,} tokens from {context.recipe.tokenizer.path}"
        yield judged("tokenizer", figure, vocabulary=given.vocab_size)


def _given_tokenizer(context: PreflightContext) -> Tokenizer | None:
    """The tokenizer of kind `file`, fetched if it must be: it is small."""
    settings = context.recipe.tokenizer
    if settings.kind != "file" or settings.path is None:
        return None
    # Not ours to keep, unless the run has been here already.
    downloads = context.typed.prepared / "downloads"
    if "://" in settings.path and not is_here(settings.path, downloads):
        downloads = context.folder / "downloads"
    files = find_tokenizer(settings.path, downloads, lambda _: None)
    return load_given(files, settings.end_of_text, settings.begin_of_text)


def _beginning(documents: Iterator[Document], most: Bytes) -> Iterator[Document]:
    """Documents up to so many bytes and so many seconds; a long one is cut."""
    clock = RealClock()
    began, left = clock.monotonic(), most
    for document in documents:
        text = document.text[:left]
        yield replace(document, text=text)
        left -= len(text)
        if left <= 0 or clock.monotonic() - began > _SAMPLE_S:
            return


def _stand_in(context: PreflightContext, turn: int, turns: int) -> list[Document]:
    """Python's library; where several sources need one, each has documents of its own."""
    source = SourceSection(path="python-stdlib")
    corpus = locate(source, context.recipe.seed, context.folder, lambda _: None)
    documents = corpus.documents(Breakage("python-stdlib", 1.0))
    return list(_beginning(islice(documents, turn, None, turns), _SAMPLE_BYTES // turns))


def _is_elsewhere(source: SourceSection) -> bool:
    return "://" in source.path and not source.path.startswith("file://")


def _write(path: Path, documents: Sequence[Document]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": document.text}) + "\n" for document in documents)
    path.write_text("".join(lines), encoding="utf-8")
