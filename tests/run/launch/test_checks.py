"""What a job checks before it trains."""

import subprocess
import sys

import pytest

from launches import cluster_of, spec_of
from longhaul.cluster.allocation import Given
from longhaul.cluster.launch_spec import Captured
from longhaul.core.errors import NeedsPerson
from longhaul.run.launch import checks
from longhaul.run.launch.capture import captured


def fault(name: str, check: str) -> dict:
    return {"name": name, "check": check}


def test_a_workaround_that_does_not_hold_is_named_with_what_it_said() -> None:
    said: list[str] = []
    cluster = cluster_of(fault=(fault("good", "true"), fault("bad", "echo rail 7; exit 3"),
                                fault("mute", "false")))  # fmt: skip
    with pytest.raises(NeedsPerson) as refused:
        checks.verify_workarounds("east", cluster, said.append)
    assert said == ["workaround good: holds"]
    assert "workaround bad: `echo rail 7; exit 3` ended with 3: rail 7" in str(refused.value)
    assert "workaround mute: `false` ended with 1: it printed nothing" in str(refused.value)


def test_a_check_that_hangs_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(checks, "_CHECK_WITHIN_S", 0.2)
    with pytest.raises(NeedsPerson, match="did not end within"):
        checks.verify_workarounds("e", cluster_of(fault=(fault("x", "sleep 60"),)), print)


def test_code_that_has_changed_since_the_launch_is_named(tmp_path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    bare = captured(tmp_path, None)
    assert bare.commit == ""
    git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = captured(tmp_path, None)
    assert (len(clean.commit), clean.diff_sha256) == (40, "")
    assert checks.drift(spec_of(cluster_of(), captured=clean), tmp_path) == ""
    (tmp_path / "new.py").write_text("2\n")
    changed = spec_of(cluster_of(), captured=captured(tmp_path, tmp_path))
    diff = (tmp_path / "changes.diff").read_text()
    assert "+2" in diff, "files that git does not track are captured too"
    assert "files have changed" in checks.drift(spec_of(cluster_of(), captured=clean), tmp_path)
    git("add", "new.py")
    git("commit", "-qm", "two")
    assert "is checked out" in checks.drift(changed, tmp_path)
    other = spec_of(cluster_of(), captured=Captured(version="0.0.0"))
    assert "longhaul 0.0.0 was launched" in checks.drift(other, tmp_path)


def test_data_and_preflight_are_done_once_a_launch(tmp_path) -> None:
    ran: list[list[str]] = []

    def run(words) -> int:
        ran.append(list(words)[3:])
        return codes.pop(0)

    cluster = cluster_of(remote="s3://b/x/", gpus_per_node=8, prepared="/p", mb_per_s=50.0)
    spec, codes = spec_of(cluster, dataset="text"), [17, 0, 2, 0]
    assert checks.bring_data(spec, checks.Passed.read(tmp_path), run) == 17
    assert checks.bring_data(spec, checks.Passed.read(tmp_path), run) == 0
    assert " ".join(ran[-1]) == (
        "data pull text --from s3://b/x/datasets --prepared-dir /p --runs-dir /runs --mb-per-s 50"
    )
    assert checks.preflight(spec, tmp_path, checks.Passed.read(tmp_path), run) == 2
    assert checks.preflight(spec, tmp_path, checks.Passed.read(tmp_path), run) == 0
    assert ran[-1][:2] == ["preflight", f"{tmp_path}/recipe.toml"]
    assert ran[-1][-4:] == ["--nproc", "8", "--world", "16"]
    passed = checks.Passed.read(tmp_path)
    assert (passed.data, passed.preflight) == (True, True)
    assert (
        checks.bring_data(spec, passed, run) == checks.preflight(spec, tmp_path, passed, run) == 0
    )
    assert len(ran) == 4


def test_a_text_comes_to_each_node_while_it_is_read_where_recipe_and_cluster_allow_it(
    tmp_path,
) -> None:
    ran: list[str] = []

    def run(words) -> int:
        ran.append(" ".join(words[3:]))
        return 17

    own = {"remote": "s3://b", "cache": "/nvme/shards"}
    for recipe, more in (
        ("[order]\nshuffle_tokens = 1000\n", own | {"cache_gb": 500.0}),
        ("[order]\nshuffle_tokens = 1000\n", {"remote": "s3://b"}),
        ("", own),
    ):
        spec = spec_of(cluster_of(**more), dataset="text", recipe=recipe)
        checks.bring_data(spec, checks.Passed.read(tmp_path), run)
    assert ran[0].endswith("--stream --cache /nvme/shards --cache-gb 500")
    assert not any("--stream" in words for words in ran[1:])


def test_each_new_node_is_qualified_and_an_unfit_one_has_its_reason(tmp_path, monkeypatch) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv[-1]).write_text('{}')\n"
        "print('starting')\n"
        "if os.environ.get('BAD'): print('disk: 3 MB/s'); sys.exit(17)\n"
    )
    monkeypatch.setattr(checks, "LONGHAUL", (sys.executable, str(tool)))
    nodes = [Given("a", "a"), Given("b", "b", ("env", "BAD=1"))]
    passed = checks.Passed.read(tmp_path)
    found = checks.unfit(spec_of(cluster_of()), tmp_path, nodes, passed)
    assert found == {"b": "qualify ended with 17 (qualify-b.json): disk: 3 MB/s"}
    assert (tmp_path / "qualify-a.json").exists()
    assert checks.Passed.read(tmp_path).qualified == ["a"]
    (tmp_path / "qualify-a.json").unlink()
    checks.unfit(spec_of(cluster_of()), tmp_path, nodes, checks.Passed.read(tmp_path))
    assert not (tmp_path / "qualify-a.json").exists(), "it has passed under this launch"
    assert checks.unfit(spec_of(cluster_of(), qualify=False), tmp_path, nodes, passed) == {}
