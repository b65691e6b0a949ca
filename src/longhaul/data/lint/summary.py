"""A source as lint knows it: counts and samples of fixed size, taken in one pass."""

from dataclasses import dataclass, field

from longhaul.core.units import Bytes
from longhaul.data.documents import Document, text_digest
from longhaul.data.lint.leakage import SplitLeakage
from longhaul.data.lint.repeats import Duplicates, Lines
from longhaul.data.lint.sample import PieceSample
from longhaul.data.lint.signs import DocumentSigns

_EDGE = 2048
"""Characters at both ends of a document, where the lines stand that many share."""


@dataclass(slots=True)
class SourceSummary:
    """One source; memory is at most about 200 MB, however large it is."""

    name: str
    leakage: SplitLeakage | None = None
    """Takes the documents of all sources, where the split is looked at."""
    num_documents: int = 0
    num_bytes: Bytes = 0
    num_characters: int = 0
    largest: tuple[Bytes, str] = (0, "")
    """The largest document, pieces of one file added up."""
    lengths: dict[int, int] = field(default_factory=dict)
    """Documents by the binary logarithm of their bytes."""
    signs: DocumentSigns = field(default_factory=DocumentSigns)
    duplicates: Duplicates = field(default_factory=Duplicates)
    lines: Lines = field(default_factory=Lines)
    sample: PieceSample = field(default_factory=PieceSample)
    _current: tuple[Bytes, str] = (0, "")

    def see(self, document: Document) -> None:
        """One more document."""
        content = document.text.encode()
        digest, size = text_digest(content), len(content)
        self.num_documents += 1
        self.num_bytes += size
        self.num_characters += len(document.text)
        self.lengths[size.bit_length()] = self.lengths.get(size.bit_length(), 0) + 1
        # A text file beyond 16 MiB comes as several documents, `big.txt#1`, `big.txt#2`.
        file = document.name.rpartition("#")[0] or document.name
        before = self._current[0] if file == self._current[1] else 0
        self._current = (before + size, file)
        self.largest = max(self.largest, self._current)
        self.signs.see(document.name, document.text)
        self.duplicates.see(digest, document.name)
        self.lines.see(_edges(document.text))
        self.sample.see(document.name, document.text)
        if self.leakage is not None:
            self.leakage.see(self.name, document.name, content, digest)


def _edges(text: str) -> str:
    return text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
