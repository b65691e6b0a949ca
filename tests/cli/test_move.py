"""`run move`, `runs --all`, `data push` and `pull`, as they are typed."""

import re
import shutil
from pathlib import Path

import pytest

from clusters_file import write_clusters
from longhaul.cli.entry import application
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.data.dataset import MANIFEST, open_dataset
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.moves import move_of


class Typed:
    """Two clusters with a finished run in the first, and what is typed there."""

    def __init__(self, path: Path, honest: Path) -> None:
        self.path = path
        shutil.copytree(honest, path / "a" / "drill")
        self.clusters = write_clusters(
            path / "clusters.toml",
            {name: (path / name, str(path / "stores" / name)) for name in ("a", "b")},
        )

    def __call__(self, *words: str) -> object:
        given = (*words, "--clusters", str(self.clusters))
        return application()(list(given), standalone_mode=False)

    def refusal(self, *words: str) -> LonghaulError:
        with pytest.raises(LonghaulError) as refused:
            self(*words)
        assert refused.value.remedy
        return refused.value

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.path / name / "drill")


@pytest.fixture
def typed(tmp_path: Path, honest: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.delenv("LONGHAUL_CLUSTER", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Typed(tmp_path, honest)


MOVE = ("run", "move", "drill")


def test_both_halves_at_once_where_the_other_folder_is_mounted(typed, capsys) -> None:
    typed(*MOVE, "--to", "b", "--runs-dir", "a", "--into", "b", "--reason", "more room")
    assert move_of(typed.folder("a")).state == "away"
    assert move_of(typed.folder("b")) is None
    assert "run drill is here at step 4, from a" in capsys.readouterr().out
    typed("runs", "--runs-dir", "a")
    assert re.search(r"drill +to b", capsys.readouterr().out)
    typed("runs", "--all", "--runs-dir", "b")
    shown = capsys.readouterr().out
    assert re.search(r"drill +b +finished +4/4", shown), shown
    assert re.search(r"drill +a +moved .*to b", shown), shown


def test_a_machine_says_which_cluster_it_is_in(typed, monkeypatch, capsys) -> None:
    shutil.copytree(typed.path / "a", typed.path / "elsewhere")
    refused = typed.refusal(*MOVE, "--to", "b", "--runs-dir", "elsewhere")
    assert isinstance(refused, UsageError)
    assert "--here NAME" in refused.remedy
    monkeypatch.setenv("LONGHAUL_CLUSTER", "a")
    typed(*MOVE, "--to", "b", "--runs-dir", "elsewhere")
    assert "`longhaul run move drill --from a`" in capsys.readouterr().out
    typed(*MOVE, "--from", "a", "--here", "b", "--runs-dir", "arrived")
    assert RunFolder(typed.path / "arrived" / "drill").exists


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "bb"), "cluster bb: not in"),
        (("--to", "a"), "cluster a: this is it"),
        (("--from", "b", "--stop"), "--stop goes with --to"),
        (("--from", "b", "--into", "x"), "--into goes with --to"),
        (("--from", "b"), "no run drill is offered there"),
        ((), "give one of --to and --from"),
    ],
)
def test_mistakes_are_named(typed, words, message) -> None:
    assert message in typed.refusal(*MOVE, *words, "--runs-dir", "a").message
    assert move_of(typed.folder("a")) is None


def test_a_cluster_without_a_store_is_named(typed) -> None:
    write_clusters(typed.clusters, {"a": (typed.path / "a", "x"), "b": (typed.path / "b", "")})
    refused = typed.refusal(*MOVE, "--to", "b", "--runs-dir", "a")
    assert "cluster b: clusters.toml names no remote tier" in refused.message


def test_a_start_refuses_a_run_that_has_left(typed) -> None:
    typed(*MOVE, "--to", "b", "--runs-dir", "a")
    for words in (("train", "drill"), ("train", str(typed.path / "a" / "drill"))):
        with pytest.raises(LonghaulError, match="was moved to cluster b") as refused:
            application()([*words, "--runs-dir", "a"], standalone_mode=False)
        assert refused.value.exit_code == 17


def test_nobody_is_asked_for_anything_where_a_run_has_left(typed) -> None:
    typed(*MOVE, "--to", "b", "--runs-dir", "a")
    for words in (("set", "drill", "optim.lr=1e-4"), ("note", "drill", "looks well")):
        with pytest.raises(LonghaulError, match="was moved to cluster b"):
            application()([*words, "--runs-dir", "a"], standalone_mode=False)
    assert not list(typed.folder("a").requests.glob("*.json"))


def test_text_goes_to_a_cluster_and_to_an_address(typed, honest, capsys) -> None:
    prepared = honest.parent.parent / "prepared"
    (text,) = (path for path in prepared.iterdir() if (path / MANIFEST).is_file())
    here = ("--prepared-dir", str(prepared), "--runs-dir", "a")
    typed("data", "push", text.name, "--to", "b", *here)
    assert "MB/s" in capsys.readouterr().out.replace("kB/s", "MB/s")
    typed("data", "push", text.name, "--to", "b", *here)
    assert "all of it was there" in capsys.readouterr().out
    assert (typed.path / "stores" / "b" / "datasets" / text.name / MANIFEST).is_file()
    typed("data", "pull", text.name, "--from", "b", "--prepared-dir", "p", "--runs-dir", "b")
    assert open_dataset(Path("p") / text.name).identity == open_dataset(text).identity

    typed("data", "push", str(text), "--to", f"{typed.path}/plain", "--runs-dir", "a")
    typed(
        "data", "pull", text.name, "--from", f"{typed.path}/plain", "--prepared-dir", "q",
        "--cache", "cache", "--cache-gb", "0.1", "--runs-dir", "b",
    )  # fmt: skip
    assert open_dataset(Path("q") / text.name).identity == open_dataset(text).identity
    refused = typed.refusal("data", "pull", text.name, "--from", "b", "--cache", "cache")
    assert "no size is known" in refused.message
    refused = typed.refusal("data", "pull", text.name, "--from", "b", "--node", "http://x:1")
    assert "--node needs --cache" in refused.message
    assert "not in" in typed.refusal("data", "push", text.name, "--to", "c", *here).message
