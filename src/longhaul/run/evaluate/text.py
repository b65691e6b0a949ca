"""Perplexity and bits per byte of any text: files, folders and addresses as a recipe takes them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from longhaul.config.data import DataSection, SourceSection
from longhaul.core.errors import DataError, UsageError
from longhaul.core.output import Say
from longhaul.core.units import Bytes, Nats, bits_per_byte, count
from longhaul.data.documents import Breakage, Document, batched
from longhaul.data.sources import locate
from longhaul.run.evaluate.scorer import Scorer, Window, windows_of
from longhaul.run.trained import Trained

_TEXT_AT_ONCE: Bytes = 1 << 20


@dataclass(frozen=True, slots=True)
class TextLoss:
    """How well a model foretells a text, each document by itself."""

    name: str
    documents: int = 0
    tokens: int = 0
    """Foretold ones: all, but for the first of a document where nothing can stand before it."""
    num_bytes: Bytes = 0
    """UTF-8 bytes of these tokens' text."""
    nats: Nats = 0.0

    @property
    def loss(self) -> Nats:
        """Nats per token."""
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """E to the loss; infinity where that is beyond a float. It depends on the tokenizer."""
        return math.exp(self.loss) if not self.loss > 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text: comparable between tokenizers."""
        return bits_per_byte(self.nats, self.num_bytes)

    def __str__(self) -> str:
        return (
            f"{self.name}: perplexity {self.perplexity:,.4g}, {self.loss:.4f} nats, "
            f"{self.bits_per_byte:.4f} bits per byte, over {self.tokens:,} tokens of "
            f"{count(self.documents, 'document')}"
        )


def text_loss(
    trained: Trained, path: str, downloads: Path, say: Say, text_field: str = "text"
) -> TextLoss:
    """How well a model foretells a file, a folder or an address of text.

    A document begins behind an end of text, as in training, and is read in windows of the model's
    context that do not overlap. Text that was trained on says little; nobody looks for it here.

    Raises:
        DataError: there is no such text, or too much of it is broken.
        UsageError: the tokenizer cannot express it, or it is tokens already.
    """
    if "://" not in path:
        path = str(Path(path).resolve())
    source = SourceSection(path=path, text_field=text_field)
    corpus = locate(source, trained.recipe.seed, downloads, say)
    if corpus.token_files:
        raise UsageError(f"{path}: tokens already; there is no text in it", "give it as text")
    limit: float = DataSection.model_fields["max_broken_fraction"].default
    breakage = Breakage(corpus.name, limit)
    loss = _summed(trained, corpus.name, corpus.documents(breakage))
    breakage.judge()
    if not loss.tokens:
        raise DataError(f"{path}: there is no text in it", "give a file with some")
    if skipped := breakage.summary():
        say(f"{corpus.name}: {skipped}")
    return loss


def _summed(trained: Trained, name: str, documents: Iterable[Document]) -> TextLoss:
    scorer, tokenizer = Scorer(trained), trained.dataset.tokenizer
    before, context = tokenizer.begin_of_text, trained.recipe.model.context
    before = tokenizer.end_of_text if before is None else before
    total = TextLoss(name)
    for some in batched(documents, lambda document: len(document.text), _TEXT_AT_ONCE):
        windows: list[Window] = []
        num_bytes = 0
        for document, found in zip(
            some, tokenizer.encode_batch([d.text for d in some]), strict=True
        ):
            ids = [int(token) for token in found]
            num_bytes += len(document.text.encode())
            if before is None:  # nothing stands before the first
                num_bytes -= len(tokenizer.decode(ids[:1]).encode())
            whole = ids if before is None else [before, *ids]
            windows += windows_of(whole, len(whole) - 1, context)
        scores = scorer.score(windows)
        total = TextLoss(
            name,
            total.documents + len(some),
            total.tokens + sum(window.scored for window in windows),
            total.num_bytes + num_bytes,
            total.nats + sum(score.nats for score in scores),
        )
    return total


def text_losses(
    trained: Trained, paths: Iterable[str], downloads: Path, say: Say, text_field: str = "text"
) -> Iterator[TextLoss]:
    """`text_loss` of each, one after the other."""
    for path in paths:
        yield text_loss(trained, path, downloads, say, text_field)
