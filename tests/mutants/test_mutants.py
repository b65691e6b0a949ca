"""The table of planted bugs stays true to the sources; `make test-mutants` runs it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_run", Path(__file__).with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RUNNER = _runner()


@pytest.mark.parametrize("mutant", RUNNER.mutants(), ids=lambda mutant: mutant.name)
def test_a_bug_can_be_planted_and_its_test_exists(mutant) -> None:
    text = (RUNNER.ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    file, _, function = mutant.test.partition("::")
    assert f"def {function.partition('[')[0]}(" in (RUNNER.ROOT / file).read_text()
