"""Repeats in one source: copies of documents, and lines that many documents share."""

from collections import Counter

_EXAMPLES = 3
_SHORTEST_REPEATED_LINE = 20
"""Characters; braces and headings are the same in many documents."""
_MOST_LINES = 200_000
_MOST_DIGESTS = 1_000_000


class Duplicates:
    """Exact copies among documents; of too many, a fair sample is looked at."""

    def __init__(self) -> None:
        self.examples: list[str] = []
        self._limit = 1 << 64
        self._counts: dict[bytes, int] = {}

    def see(self, digest: bytes, name: str) -> None:
        """One more document."""
        if int.from_bytes(digest[:8], "big") >= self._limit:
            return
        seen = self._counts.get(digest, 0)
        self._counts[digest] = seen + 1
        if seen and len(self.examples) < _EXAMPLES:
            self.examples.append(f"{name}: the text of an earlier one")
        if len(self._counts) > _MOST_DIGESTS:
            # A fair sample: copies have the same digest.
            self._limit //= 2
            self._counts = {
                known: count
                for known, count in self._counts.items()
                if int.from_bytes(known[:8], "big") < self._limit
            }

    def share(self) -> float:
        """Copies beyond the first, of all documents."""
        seen = sum(self._counts.values())
        return (seen - len(self._counts)) / seen if seen else 0.0


class Lines:
    """Lines that stand in many documents; of too many, the rare ones are forgotten."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def see(self, text: str) -> None:
        """One more document."""
        lines = {line.strip()[:200] for line in text.split("\n")}
        self._counts.update(line for line in lines if len(line) >= _SHORTEST_REPEATED_LINE)
        least = 1
        while len(self._counts) > _MOST_LINES:
            self._counts = Counter({line: n for line, n in self._counts.items() if n > least})
            least += 1

    def most_frequent(self, least: float) -> list[tuple[str, int]]:
        """Lines and in how many documents they stand, the most frequent first."""
        found = [(line, count) for line, count in self._counts.items() if count >= least]
        return sorted(found, key=lambda item: (-item[1], item[0]))
