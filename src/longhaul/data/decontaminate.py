"""Sources without the documents that hold what the model is judged by: looked for once, before
anything is counted or tokenized.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from longhaul.config.data import SourceSection
from longhaul.config.recipe import Recipe
from longhaul.core.output import Say
from longhaul.core.units import count
from longhaul.data.contamination import contamination_of
from longhaul.data.corpus.removed import Removed
from longhaul.data.documents import Breakage, Document, is_held_out, text_digest
from longhaul.data.sources import Corpus, locate


def evaluation_identities(recipe: Recipe, downloads: Path, say: Say) -> list[Any]:
    """What the evaluation sets consist of, as `Corpus.identity`."""
    sets = recipe.data.contamination.evaluation_sets
    found = (locate(SourceSection(path=path), recipe.seed, downloads, say) for path in sets)
    return [corpus.identity for corpus in found]


def decontaminated(
    corpora: tuple[Corpus, ...], recipe: Recipe, downloads: Path, say: Say
) -> tuple[tuple[Corpus, ...], Removed]:
    """The sources without contaminated documents, if the recipe wants them removed; and what was
    found. Tokens made elsewhere are not looked at, and what is held out by tail is not known yet.
    """
    fraction, removed = recipe.data.held_out.fraction, Removed()
    texts = [corpus for corpus in corpora if not corpus.token_files]

    def documents(held_out: bool) -> Iterator[tuple[Document, bytes]]:
        for corpus in texts:
            # What is broken is judged by the survey.
            for document in corpus.documents(Breakage(corpus.name, 1.0)):
                digest = text_digest(document.text.encode())
                if is_held_out(digest, fraction) is held_out:
                    yield document, digest

    apart = (document for document, _ in documents(held_out=True))
    contamination = contamination_of(recipe.data, recipe.seed, downloads, say, apart)
    if contamination is None:
        return corpora, removed
    out = {
        d for document, d in documents(held_out=False) if not contamination.keep(document, removed)
    }
    for reason, found in sorted(removed.reasons.items()):
        example = f", such as {found.examples[0][0]}" if found.examples else ""
        say(f"data: {reason}: {count(found.documents, 'document')}{example}")
    if not removed.reasons:
        say("data: no document to train on holds what the model is judged by")
    return tuple(
        corpus if corpus.token_files else replace(corpus, documents=_without(corpus.documents, out))
        for corpus in corpora
    ), removed


def _without(
    read: Callable[[Breakage], Iterator[Document]], out: set[bytes]
) -> Callable[[Breakage], Iterator[Document]]:
    def documents(breakage: Breakage) -> Iterator[Document]:
        for document in read(breakage):
            if text_digest(document.text.encode()) not in out:
                yield document

    return documents if out else read
