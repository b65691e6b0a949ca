"""`make test-mutants`: bugs planted one at a time, each of which a named test must find.

Each row of `mutants.toml` has slipped through the tests once. The sources are copied, the bug is
planted in the copy, and the test is run against it; it must pass without the bug and fail with it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mutants.toml")
_MOST_S = 300.0


@dataclass(frozen=True)
class Mutant:
    """One bug: in `file`, `old` becomes `new`; `test` finds it."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def plant(self, root: Path) -> None:
        """Put the bug into a copy of the sources."""
        path = root / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {self.file} has changed; mend mutants.toml"
        path.write_text(text.replace(self.old, self.new))


def mutants() -> list[Mutant]:
    """All rows of the table."""
    return [Mutant(**row) for row in tomllib.loads(TABLE.read_text())["mutant"]]


def passes(test: str, sources: Path) -> bool:
    """Whether a test passes with the package read from `sources`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(sources)}, timeout=_MOST_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode not in (0, 1):  # collected nothing, or pytest itself failed
        raise SystemExit(f"{test}: cannot be run\n{ended.stdout}{ended.stderr}")
    return ended.returncode == 0


def main() -> int:
    """Plant each bug in turn; 1 if a test does not find its bug, or fails without it."""
    wrong = 0
    rows = mutants()
    healthy = {test: passes(test, ROOT / "src") for test in dict.fromkeys(m.test for m in rows)}
    for mutant in rows:
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(ROOT / "src", Path(copy, "src"))
            mutant.plant(Path(copy))
            found = not passes(mutant.test, Path(copy, "src"))
        verdict = "found" if found else "NOT FOUND"
        if not healthy[mutant.test]:
            verdict = "fails without it"
        wrong += verdict != "found"
        print(f"{verdict:16}  {mutant.name}", flush=True)
    print(f"{len(rows) - wrong} of {len(rows)} planted bugs are found by their tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
