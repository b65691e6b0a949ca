"""The cleaner of one source: normalise, mask, filter, with everything counted by its reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from longhaul.config.corpus import CleanSection, FilterSection
from longhaul.config.data import DataSection, SourceSection
from longhaul.core.errors import RecipeError
from longhaul.data.clean.c4 import LineRules, PageRules, c4_rules_of, reasons_in_order
from longhaul.data.clean.classifier import Quality, load_classifier
from longhaul.data.clean.masks import mask_addresses, mask_secrets
from longhaul.data.clean.measures import limits_of
from longhaul.data.clean.normalise import normalise
from longhaul.data.clean.origin import Domains, Scripts, domains_of
from longhaul.data.clean.prose import Prose
from longhaul.data.clean.repetition import repetition_of
from longhaul.data.documents import Document
from longhaul.data.removed import CHANGED, Removed

_CONTEXT = 40
"""Characters on each side of a change that an example shows."""


class ProseFilter(Protocol):
    """Judges words and lines."""

    def reason(self, prose: Prose) -> str | None:
        """Why a text goes; None if it stays."""
        ...


@dataclass(frozen=True, slots=True)
class Cleaner:
    """What a recipe does to the documents of one source; may be sent to other processes."""

    switches: CleanSection
    domains: tuple[Domains, ...] = ()
    scripts: Scripts | None = None
    prose_filters: tuple[ProseFilter, ...] = ()
    lines: LineRules | None = None
    pages: PageRules | None = None
    quality: Quality | None = None

    def apply(self, document: Document, removed: Removed) -> Document | None:
        """The document as a model should learn it, or None; either is counted in `removed`."""
        text = self._changed(document, removed)
        if not text or text.isspace():
            removed.drop("nothing left", document.name, document.text)
            return None
        prose = Prose(text)
        for reason in self._reasons(document, prose):
            removed.drop(reason, document.name, text)
            return None
        if self.lines is not None:
            text, cut = self.lines.apply(text)
            for reason, pieces in reasons_in_order(cut):
                removed.drop(f"{CHANGED}{reason}", document.name, pieces)
        if not text or text.isspace():
            removed.drop("nothing left", document.name, document.text)
            return None
        for reason in self._last_reasons(prose if text == prose.text else Prose(text)):
            removed.drop(reason, document.name, text)
            return None
        return document if text == document.text else replace(document, text=text)

    def _changed(self, document: Document, removed: Removed) -> str:
        """The text normalised and masked; no example shows what is masked."""
        before = document.text
        text, changed = normalise(before, self.switches)
        if changed:
            less, after = len(before.encode()) - len(text.encode()), text
            removed.note(
                f"{CHANGED}{' and '.join(changed)}", document.name, max(0, less),
                lambda: _difference(self._masked(before), self._masked(after)),
            )  # fmt: skip
        for name, mask in self._masks():
            masked, count = mask(text)
            if count:
                less, plain = len(text.encode()) - len(masked.encode()), text
                shown = partial(_masked_place, plain, masked, self._masked)
                removed.note(f"{CHANGED}{name}", document.name, max(0, less), shown)
                text = masked
        return text

    def _masks(self) -> Iterator[tuple[str, Callable[[str], tuple[str, int]]]]:
        if self.switches.mask_secrets:
            yield "secrets", mask_secrets
        if self.switches.mask_addresses:
            yield "addresses", mask_addresses

    def _masked(self, text: str) -> str:
        for _, mask in self._masks():
            text, _ = mask(text)
        return text

    def _reasons(self, document: Document, prose: Prose) -> Iterator[str]:
        """Why a document goes, judged as a whole; the first is what it is counted under."""
        for domains in self.domains:
            if reason := domains.reason(document):
                yield reason
        if self.scripts is not None and (reason := self.scripts.reason(prose.text)):
            yield reason
        for prose_filter in self.prose_filters:
            if reason := prose_filter.reason(prose):
                yield reason

    def _last_reasons(self, prose: Prose) -> Iterator[str]:
        """Why what is left of it goes."""
        if self.pages is not None and (reason := self.pages.reason(prose.text)):
            yield reason
        if self.quality is not None and (reason := self.quality.reason(prose)):
            yield reason


def cleaner_of(data: DataSection, source: SourceSection) -> Cleaner | None:
    """The cleaner of a source; None if it leaves every document as it is.

    Raises:
        RecipeError: a file that a filter needs is not there or is no such file.
    """
    settings = data.filters if source.filtered else FilterSection()
    if settings == FilterSection() and data.clean == CleanSection():
        return None
    scripts = Scripts(frozenset(settings.scripts), settings.script_share)
    lines, pages = c4_rules_of(settings)
    quality = None
    if settings.classifier:
        classifier = load_classifier(Path(settings.classifier).expanduser())
        quality = Quality(classifier, settings.classifier_threshold)
    return Cleaner(
        data.clean,
        tuple(domains_of(settings)),
        scripts if settings.scripts else None,
        (*limits_of(settings), *repetition_of(settings)),
        lines,
        pages,
        quality,
    )


def filter_files(settings: FilterSection) -> list[Path]:
    """Files whose content decides what a recipe's filters do. RecipeError if one is not there."""
    found = []
    for setting in ("blocked_domains", "allowed_domains", "classifier"):
        if name := getattr(settings, setting):
            path = Path(name).expanduser()
            if not path.is_file():
                raise RecipeError(
                    f"data.filters.{setting}: {path}: no such file",
                    f"relative paths start at {Path.cwd()}",
                )
            found.append(path)
    return found


def _masked_place(plain: str, masked: str, mask: Callable[[str], str]) -> str:
    """The first placeholder in its surroundings, which are masked too."""
    at = _first_difference(plain, masked)
    begin = len(mask(masked[:at]))
    return _around(mask(masked), begin)


def _difference(before: str, after: str) -> str:
    """The first place where a text changed, before and after."""
    at = _first_difference(before, after)
    return f"{_around(before, at)} → {_around(after, at)}"


def _around(text: str, at: int) -> str:
    return repr(text[max(0, at - _CONTEXT) : at + _CONTEXT])


def _first_difference(one: str, other: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
