"""`make test-mutants`: bugs planted one at a time, each of which a named test must find.

Each row of `mutants.toml` has slipped through the tests once. Sources and tests are copied, the bug
is planted in the copy, and the test is run there; it must pass without the bug and fail with it.
`python tests/mutants/run.py WORD…` plants only those whose name has one of the words.
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


def copied(root: Path) -> Path:
    """A copy of the repository in `root`; folders but those of sources and tests are links."""
    for there in ROOT.iterdir():
        if there.name in ("src", "tests"):
            shutil.copytree(there, root / there.name)
        elif there.is_dir():
            (root / there.name).symlink_to(there)
        else:
            shutil.copy2(there, root / there.name)
    return root


def passes(test: str, root: Path) -> bool:
    """Whether a test passes with the package and the tests of `root`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", test]
    try:
        ended = subprocess.run(
            command, cwd=root, env=os.environ | {"PYTHONPATH": str(root / "src")}, timeout=_MOST_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # some bugs are that a command does not end
        return False
    if ended.returncode not in (0, 1):  # collected nothing, or pytest itself failed
        raise SystemExit(f"{test}: cannot be run\n{ended.stdout}{ended.stderr}")
    return ended.returncode == 0


def main(words: list[str]) -> int:
    """Plant each bug in turn; 1 if a test does not find its bug, or fails without it."""
    wrong = 0
    rows = [row for row in mutants() if not words or any(word in row.name for word in words)]
    healthy = {test: passes(test, ROOT) for test in dict.fromkeys(m.test for m in rows)}
    for mutant in rows:
        with tempfile.TemporaryDirectory() as temporary:
            copy = copied(Path(temporary))
            mutant.plant(copy)
            found = not passes(mutant.test, copy)
        verdict = "found" if found else "NOT FOUND"
        if not healthy[mutant.test]:
            verdict = "fails without it"
        wrong += verdict != "found"
        print(f"{verdict:16}  {mutant.name}", flush=True)
    print(f"{len(rows) - wrong} of {len(rows)} planted bugs are found by their tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
