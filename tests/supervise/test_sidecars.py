"""Processes beside a run: whatever they do, the supervisor goes on."""

import sys
import time

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.sidecars import Sidecar, Sidecars, sidecars_of

WITHIN_S = 20.0
SAYS_HOW_IT_ENDED = (
    "import sys; print('there', flush=True); open(sys.argv[1], 'w').write(repr(sys.stdin.read()))"
)


class Skipping(RealClock):
    """A real clock that can be put forward."""

    ahead = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead


def sidecar(tmp_path, script, name="one"):
    path = tmp_path / "there" / f"{name}.log"
    words = (sys.executable, "-S", "-c", script, str(tmp_path / f"{name}.said"))
    return Sidecar(name, words, path)


def look_until(sidecars, wanted):
    """What is said until there are so many lines."""
    lines, deadline = [], time.monotonic() + WITHIN_S
    while len(lines) < wanted:
        assert time.monotonic() < deadline, f"only {lines} came"
        lines += sidecars.look()
        time.sleep(0.01)
    return lines


@pytest.mark.parametrize("how", ["finished", "raised", "died"])
def test_it_learns_how_the_supervisor_ended(tmp_path, how):
    clock, said = RealClock(), tmp_path / "one.said"
    sidecars = Sidecars((sidecar(tmp_path, SAYS_HOW_IT_ENDED),), clock)
    try:
        with sidecars:
            assert look_until(sidecars, 1) == ["one: there"]
            if how == "finished":
                sidecars.ended_with(ExitCode.FINISHED)
            if how == "raised":
                raise NeedsPerson("the folder is gone")
    except NeedsPerson:
        pass
    assert said.read_text() == {"finished": "'0\\n'", "raised": "'17\\n'", "died": "''"}[how]


def test_one_that_dies_is_told_once_and_comes_again_later(tmp_path):
    clock = Skipping()
    script = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit('broken')"
    with Sidecars((sidecar(tmp_path, script),), clock) as sidecars:
        (line,) = look_until(sidecars, 1)
        assert "ended with 1" in line
        for _ in range(50):
            assert sidecars.look() == []
        assert (tmp_path / "one.said").read_text() == "x"
        clock.ahead, deadline = 601.0, time.monotonic() + WITHIN_S
        while (tmp_path / "one.said").read_text() != "xx":
            assert time.monotonic() < deadline
            assert sidecars.look() == []
    assert (tmp_path / "there" / "one.log").read_text() == "broken\n" * 2


@pytest.mark.parametrize(("code", "words"), [(2, "tensorboard is not installed"), (0, "leaving")])
def test_one_that_leaves_on_purpose_stays_away(tmp_path, code, words):
    clock = Skipping()
    script = f"import sys; print({words!r}); sys.exit({code})"
    with Sidecars((sidecar(tmp_path, script),), clock) as sidecars:
        assert look_until(sidecars, 1) == [f"one: {words}"]
        deadline = time.monotonic() + WITHIN_S
        while sidecars.descriptors() and time.monotonic() < deadline:
            assert sidecars.look() == []
        clock.ahead = 10_000.0
        assert sidecars.look() == []
        assert not sidecars.descriptors()


def test_one_that_hangs_and_one_that_cannot_start_keep_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("longhaul.supervise.sidecars._LEAVES_WITHIN_S", 0.1)
    deaf = sidecar(tmp_path, "import time; print('there', flush=True); time.sleep(60)", "deaf")
    missing = Sidecar("missing", ("/no/such/program",), tmp_path / "missing.log")
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    nowhere = Sidecar("nowhere", deaf.command, in_the_way / "x" / "nowhere.log")
    began = time.monotonic()
    with Sidecars((deaf, missing, nowhere), RealClock()) as sidecars:
        lines = look_until(sidecars, 3)
        (process,) = sidecars._there.values()
    assert time.monotonic() - began < WITHIN_S
    assert {line.partition(":")[0] for line in lines} == {"deaf", "missing", "nowhere"}
    process.kill()
    process.wait()


def test_one_that_says_too_much_does_not_fill_the_memory(tmp_path):
    script = "import sys; sys.stdout.write('x' * 3_000_000)\nwhile True: pass"
    with Sidecars((sidecar(tmp_path, script),), RealClock()) as sidecars:
        for _ in range(100):
            sidecars.look()
            assert all(len(rest) <= 65_536 for rest in sidecars._said.values())
            time.sleep(0.002)
        (process,) = sidecars._there.values()
        process.kill()
        process.wait()


def test_only_what_is_asked_for_is_started(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert sidecars_of(load_recipe("drill").recipe, folder) == ()
    settings = load_recipe("drill", [
        'monitor.trackers=["wandb", "tensorboard", "wandb"]', "monitor.metrics_port=9400",
        'alert.command=["mail", "me"]',
    ]).recipe  # fmt: skip
    found = sidecars_of(settings, folder)
    assert [one.command[-1] for one in found] == ["wandb", "tensorboard", "prometheus", "alert"]
    assert "mail" not in str(found), "what is called is read from the run, where it was trusted"
