"""All benchmarks of a CPU, one after the other, and one page of what they found.

    python -m benchmarks.cpu [--peer NANOGPT --text TEXT] [--page]

Start-up, reading batches, what monitoring costs, nanoGPT's shape and the race against it, and what
each idea of the speedrun buys. Those that need nanoGPT's checkout or its text are left out without
them. The page `results/cpu.md` shows what `results/` holds now, and so does the table of
`docs/performance.md`; `--page` only writes these two.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, Bar, page, rewrite_block
from benchmarks.vs_nanogpt import RACE_BARS

TITLES = {
    "quickstart": "The newcomer's run, and start-up",
    "loader": "Reading batches",
    "monitor_cost": "What monitoring costs",
    "save_stall": "What a save costs",
    "vs_nanogpt": "nanoGPT's shape",
    "race-bf16": "The race in bf16",
    "race-bf16-amx": "The race in bf16, with AMX",
    "race-float32": "The race in float32",
    "step-speedrun-shakespeare": "The bare step of the speedrun",
    "ablate": "What each idea of the speedrun buys",
}
"""By name of the benchmark."""
_FILES = {"ablate": "ablate-speedrun-shakespeare"}
"""In results/, where a file is called otherwise."""
DOCUMENT = ROOT / "docs" / "performance.md"


@dataclass(frozen=True)
class Row:
    """Of the document's table."""

    what: str
    file: str
    """In results/."""
    bars: tuple[str, ...]
    """Names of the file's figures; the first one's bar is the row's."""
    figure: str
    """Format of their values."""
    beside: str = ""
    bar: float | None = None
    """At most, where it is no longer the one that the file was measured against."""

    def cells(self, body: Mapping[str, Any] | None) -> list[str]:
        """From what the file holds; None: it is not there."""
        by_name = {bar["name"]: bar for bar in ([] if body is None else body["bars"])}
        found = [by_name[name] for name in self.bars if name in by_name]
        values = [one["value"] for one in found]
        if body is None or len(found) < len(self.bars) or None in values:
            return [self.what, "not measured", "", "", self.beside]
        bar, met = found[0]["bar"], found[0]["met"]
        if self.bar is not None:
            bar, met = self.bar, values[0] <= self.bar
        wanted = "–" if bar is None else f"{bar:.3g} {found[0]['unit']}"
        wanted += ", not met" if met is False else ""
        on = f"{body['device']['cpu']}, {body['date'][:10]}"
        return [self.what, self.figure.format(*values), wanted, on, self.beside]


def _race(what: str, file: str, beside: str = "") -> Row:
    compute = file.split("-")[1]
    names = (
        f"wall time over nanoGPT's, in {compute}", "whole process, ours (median)",
        "whole process, nanoGPT (median)", "loss, ours (median)", "loss, nanoGPT (median)",
    )  # fmt: skip
    return Row(
        what, file, tuple(f"race: {name}" for name in names),
        "{:.3f} × ({:.1f} s against {:.1f} s; {:.3f} against {:.3f})", beside, RACE_BARS[compute],
    )  # fmt: skip


