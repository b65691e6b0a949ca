"""C4's rules: lines that are cut, and pages that are left out.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", section 2.2. Not here: its list of bad words, and three-sentence spans that occur
twice, which deduplication by paragraph finds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from longhaul.config.corpus import FilterSection

LINE_WORDS = 5
SENTENCES = 3
_END_MARKS = (".", "!", "?", '"', "”", "。", "！", "？")
"""The paper's four, and what they are in typeset and in Chinese and Japanese text."""
_POLICIES = re.compile(
    "(?i)terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
)
_CITATIONS = re.compile(r"\[(?:\d{1,3}|edit|citation needed)\]")
_EMPTY_LINES = re.compile(r"\n{3,}")
_FILLER = re.compile("(?i)lorem ipsum")
_SENTENCE_END = re.compile(r"[.!?][\"”')\]]*(?=\s|\Z)|[。！？]")


@dataclass(frozen=True, slots=True)
class LineRules:
    """Cuts lines; a subsequence of the text's characters is left."""

    end_marks: bool
    line_words: float
    boilerplate: bool

    def apply(self, text: str) -> tuple[str, dict[str, list[str]]]:
        """The text without what is cut, and the cut pieces by reason."""
        cut: dict[str, list[str]] = {}
        if self.boilerplate and "[" in text and (marks := _CITATIONS.findall(text)):
            cut["boilerplate: citation marks"] = marks
            text = _CITATIONS.sub("", text)
        kept = []
        for line in text.split("\n"):
            stripped = line.strip()
            # Empty lines stay: they part paragraphs.
            if stripped and (reason := self._reason(stripped)) is not None:
                cut.setdefault(reason, []).append(line)
            else:
                kept.append(line)
        return (_EMPTY_LINES.sub("\n\n", "\n".join(kept)).lstrip("\n") if cut else text), cut

    def _reason(self, line: str) -> str | None:
        if self.end_marks and (not line.endswith(_END_MARKS) or line.endswith("...")):
            return "end_marks: lines"
        if self.line_words and len(line.split(None, int(self.line_words))) < self.line_words:
            return f"line_words: lines < {self.line_words:g}"
        if self.boilerplate:
            if "javascript" in line.lower():
                return "boilerplate: lines about JavaScript"
            if _POLICIES.search(line):
                return "boilerplate: lines about policies"
        return None


@dataclass(frozen=True, slots=True)
class PageRules:
    """Leaves out pages."""

    filler: bool
    braces: bool
    sentences: float

    def reason(self, text: str) -> str | None:
        """Why a text goes; None if it stays."""
        if self.filler and _FILLER.search(text):
            return "boilerplate: lorem ipsum"
        if self.braces and "{" in text:
            return "braces"
        if self.sentences and not _has_sentences(text, self.sentences):
            return f"sentences < {self.sentences:g}"
        return None


def _has_sentences(text: str, least: float) -> bool:
    """Whether it has so many; a text without a mark is one."""
    count = 0
    for _ in _SENTENCE_END.finditer(text):
        count += 1
        if count >= least:
            return True
    return max(count, bool(text.strip())) >= least


def c4_rules_of(settings: FilterSection) -> tuple[LineRules | None, PageRules | None]:
    """The rules that a recipe turns on."""

    def number(value: float | bool | None, published: float) -> float:
        if value is None:
            value = settings.c4
        return (published if value else 0.0) if isinstance(value, bool) else value

    def is_on(value: bool | None) -> bool:
        return settings.c4 if value is None else value

    boilerplate = is_on(settings.boilerplate)
    lines = LineRules(
        is_on(settings.end_marks), number(settings.line_words, LINE_WORDS), boilerplate
    )
    pages = PageRules(boilerplate, is_on(settings.braces), number(settings.sentences, SENTENCES))
    cuts = lines.end_marks or lines.line_words or boilerplate
    judges = boilerplate or pages.braces or pages.sentences
    return (lines if cuts else None), (pages if judges else None)


def reasons_in_order(cut: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Reason and the cut pieces as one text."""
    for reason, pieces in sorted(cut.items()):
        yield reason, "\n".join(pieces)
