"""`longhaul data dedup`: a recipe's duplicates found, told in short, on a page, and one by one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longhaul.board.duplicates import PAGE, write_page
from longhaul.config.recipe import Recipe
from longhaul.core.errors import UsageError
from longhaul.core.output import Say
from longhaul.core.units import count
from longhaul.data.corpus.dedup.duplicates import DedupStage
from longhaul.data.corpus.dedup.findings import Findings
from longhaul.data.corpus.engine import Resources
from longhaul.data.corpus.refine import Refinery
from longhaul.data.corpus.survivors import part_id
from longhaul.data.prepare import STAGES
from longhaul.data.sources import locate

_MOST_SIZES = 8


def find_duplicates(recipe: Recipe, home: Path, resources: Resources, say: Say) -> Findings:
    """What the recipe's text sources repeat; every step is found again if it was made before.

    `home` holds prepared folders. Sources of tokens are left out, as they have no text to compare.

    Raises:
        DataError: a source is missing, or broken beyond the limit.
        UsageError: the recipe looks for no duplicates, or has no text.
    """
    data = recipe.data
    if not data.drop_exact_duplicates and data.dedup.threshold is None:
        raise UsageError(
            "data.dedup.threshold: the recipe looks for no duplicates",
            "add --set data.dedup.threshold=0.8, or --set data.drop_exact_duplicates=true",
        )
    corpora = []
    for source in data.sources:
        corpus = locate(source, recipe.seed, home / "downloads", say)
        if corpus.token_files:
            say(f"data: {corpus.name}: tokens already; there is no text to compare")
        else:
            corpora.append(corpus)
    if not corpora:
        raise UsageError("data.sources: all of them are tokens", "give a recipe with text")
    stages = home / STAGES
    stages.mkdir(parents=True, exist_ok=True)
    parts = tuple(
        Refinery(corpora, data, None, recipe.seed, stages / "x", resources, say).deduplicated()
    )
    names = tuple(map(part_id, parts))
    stage = DedupStage(
        parts, names, data.dedup, data.drop_exact_duplicates, (), stages, resources, say
    )
    folders = (part.path.parent.name for part in parts)
    # Behind the source's name stand digits for what decides how it is read.
    sources = tuple(folder.rpartition("-")[0] for folder in folders)
    return Findings(stage.folder, parts, sources)


def tell(recipe: str, found: Findings, page: Path | None) -> Iterator[str]:
    """Write report and page, and say them in short. UsageError if the page cannot be written."""
    report = found.write_report()
    page = found.folder / PAGE if page is None else page
    write_page(page, recipe, report)
    yield from in_short(report)
    yield f"report in {page}"


def in_short(report: Mapping[str, Any]) -> Iterator[str]:
    """The report in a few lines."""
    dropped = report["exact"] + report["near"]
    share = dropped / max(1, report["documents"])
    yield (
        f"{count(dropped, 'document')} of {report['documents']:,} dropped ({share:.2%}): "
        f"{count(report['exact'], 'exact duplicate')}, "
        f"{count(report['near'], 'near-duplicate')}; {count(report['clusters'], 'cluster')}"
    )
    for row in report["by_source"]:
        yield (
            f"  from {row['dropped']}, like one of {row['kept']}: {row['exact']:,} exact, "
            f"{row['near']:,} near"
        )
    sizes = sorted(((int(size), times) for size, times in report["sizes"].items()), reverse=True)
    if sizes:
        words = [f"{times:,} of {size:,}" for size, times in sizes[:_MOST_SIZES]]
        more = ", …" if len(sizes) > _MOST_SIZES else ""
        yield f"  largest clusters: {', '.join(words)} documents{more}"
