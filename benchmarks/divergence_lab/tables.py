"""The lab's figures as tables, for a terminal or for `docs/measurements/judgement.md`.

Enters: scores. Leaves: text. Never knows: how a figure came about.
"""

from collections import Counter
from collections.abc import Sequence

from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.score import (
    Judged,
    Score,
    detector_scores,
    lead_of,
    score,
    wilson,
)

Rows = list[tuple[str, ...]]


def overall(parts: dict[str, Sequence[Judged]]) -> Rows:
    """One column a part of the split."""
    scores = {name: score(judged) for name, judged in parts.items()}
    lines: list[tuple[str, str, str]] = [
        ("runs that came to harm", "harmed", ",d"),
        ("healthy runs", "healthy_runs", ",d"),
        ("healthy steps", "healthy_steps", ",d"),
        ("recall", "recall", ".3f"),
        ("recall of kind", "recall_of_kind", ".3f"),
        ("precision of alarms", "precision", ".3f"),
        ("false alarms per 10,000 healthy steps", "false_alarms", ".2f"),
        ("median lead, steps", "lead", ".0f"),
        ("median lead, share of the run", "lead_share", ".2f"),
    ]
    rows: Rows = [("", *scores)]
    rows += [
        (label, *(_shown(part, field, spec) for part in scores.values()))
        for label, field, spec in lines
    ]
    return rows


def _shown(part: Score, field: str, spec: str) -> str:
    return format(getattr(part, field), spec)


def by_mechanism(judged: Sequence[Judged]) -> Rows:
    """One row a way to go wrong."""
    rows: Rows = [("way to go wrong", "runs", "became", "found", "of its kind", "median lead")]
    for mechanism, cause in CAUSES.items():
        mine = [j for j in judged if j.made.mechanism == mechanism]
        if not mine:
            continue
        harmed = [j for j in mine if j.made.truth.harmed]
        outcomes = Counter(j.made.truth.outcome for j in mine)
        rows.append((
            cause.says + (" (slow)" if cause.slow else ""),
            str(len(mine)),
            ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()),
            f"{sum(j.found() is not None for j in harmed)}/{len(harmed)}",
            f"{sum(j.found(j.accepted) is not None for j in harmed)}/{len(harmed)}",
            format(lead_of(harmed), ".0f"),
        ))  # fmt: skip
    return rows


def by_detector(judged: Sequence[Judged]) -> Rows:
    """One row a kind of finding."""
    rows: Rows = [("kind of finding", "alarms", "recall of its own runs", "of", "precision",
                   "false alarms per 10,000 healthy steps")]  # fmt: skip
    for name, figures in detector_scores(judged).items():
        rows.append((
            name,
            str(figures.alarms),
            format(figures.recall, ".2f"),
            str(figures.recall.of),
            format(figures.precision, ".2f"),
            format(figures.false_alarms, ".2f"),
        ))  # fmt: skip
    return rows


def by_disturbance(judged: Sequence[Judged]) -> Rows:
    """One row a harmless disturbance."""
    rows: Rows = [("harmless disturbance", "runs", "runs without an alarm")]
    healthy = [j for j in judged if j.made.mechanism == "healthy" and j.made.truth.healthy]
    for name in ("none", *sorted({h for j in healthy for h in j.made.harmless})):
        mine = [j for j in healthy if name in (j.made.harmless or ("none",))]
        quiet = sum(not j.alarms for j in mine)
        rows.append((name, str(len(mine)), format(wilson(quiet, len(mine)), ".3f")))
    return rows


def relabelled(judged: Sequence[Judged]) -> str:
    """What did not become what was meant."""
    meant = [j for j in judged if j.made.mechanism != "healthy"]
    in_band = [j for j in meant if j.made.truth.outcome == "in-band"]
    alarmed = sum(any(f.step >= j.made.truth.onset for f in j.alarms) for j in in_band)
    counts = Counter(j.made.truth.outcome for j in meant if not j.made.truth.harmed)
    unplanned = sum(j.made.truth.outcome == "unplanned" for j in judged)
    told = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()) or "none"
    return (
        f"Of {len(meant)} runs with a cause these did not come to harm: {told}; "
        f"{alarmed} of the {len(in_band)} that stayed in band have an alarm after the onset. "
        f"Runs without a cause that came to harm: {unplanned}."
    )


def as_text(rows: Rows, markdown: bool) -> str:
    """A table for people."""
    if markdown:
        head, *body = rows
        lines = [head, ("---",) * len(head), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