ROWS = (
    _race(
        "the race: `speedrun-shakespeare` to a lower loss than nanoGPT's, whole process over its "
        "own, in bf16 with AMX",
        "race-bf16-amx",
        "nanoGPT's README: 3 min to 1.88 on a laptop; a first sketch of these ideas: 14 s to 1.91",
    ),
    _race("the same in bf16 without AMX", "race-bf16"),
    _race("the same without bf16 instructions, in float32", "race-float32"),
    Row(
        "`quickstart` to its former loss, whole run over the former recipe's", "quickstart",
        ("whole run over the former recipe's",), "{:.2f} ×",
    ),
    Row(
        "tokens/s at nanoGPT's shape over its own: bf16, float32", "vs_nanogpt",
        ("tokens/s, bf16 over nanoGPT's", "tokens/s, float32 over nanoGPT's",
         "loss, bf16 − nanoGPT's", "loss, float32 − nanoGPT's"),
        "{:.2f} ×, {:.2f} × (losses {:+.4f}, {:+.4f} nats)",
    ),
    Row(
        "share of a large product that the speedrun's step reaches: float32, bf16 (eager)",
        "step-speedrun-shakespeare",
        ("float32, eager: share of a large matrix product",
         "bf16, eager: share of a large matrix product"), "{:.3g} %, {:.3g} %",
    ),
    Row(
        "gauges every 25 steps, share of a step", "monitor_cost",
        ("quickstart, CPU: cost every 25 steps",), "{:.2f} %", "NVRx: < 1 %",
    ),
    Row(
        "a save keeps training waiting, of one in the foreground: 40 MB, 1.5 GB", "save_stall",
        ("quickstart, CPU: stall of a save", "gpt2-124m, CPU: stall of a save"),
        "{:.2f} %, {:.2f} %", "PyTorch's asynchronous one: 4.2 %",
    ),
    Row("share of a step that waits for data", "quickstart", ("step waits for data",), "{:.2f} %"),
    Row(
        "reading batches over the tokens/s of the fastest published step on one GPU: "
        "`gpt2-124m`'s, `speedrun-124m`'s shape", "loader",
        ("gpt2-124m: reading over the fastest step",
         "speedrun-124m: reading over the fastest step"),
        "{:.0f} ×, {:.0f} ×", "238,000 tokens/s, one GH200",
    ),
    Row(
        "start to first step, text prepared", "quickstart", ("start to first step, text prepared",),
        "{:.1f} s",
    ),
    Row("`longhaul --help`", "quickstart", ("longhaul --help (median of 5)",), "{:.2f} s"),
)  # fmt: skip


def document_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The document's table of what results/ holds."""
    lines = ["| what | figure | bar | on | beside it |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row.cells(found.get(row.file)))} |" for row in ROWS]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", type=Path, help="folder of nanoGPT")
    parser.add_argument("--text", type=Path, help="tiny Shakespeare")
    parser.add_argument("--page", action="store_true", help="only the page")
    given = parser.parse_args()
    failed = [] if given.page else run_all(commands(given.peer, given.text))
    (RESULTS / "cpu.md").write_text(as_page(stored()))
    print(f"\nwritten to {(RESULTS / 'cpu.md').relative_to(ROOT)}")
    rewrite_block(DOCUMENT, "cpu", document_table(stored()))
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def commands(peer: Path | None, text: Path | None) -> dict[str, list[str]]:
    """Module and arguments of each benchmark that can be run with these."""
    own: dict[str, list[str]] = {"quickstart": [], "loader": [], "monitor_cost": []}
    named = [] if text is None else ["--text", str(text.resolve())]
    if peer is not None and text is not None:
        own["vs_nanogpt"] = ["--peer", str(peer.resolve()), *named]
    if text is not None:
        own["ablate"] = [*named, "--again"]
    return own


def run_all(wanted: Mapping[str, list[str]]) -> list[str]:
    """Run them; the names of those that failed, after which the others go on."""
    left_out = [name for name in ("vs_nanogpt", "ablate") if name not in wanted]
    if left_out:
        print(f"left out: {', '.join(left_out)} (give PEER=path/to/nanoGPT TEXT=path/to/input.txt)")
    failed = []
    for name, arguments in wanted.items():
        print(f"\n=== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    return failed


def stored() -> dict[str, dict[str, Any]]:
    """What results/ holds, by name."""
    paths = {name: RESULTS / f"{_FILES.get(name, name)}.json" for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def as_page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a section for each; what was never measured is named."""
    sections = {}
    for name, body in found.items():
        device, versions = body["device"], body["versions"]
        where = (
            f"`{body['command']}`, {body['date'][:10]}, commit {body['commit']}, torch "
            f"{versions['torch']}, {device['cpu']}, {device['usable_cores']} cores"
        )
        sections[TITLES[name]] = (where, [Bar(**row) for row in body["bars"]])
    left = ", ".join(f"`{name}`" for name in TITLES if name not in found)
    said = f"Not measured: {left}." if left else ""
    return page("longhaul on a CPU", "make bench-cpu", sections, said)


if __name__ == "__main__":
    main()
