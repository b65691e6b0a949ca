"""How large the house is, and how many of its files a start touches.

    python -m benchmarks.figures

Lines and files by room of `src/longhaul`, subclasses of `Trainer`, and the files from `longhaul
train` to the first forward pass of a tiny run: those on the way down (whose functions are on the
stack then, in the command, its supervisor and the worker that it forked), and all of which a
function was entered until then.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from inspect import CO_OPTIMIZED  # of functions; modules and bodies of classes lack it
from pathlib import Path
from types import FrameType

from benchmarks.common import at_most, figure, write_results

SOURCE = Path(__file__).parents[1] / "src" / "longhaul"
FIRST = SOURCE / "model" / "gpt.py"
RUN = ("longhaul", "train", "drill", "--set", "train.steps=4", "--set",
       "optim.schedule.warmup_steps=1", "--device", "cpu")  # fmt: skip
SHORT = 100
"""Lines of a small file, at most."""
LATER = (
    "board/card.py", "board/forecast.py", "board/live_run.py",
    "board/node_health.py", "board/node_table.py", "board/nodes.py", "board/outlook.py",
    "board/preview.py", "board/profile.py", "board/samples.py", "board/view.py",
    "cli/board.py", "cli/evaluate.py", "cli/exchange.py", "cli/mirror.py", "cli/study.py",
    "board/duplicates.py", "board/lint.py", "board/value.py", "cli/corpus.py", "cli/dedup.py",
    "cli/lint.py", "cli/value.py", "config/corpus.py", "data/adapters", "data/byte_pairs.py",
    "data/clean", "data/contamination.py", "data/corpus", "data/encoding.py", "data/forecast.py",
    "data/lint", "data/mixture.py", "data/one_pass.py", "data/readers", "data/removed.py",
    "logbook/mixture_changes.py", "plan/value", "run/duplicates.py", "run/train/mixture.py",
    "run/value",
    "cli/plan.py", "core/devices.py", "plan/bill.py", "plan/calibration.py", "plan/layouts.py",
    "plan/practice.py", "plan/step_time.py", "run/plan",
    "board/simulation.py", "board/simulation_figures.py", "cli/simulate.py",
    "plan/failure_rates.py", "plan/simulate", "run/simulate.py",
    "interop", "model/float8.py", "plan/ladder", "plan/profile.py", "plan/roofline.py",
    "plan/surprises.py", "plan/timeline.py", "run/board", "run/by_layer.py", "run/elsewhere.py",
    "run/evaluate", "run/export.py", "run/ladder", "run/mirror.py", "run/opened.py",
    "run/profile", "run/started.py", "store/part.py", "store/remote_run.py", "store/scores.py",
    "supervise/sidecars.py",
)  # fmt: skip
"""What moved in after the house was measured for its bars."""


def subclasses_of(name: str) -> list[str]:
    """Names of the classes of the package that have `name` among their bases, however far."""
    bases: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).split(".")[-1] for base in node.bases}
    found: set[str] = {name}
    while more := {own for own, its in bases.items() if its & found} - found:
        found |= more
    return sorted(found - {name})


def start_of_a_run() -> tuple[list[str], list[str]]:
    """The files on the way down to the first forward pass, in order, and all that were entered."""
    with tempfile.TemporaryDirectory() as folder:
        module = [sys.executable, "-m", "benchmarks.figures", "--traced", folder]
        done = subprocess.run(
            [*module, *RUN], cwd=SOURCE.parents[1], capture_output=True, text=True
        )
        path = Path(folder, "touched.json")
        if not path.exists():
            raise SystemExit(f"no forward pass was seen:\n{done.stdout}{done.stderr}")
        touched = json.loads(path.read_text())
        return touched["way"], touched["entered"]


def train_traced(folder: Path, argv: list[str]) -> None:
    """Run a command in `folder`, and write down which files are entered; forks go on with it."""
    entered: dict[str, None] = {}
    source, first = f"{SOURCE}{os.sep}", str(FIRST)

    def frames(frame: FrameType | None) -> list[FrameType]:
        return [] if frame is None else [*frames(frame.f_back), frame]

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        name = code.co_filename
        if event != "call" or not name.startswith(source) or not code.co_flags & CO_OPTIMIZED:
            return
        here = name == first and code.co_name == "forward"
        if name in entered and not here:
            return
        ours = [f.f_code for f in frames(frame) if f.f_code.co_filename.startswith(source)]
        if any(not code.co_flags & CO_OPTIMIZED for code in ours):
            return  # while a module is imported
        entered[name] = None
        if here:
            sys.setprofile(None)
            way = list(dict.fromkeys(code.co_filename for code in ours))
            text = json.dumps({"way": way, "entered": list(entered)}).replace(source, "")
            (folder / "touched.json").write_text(text)

    from longhaul.cli.entry import main

    os.chdir(folder)
    sys.argv = argv
    sys.setprofile(enter)
    main()


def main() -> None:
    """Print the figures, and write them down."""
    lines = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    rooms = Counter(path.relative_to(SOURCE).parts[0] for path in lines)
    print(f"{'room':<12} files  lines")
    for room, files in sorted(rooms.items()):
        held = sum(n for path, n in lines.items() if path.relative_to(SOURCE).parts[0] == room)
        print(f"{room:<12} {files:>5} {held:>6,}")
    print(f"{'in all':<12} {len(lines):>5} {sum(lines.values()):>6,}")
    later = {path: n for path, n in lines.items()
             if any(path.is_relative_to(SOURCE / part) for part in LATER)}  # fmt: skip
    of_run = sum(n for path, n in lines.items()
                 if path.is_relative_to(SOURCE / "run") and path not in later)  # fmt: skip
    small = sum(n <= SHORT for n in lines.values())
    subclasses = subclasses_of("Trainer")
    way, entered = start_of_a_run()
    print("\non the way from `longhaul train` to the first forward pass:")
    print("\n".join(f"  {name}" for name in way))
    print("entered by then, by room: ", end="")
    by_room = Counter(Path(name).parts[0] for name in entered)
    print(", ".join(f"{room} {count}" for room, count in by_room.most_common()))
    bars = [
        figure("lines of src", sum(lines.values()), "lines"),
        at_most(
            "lines of src without what moved in later",
            sum(lines.values()) - sum(later.values()),
            "lines",
            50_000,
            f"the profiler, the ladder, float8, the board: {sum(later.values()):,} lines",
        ),
        at_most("lines of run/ without it", of_run, "lines", 8_000),
        figure("files", len(lines), "files"),
        at_most("files without it", len(lines) - len(later), "files", 300),
        figure(f"files of {SHORT} lines or less", small, "files"),
        at_most("subclasses of Trainer", len(subclasses), "classes", 0, ", ".join(subclasses)),
        at_most("files on the way to the first forward pass", len(way), "files", 12),
        figure("files entered by the first forward pass", len(entered), "files"),
    ]
    write_results("figures", bars, "make figures")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--traced"]:
        train_traced(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
