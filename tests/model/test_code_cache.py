import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from longhaul.model import code_cache
from longhaul.model.code_cache import (
    VARIABLES,
    forget_old_code,
    keep_code,
    keep_no_more,
    leave_full_cache,
)

FACTS = {"version": "2.13.0", "gpu": "none"}


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run's folder; nothing in the environment, and nothing left there."""
    monkeypatch.setattr(code_cache, "_set", {})
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    yield folder
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def kept_in(run: Path, facts: dict[str, str] = FACTS) -> Path:
    keep_code(run / "compiled", run / "run.json", facts)
    places = [Path(os.environ[name]) for name in VARIABLES]
    assert [place.name for place in places] == list(VARIABLES.values())
    assert len({place.parent for place in places}) == 1
    assert places[0].parent.parent == (run / "compiled").resolve()
    return places[0].parent


def test_every_start_of_a_run_finds_the_code_of_its_kind_of_machine(run: Path) -> None:
    first = kept_in(run)
    (first / "inductor" / "fxgraph").mkdir(parents=True)
    assert kept_in(run, FACTS | {"gpu": "another"}) != first
    assert kept_in(run) == first
    assert "from before" in keep_code(run / "compiled", run / "run.json", FACTS)


def test_code_in_a_copy_of_a_run_is_not_run(run: Path) -> None:
    """A stranger may have made it."""
    first = kept_in(run)
    copy = Path(shutil.copytree(run, run.parent / "copy"))
    assert (copy / "compiled" / first.name).is_dir()
    assert kept_in(copy).name != first.name


def test_what_the_compiler_has_set_at_its_import_does_not_hold(run: Path) -> None:
    shown = (
        "import os, torch._inductor.config; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR', ''))"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    if value := done.stdout.strip():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = value
    kept_in(run)


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_has_set_holds(run: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/elsewhere")
    assert name in keep_code(run / "compiled", run / "run.json", FACTS)
    assert [os.environ.get(each) for each in VARIABLES if each != name] == [None]
    assert os.environ[name] == "/elsewhere"
    assert not (run / "compiled").exists()


def test_a_place_that_takes_nothing_is_not_used(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "compiled").write_text("no folder")
    assert "not kept" in keep_code(run / "compiled", run / "run.json", FACTS)
    (run / "compiled").unlink()
    for about, disk in (
        ("full", SimpleNamespace(f_bavail=10, f_frsize=4096, f_flag=0)),
        ("noexec", SimpleNamespace(f_bavail=1 << 40, f_frsize=1, f_flag=os.ST_NOEXEC)),
    ):
        monkeypatch.setattr(os, "statvfs", lambda _, disk=disk: disk)
        assert about in keep_code(run / "compiled", run / "run.json", FACTS)
        assert not any(name in os.environ for name in VARIABLES)


def test_a_disk_that_fills_up_is_left_before_the_next_compilation(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_in(run)
    leave_full_cache()
    assert all(name in os.environ for name in VARIABLES)
    full = SimpleNamespace(f_bavail=10, f_frsize=4096, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    leave_full_cache()
    assert not any(name in os.environ for name in VARIABLES)


def test_the_two_folders_in_use_last_stay(run: Path) -> None:
    forget_old_code(run / "compiled")  # of a run that has none
    for number in range(4):
        folder = kept_in(run, {"gpu": str(number)})
        os.utime(folder, (number, number))
        newest = folder
    kept_in(run, {"gpu": "1"})
    forget_old_code(run / "compiled")
    left = set((run / "compiled").resolve().iterdir())
    assert left == {newest, kept_in(run, {"gpu": "1"})}


def test_a_folder_in_use_this_week_stays_for_ranks_on_other_machines(run: Path) -> None:
    folders = [kept_in(run, {"gpu": str(number)}) for number in range(4)]
    forget_old_code(run / "compiled")
    assert set((run / "compiled").resolve().iterdir()) == set(folders)


def test_what_was_set_is_unset_and_what_somebody_else_set_stays(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_in(run, {"gpu": "1"})
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    keep_no_more()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"
