"""A recipe's text looked at, source by source: reads, and leaves the judging to `findings.py`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from longhaul.config.recipe import Recipe
from longhaul.core.output import Say
from longhaul.core.units import short_bytes
from longhaul.data.dataset import MANIFEST, open_dataset
from longhaul.data.documents import Breakage
from longhaul.data.lint.facts import SourceFacts, facts_of
from longhaul.data.lint.findings import Finding, findings, leakage_finding
from longhaul.data.lint.leakage import SplitLeakage
from longhaul.data.lint.summary import SourceSummary
from longhaul.data.lint.tokens import TokenUse, token_findings, token_use
from longhaul.data.prepare import prepared_folder
from longhaul.data.sources import Corpus, locate
from longhaul.data.survey import Progress
from longhaul.data.verification import MEMORY, Verification

_FEWEST_BY_DOCUMENT = 200
"""Documents from which on `auto` holds out by document (`survey.py`)."""
_MOST_SHOWN = 120


@dataclass(frozen=True)
class LintReport:
    """What was found in one recipe's text."""

    name: str
    sources: tuple[SourceFacts, ...]
    skipped: Mapping[str, str]
    """By source, what reading left out; empty words where nothing was."""
    without_text: tuple[str, ...]
    """Sources that are tokens already."""
    findings: tuple[Finding, ...]
    tokens: tuple[TokenUse, ...]
    """Empty unless the recipe's data is prepared."""
    num_held_out: int
    """Documents that would be held out, of those compared for leakage."""

    def lines(self) -> Iterator[str]:
        """All of it, for a person."""
        for name in self.without_text:
            yield f"{name}: tokens already; there is no text to look at"
        for facts in self.sources:
            size = f"{facts.num_documents:,} documents, {short_bytes(facts.num_bytes)}"
            skipped = self.skipped[facts.name]
            yield f"{facts.name}: {size}" + (f"; {skipped}" if skipped else "")
            yield from self._found(facts.name)
        known = {facts.name for facts in self.sources}
        for name in dict.fromkeys(one.source for one in self.findings if one.source not in known):
            yield f"{name}:"
            yield from self._found(name)

    def _found(self, source: str) -> Iterator[str]:
        found = [finding for finding in self.findings if finding.source == source]
        if not found:
            yield "  nothing suspicious"
        for finding in found:
            yield f"  {finding.kind}: {finding.sentence}"
            for example in finding.examples:
                long = len(example) > _MOST_SHOWN
                yield f"      {example[: _MOST_SHOWN - 1]}…" if long else f"      {example}"
            yield f"    → {finding.remedy}"


def lint_recipe(recipe: Recipe, prepared: Path, say: Say) -> LintReport:
    """Read every source once. DataError if too much of one cannot be read, or if what was prepared
    does not match its checksums.
    """
    folder = _compared(recipe, prepared, say)
    corpora = [locate(s, recipe.seed, prepared / "downloads", say) for s in recipe.data.sources]
    held_out = recipe.data.held_out
    leakage = SplitLeakage(held_out.fraction) if held_out.by != "tail" else None
    skipped: dict[str, str] = {}
    summaries = [
        _read(corpus, recipe, leakage, skipped, say) for corpus in corpora if not corpus.token_files
    ]
    facts = facts_of(summaries)
    found = findings(facts)
    num_held_out = 0
    if leakage is not None:
        by_document = frozenset(
            one.name
            for one in facts
            if held_out.by == "document" or one.num_documents >= _FEWEST_BY_DOCUMENT
        )
        num_held_out, leaks = leakage.leaks(by_document)
        found += leakage_finding("all sources", num_held_out, leaks)
    uses: list[TokenUse] = []
    if folder is not None:
        dataset = open_dataset(folder)
        uses = token_use(dataset)
        found += token_findings(uses, dataset)
    without_text = tuple(corpus.name for corpus in corpora if corpus.token_files)
    return LintReport(
        recipe.name, tuple(facts), skipped, without_text, tuple(found), tuple(uses), num_held_out
    )


def _read(
    corpus: Corpus,
    recipe: Recipe,
    leakage: SplitLeakage | None,
    skipped: dict[str, str],
    say: Say,
) -> SourceSummary:
    breakage = Breakage(corpus.name, recipe.data.max_broken_fraction)
    summary = SourceSummary(corpus.name, leakage)
    progress = Progress(say, f"lint: {corpus.name}")
    for document in corpus.documents(breakage):
        summary.see(document)
        progress.at(summary.num_documents, summary.num_bytes)
    breakage.judge()
    skipped[corpus.name] = breakage.summary()
    return summary


def _compared(recipe: Recipe, prepared: Path, say: Say) -> Path | None:
    """The recipe's prepared folder, compared with its checksums; None if there is none."""
    folder = prepared_folder(recipe, prepared, say)
    if not (folder / MANIFEST).exists():
        return None
    verification = Verification(folder)  # all of it, whatever was compared before
    size = short_bytes(verification.left_bytes)
    verification.compare_all((folder / MEMORY,))
    say(f"{folder}: {verification.num_files} files ({size}) match their checksums")
    return folder
