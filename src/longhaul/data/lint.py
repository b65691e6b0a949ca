r"""What is suspicious in a text before a model learns it: reported, and a person judges.

OPT-175B's loss once fell too fast: a cleaning step had left stray backslashes in one source. A
document is counted where a sign is dense, not where it occurs: code has `\n` in its strings.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from longhaul.core.units import Bytes
from longhaul.data.documents import Document, text_digest

_EXAMPLES = 2
_EXCERPT = 30
"""Characters to each side of an example."""
_LONG_LINE = 10_000
_SHORTEST_REPEATED_LINE = 20
"""Characters; braces and headings are the same in many documents."""
_MOST_LINES = 200_000
_MOST_DIGESTS = 1_000_000
_FEWEST_REPEATS = 3
_REPEATED_SHARE = 0.01
"""Of documents that a line is in, from which on it is worth telling."""


@dataclass(slots=True)
class Sign:
    """One kind of suspicious text."""

    kind: str
    documents: int = 0
    """In which it is dense; of copies, those beyond the first; of lines, with the most frequent."""
    occurrences: int = 0
    examples: list[str] = field(default_factory=list)
    """Where, and an excerpt."""
    share: float = 0.0
    """Of all documents (0 to 1)."""


@dataclass(frozen=True, slots=True)
class _Check:
    kind: str
    pattern: re.Pattern[str]
    dense: Callable[[str, int, int], bool] = lambda text, count, covered: True
    """(text, occurrences, characters in them) → whether the document is affected."""


def _per_thousand(text: str, count: int, covered: int) -> bool:
    return count >= 3 and count * 1000 >= len(text)


_CHECKS = (
    _Check(
        "escaped line ends",
        re.compile(r"\\(?:r\\n|[nrt])"),
        # Where text was escaped once too often, escapes outnumber what they stand for.
        lambda text, count, covered: count >= 3 and count > text.count("\n"),
    ),
    _Check("doubled backslashes", re.compile(r"\\{3,}"), _per_thousand),
    _Check(
        "HTML entities",
        re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,7}|#x[0-9a-fA-F]{1,6});"),
        _per_thousand,
    ),
    _Check(
        "runs of white space",
        re.compile(r"[ \t\u00a0]{40,}|(?:[ \t]*\r?\n){6,}"),
        lambda text, count, covered: covered * 20 >= len(text),
    ),
    _Check("replacement characters", re.compile("\ufffd")),
    _Check(
        "text in a wrong encoding",
        re.compile("[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac|\u00e2\u0080"),
        lambda text, count, covered: count >= 2,
    ),
    _Check("control characters", re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")),
    _Check(f"lines beyond {_LONG_LINE:,} characters", re.compile(rf"[^\n]{{{_LONG_LINE},}}")),
)


class Lint:
    """Looks at one source."""

    def __init__(self) -> None:
        self.num_documents = 0
        self.num_bytes: Bytes = 0
        self._signs = [Sign(check.kind) for check in _CHECKS]
        self._duplicates = _Duplicates()
        self._lines = _Lines()

    def see(self, document: Document) -> None:
        """One more document."""
        content = document.text.encode()
        self.num_documents += 1
        self.num_bytes += len(content)
        self._duplicates.see(text_digest(content), document.name)
        self._lines.see(document.text)
        for sign, check in zip(self._signs, _CHECKS, strict=True):
            found = [match.span() for match in check.pattern.finditer(document.text)]
            covered = sum(end - begin for begin, end in found)
            if found and check.dense(document.text, len(found), covered):
                sign.documents += 1
                sign.occurrences += len(found)
                if len(sign.examples) < _EXAMPLES:
                    begin, end = found[0]
                    end = min(end, begin + _EXCERPT) + _EXCERPT
                    shown = document.text[max(0, begin - _EXCERPT) : end]
                    sign.examples.append(f"{document.name}: {shown!r}")

    def signs(self) -> Iterator[Sign]:
        """What is suspicious in the documents so far."""
        total = max(1, self.num_documents)
        for sign in self._signs:
            if sign.documents:
                yield replace(sign, share=sign.documents / total)
        if share := self._duplicates.share():
            count = round(share * total)
            yield Sign("exact duplicates", count, count, self._duplicates.examples, share)
        least = max(_FEWEST_REPEATS, _REPEATED_SHARE * total)
        if repeated := self._lines.most_frequent(least):
            most = repeated[0][1]
            examples = [f"in {n:,} documents: {line!r}" for line, n in repeated[:_EXAMPLES]]
            times = sum(n for _, n in repeated)
            yield Sign("lines of many documents", most, times, examples, most / total)


class _Duplicates:
    def __init__(self) -> None:
        self.examples: list[str] = []
        self._limit = 1 << 64
        self._counts: dict[bytes, int] = {}

    def see(self, digest: bytes, name: str) -> None:
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
        seen = sum(self._counts.values())
        return (seen - len(self._counts)) / seen if seen else 0.0


class _Lines:
    """Lines that stand in many documents; of too many, the rare ones are forgotten."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def see(self, text: str) -> None:
        lines = {line.strip()[:200] for line in text.split("\n")}
        self._counts.update(line for line in lines if len(line) >= _SHORTEST_REPEATED_LINE)
        least = 1
        while len(self._counts) > _MOST_LINES:
            self._counts = Counter({line: n for line, n in self._counts.items() if n > least})
            least += 1

    def most_frequent(self, least: float) -> list[tuple[str, int]]:
        found = [(line, count) for line, count in self._counts.items() if count >= least]
        return sorted(found, key=lambda item: (-item[1], item[0]))
