import importlib.util
import time
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from longhaul.core.errors import RecipeError
from longhaul.supervise.replicas import Lighthouse, refuse_without_torchft

needs_torchft = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None,
    reason="torchft is not installed: a lighthouse needs the extra `ft`",
)
DEADLINE_S = 60.0


def test_who_installs_what_tests_need_skips_none_of_these() -> None:
    """`make test` installs `dev`."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (own,) = [package for package in extras["dev"] if package.startswith("longhaul[")]
    named = own.removeprefix("longhaul[").removesuffix("]").split(",")
    slow = {"eval", "wandb"}  # which `make test-slow` installs
    assert set(named) == set(extras) - {"dev", *slow}
    assert any(package.startswith("torchft") for package in extras["ft"])


def test_who_lacks_torchft_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"longhaul\[ft\]"):
        refuse_without_torchft()


@needs_torchft
def test_a_lighthouse_outlives_its_supervisor_by_the_grace_period_and_no_longer(
    tmp_path: Path,
) -> None:
    with closing(Lighthouse(10.0, 0.2, tmp_path / "log")) as lighthouse:
        assert lighthouse.address.startswith("http://127.0.0.1:")
        assert lighthouse._process.poll() is None
        assert len(lighthouse.descriptors()) == 2
        assert lighthouse._process.stdin is not None
        lighthouse._process.stdin.close()  # as the death of this process would
        deadline = time.monotonic() + DEADLINE_S
        while lighthouse._process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(lighthouse.descriptors()) == 1


@needs_torchft
def test_a_lighthouse_that_is_closed_is_gone(tmp_path: Path) -> None:
    with closing(Lighthouse(10.0, 60.0, tmp_path / "log")) as lighthouse:
        pass
    assert lighthouse._process.poll() is not None
    assert lighthouse.descriptors() == ()
