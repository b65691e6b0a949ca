"""`make translate`: data, both systems, the judge, and the tables, for one or more languages.

Every stage leaves its result in the work folder; the neural one goes on where it was interrupted.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.translate import judge as judging
from examples.translate import neural, statistical
from examples.translate.catalogues import PACKAGES, Pair, own_pairs, package_pairs
from examples.translate.features import Candidates
from examples.translate.hybrid import Hybrid, by_length, by_rarest, chosen, repaired
from examples.translate.measure import (
    Quality,
    by_group,
    p_value,
    quality,
    sentence_scores,
    survival,
)
from examples.translate.splits import Splits, split

WORK = Path(__file__).with_name("work")
_PARTS = "pairs.json"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of the held-out parts is used."""

    tuning: int = 200
    judging: int = 1500
    testing: int = 2000
    steps: int | None = None
    """Of the neural recipe; its own when None."""


def data(language: str, work: Path, own: Path | None = None) -> Splits:
    """All pairs in their parts; of people's own file nine tenths to train on, the rest to test."""
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for package in PACKAGES:
        found = list(package_pairs(package, language, work / "packages"))
        print(
            f"data: {package.name.format(language=language):24} {package.split:5} {len(found):6,}"
        )
        parts[package.split] += found
    if own is not None:
        given = list(own_pairs(own))
        parts["train"] += given[: len(given) * 9 // 10]
        parts["test"] += given[len(given) * 9 // 10 :]
        print(f"data: {own}: {len(given):,} pairs")
    made = split(parts)
    print(
        f"data: en-{language}: {len(made.train):,} to train, {len(made.valid):,} to validate, "
        f"{len(made.test):,} to test; {made.same:,} held-out pairs left out as the same, "
        f"{made.similar:,} as near duplicates"
    )
    folder = work / language
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _PARTS).write_text(json.dumps(asdict(made)))
    return made


def scored(hybrid: Hybrid, pairs: Sequence[Pair]) -> tuple[list[Candidates], list[list[float]]]:
    """Both translations of each source, and their chrF++ against the target."""
    candidates = hybrid.candidates([pair.source for pair in pairs])
    wanted = [pair.target for pair in pairs]
    return candidates, [sentence_scores([c.texts[n] for c in candidates], wanted) for n in range(2)]


def build(language: str, splits: Splits, work: Path, sizes: Sizes) -> tuple[Hybrid, list[Pair]]:
    """Train all three; the hybrid, and the test pairs. Each held-out sentence serves one end."""
    folder, draw = work / language, random.Random(0)
    valid = draw.sample(splits.valid, min(len(splits.valid), sizes.tuning + sizes.judging))
    test = draw.sample(splits.test, min(len(splits.test), sizes.testing))
    began = time.monotonic()
    phrases = statistical.make(splits.train, valid[: sizes.tuning], folder / "statistical")
    print(f"statistical: {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    run = neural.train(splits.train, folder / "neural", sizes.steps)
    print(f"neural: {run}, {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    # A judge of anything has no meaning yet; its place is taken at once.
    hybrid = Hybrid(phrases, neural.Neural.of_run(run), None)  # type: ignore[arg-type]
    candidates, (one, other) = scored(hybrid, valid[sizes.tuning :])
    hybrid.judge = judging.train([hybrid.features(c) for c in candidates], one, other)
    hybrid.judge.save(folder / "judge.cbm")
    print(f"judge: {len(candidates):,} sentences, {time.monotonic() - began:.0f} s")
    return hybrid, test


def load(language: str, work: Path = WORK) -> Hybrid:
    """What `make translate` left. UsageError if a part is missing."""
    import longhaul
    from longhaul import UsageError

    folder = work / language
    if not (folder / "judge.cbm").exists():
        raise UsageError(f"{folder}: holds no translator for {language!r}", "run `make translate`")
    runs = folder / "neural" / "runs"
    run = longhaul.open(
        "recipe", runs_dir=runs, prepared_dir=folder / "neural" / "prepared", say=lambda _: None
    )
    return Hybrid(
        statistical.load(folder / "statistical"),
        neural.Neural.of_run(run),
        judging.load(folder / "judge.cbm"),
    )


def test(hybrid: Hybrid, pairs: Sequence[Pair]) -> dict[str, Any]:
    """All figures over the test pairs, printed and given back."""
    began = time.monotonic()
    candidates, (one, other) = scored(hybrid, pairs)
    rows = [hybrid.features(c) for c in candidates]
    probability = hybrid.judge.probability(rows)
    each = (time.monotonic() - began) / max(1, len(pairs))
    picked = [
        chosen(c, p, hybrid.judge.threshold)
        for c, p in zip(candidates, probability.tolist(), strict=True)
    ]
    raw = [c.texts[p == "neural"] for c, p in zip(candidates, picked, strict=True)]
    sources, wanted = [p.source for p in pairs], [p.target for p in pairs]
    made = {
        "statistical": [c.texts[0] for c in candidates],
        "neural": [c.texts[1] for c in candidates],
        "hybrid": raw,
        "oracle": [c.texts[b > a] for c, a, b in zip(candidates, one, other, strict=True)],
    }
    found = {name: quality(texts, wanted) for name, texts in made.items()}
    held, before = survival(sources, raw)
    _, after = survival(sources, [repaired(s, t) for s, t in zip(sources, raw, strict=True)])
    hybrid_scores = [b if p == "neural" else a for a, b, p in zip(one, other, picked, strict=True)]
    print_quality(found)
    print(f"neural chosen: {picked.count('neural'):,} of {len(picked):,}, from "
          f"{hybrid.judge.threshold:.2f}; {1000 * each:.0f} ms a sentence")  # fmt: skip
    print(f"placeholders: {before} of {held} sentences keep theirs, {after} once repaired")
    print("| judged | better | sentences |\n|---|---|---|")
    for mean, share, count in judging.calibration(probability, one, other):
        print(f"| {mean:.2f} | {share:.2f} | {count} |")
    groups = {
        "length": by_group(by_length(sources), one, other, hybrid_scores),
        "rarest word": by_group(
            by_rarest(sources, hybrid.statistical.word_counts), one, other, hybrid_scores
        ),
    }
    for name, table in groups.items():
        print(f"| {name} | sentences | statistical | neural | hybrid |\n|---|---|---|---|---|")
        for group, count, *means in table:
            print(f"| {group} | {count} | " + " | ".join(f"{m:.1f}" for m in means) + " |")
    for name, share in hybrid.judge.importances()[:10]:
        print(f"importance: {name} {share:.1f} %")
    return {
        "quality": {name: [q.bleu, q.chrf] for name, q in found.items()},
        "placeholders": [held, before, after],
        "groups": groups,
        "importances": hybrid.judge.importances(),
    }


def print_quality(found: dict[str, Quality]) -> None:
    """The table of the four, the test of the hybrid against its parts, the way to the oracle."""
    print("| system | BLEU | 95 % | chrF++ | 95 % |\n|---|---|---|---|---|")
    for name, q in found.items():
        (low, high), (least, most) = q.bleu_interval, q.chrf_interval
        print(f"| {name} | {q.bleu:.2f} | {low:.1f} to {high:.1f} | {q.chrf:.2f} | "
              f"{least:.1f} to {most:.1f} |")  # fmt: skip
    for part in ("statistical", "neural"):
        p = [
            p_value(found["hybrid"].bleu_samples, found[part].bleu_samples),
            p_value(found["hybrid"].chrf_samples, found[part].chrf_samples),
        ]
        print(f"hybrid above {part}: p = {p[0]:.3f} (BLEU), {p[1]:.3f} (chrF++)")
    best = max(found["statistical"].chrf, found["neural"].chrf)
    way = found["oracle"].chrf - best
    if way > 0:
        share = (found["hybrid"].chrf - best) / way
        print(f"of the way from the better part to the oracle: {100 * share:.0f} % (chrF++)")
    print("\n".join(found["hybrid"].signatures))


def picture(importances: Sequence[tuple[str, float]], path: Path) -> None:
    """The features that count most, as bars in an SVG."""
    rows = importances[:24]
    most = max((share for _, share in rows), default=1.0) or 1.0
    bars = [
        f'<text x="235" y="{20 * n + 15}" text-anchor="end">{name}</text>'
        f'<rect x="240" y="{20 * n + 3}" width="{300 * share / most:.0f}" height="14" '
        f'fill="#4477aa"/><text x="{246 + 300 * share / most:.0f}" y="{20 * n + 15}">'
        f"{share:.1f} %</text>"
        for n, (name, share) in enumerate(rows)
    ]
    height = 20 * len(rows) + 6
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{height}" '
        f'font-family="sans-serif" font-size="12">{"".join(bars)}</svg>\n'
    )


def main() -> None:
    """All stages for each language asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("languages", nargs="*", default=["de", "fr"])
    parser.add_argument("--data-only", action="store_true")
    parser.add_argument("--pairs", type=Path, help="your own, .tsv or .jsonl")
    parser.add_argument("--work", type=Path, default=WORK)
    for name, value in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    sizes = Sizes(asked.tuning, asked.judging, asked.testing, asked.steps)
    for language in asked.languages:
        began = time.monotonic()
        splits = data(language, asked.work, asked.pairs)
        if asked.data_only:
            continue
        hybrid, pairs = build(language, splits, asked.work, sizes)
        figures = test(hybrid, pairs)
        picture(figures["importances"], asked.work / language / "importances.svg")
        (asked.work / language / "figures.json").write_text(json.dumps(figures, indent=1))
        print(f"en-{language}: {time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        from longhaul import LonghaulError

        if not isinstance(error, LonghaulError):
            raise
        raise SystemExit(f"translate: {error}") from None
