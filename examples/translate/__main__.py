"""`python -m examples.translate "text"`: both translations, the choice, and why."""

import argparse
import sys
import time
from pathlib import Path

from examples.translate.hybrid import Hybrid
from examples.translate.make import WORK, load

from longhaul import LonghaulError, UsageError


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or that of the error that is printed."""
    parser = argparse.ArgumentParser(prog="python -m examples.translate", description=__doc__)
    parser.add_argument("text", nargs="?", help="English; `-` reads standard input")
    parser.add_argument("--to", default="de", help="language, as made by `make translate`")
    parser.add_argument("--batch", type=Path, help="translate each line of a file")
    parser.add_argument("--page", action="store_true", help="serve a page on this machine")
    parser.add_argument("--port", type=int, default=8017)
    parser.add_argument("--work", type=Path, default=WORK)
    asked = parser.parse_args(arguments)
    try:
        if asked.text is None and asked.batch is None and not asked.page:
            raise UsageError("nothing to translate", "give a text, --batch FILE, or --page")
        hybrid = load(asked.to, asked.work)
        if asked.page:
            from examples.translate.page import serve

            serve(hybrid, asked.port)
        elif asked.batch is not None:
            _batch(hybrid, asked.batch)
        else:
            text = sys.stdin.read() if asked.text == "-" else asked.text
            _show(hybrid, text)
    except LonghaulError as error:
        print(f"translate: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def _show(hybrid: Hybrid, text: str) -> None:
    for one in hybrid.translate(text):
        print(one.text)
        print(f"  statistical  {one.statistical}")
        print(f"  neural       {one.neural}")
        print(f"  chosen       {one.chosen}: {100 * one.probability:.0f} % for the neural one")
        for name, value, moved in one.reasons:
            side = "neural" if moved > 0 else "statistical"
            print(f"               {name} = {value:.2f}, {abs(moved):.2f} towards {side}")
        print(f"  took         {1000 * one.seconds:.0f} ms")


def _batch(hybrid: Hybrid, path: Path) -> None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "give a file of text") from None
    began = time.perf_counter()
    for line in lines:
        try:
            print(" ".join(one.text for one in hybrid.translate(line)))
        except UsageError:  # a line without a word stays as it is
            print(line)
    took = time.perf_counter() - began
    print(f"{len(lines):,} lines, {1000 * took / max(1, len(lines)):.0f} ms each", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
