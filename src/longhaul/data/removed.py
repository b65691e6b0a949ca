"""What a stage left out: counted by reason, with a few of them to look at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longhaul.core.units import Bytes

CHANGED, KEPT = "changed: ", "kept: "
"""Reasons that begin so count documents that stay, changed or not."""
MOST_EXAMPLES = 20
"""Kept of each reason."""
_EXCERPT = 200
"""Characters of an example."""


@dataclass(slots=True)
class Reason:
    """Documents that were left out, or changed, for one reason."""

    documents: int = 0
    num_bytes: Bytes = 0
    """UTF-8 bytes of their text, or of the text that was cut from them."""
    examples: list[tuple[str, str]] = field(default_factory=list)
    """Name and the first 200 characters, of the first 20."""


class Removed:
    """Counts by reason; parts of a corpus are counted apart and merged in their order."""

    def __init__(self) -> None:
        self.reasons: dict[str, Reason] = {}

    def drop(self, reason: str, name: str, text: str) -> None:
        """Count a document, or a piece of one, that is left out for `reason`."""
        self.note(reason, name, len(text.encode(errors="replace")), lambda: text)

    def note(self, reason: str, name: str, num_bytes: Bytes, example: Callable[[], str]) -> None:
        """Count what was done to a document for `reason`; the example is made only if it is among
        the first.
        """
        counted = self.reasons.setdefault(reason, Reason())
        counted.documents += 1
        counted.num_bytes += num_bytes
        if len(counted.examples) < MOST_EXAMPLES:
            counted.examples.append((name, example()[:_EXCERPT]))

    def merge(self, other: "Removed") -> None:
        """Add what was counted in a later part."""
        for reason, more in other.reasons.items():
            counted = self.reasons.setdefault(reason, Reason())
            counted.documents += more.documents
            counted.num_bytes += more.num_bytes
            room = MOST_EXAMPLES - len(counted.examples)
            counted.examples += more.examples[:room]

    @property
    def documents(self) -> int:
        """Left out in all, those that were changed not among them."""
        return sum(documents for _, documents in self.left_out())

    def left_out(self) -> list[tuple[str, int]]:
        """Reasons and documents, without those of documents that stay."""
        found = self.reasons.items()
        return [(name, r.documents) for name, r in found if not name.startswith((CHANGED, KEPT))]

    def as_json(self) -> dict[str, Any]:
        """Plain values, by reason."""
        return {
            name: {
                "documents": reason.documents,
                "bytes": reason.num_bytes,
                "examples": [list(example) for example in reason.examples],
            }
            for name, reason in sorted(self.reasons.items())
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Removed":
        """What `as_json` gave."""
        removed = cls()
        for name, reason in value.items():
            examples = [(str(where), str(text)) for where, text in reason["examples"]]
            removed.reasons[name] = Reason(reason["documents"], reason["bytes"], examples)
        return removed
