import gc
import importlib
import subprocess
import sys

import pytest

from longhaul.core.heap import importing

# Together more than the 64 MiB that glibc keeps at most by itself.
_PIECES, _PIECE, _CYCLES = 16, 6 << 20, 3
_FREES_AND_TAKES = f"""
import resource, sys
from longhaul.core.heap import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory()
for number in range({_CYCLES} + 1):
    if number == 1:  # the heap has grown by now
        before = faults()
    taken = [b"x" * {_PIECE} for _ in range({_PIECES})]
    del taken
print(faults() - before)
"""


def faults_of_cycles(word: str) -> int:
    """Page faults of a process that frees and takes the same memory again and again."""
    command = [sys.executable, "-c", _FREES_AND_TAKES, word]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_memory_that_is_freed_and_taken_again_brings_no_page_faults():
    pages = _CYCLES * _PIECES * _PIECE // 4096
    assert faults_of_cycles("hand back") > pages // 2
    assert faults_of_cycles("keep") < pages // 20


_KEEPS_SMALL_THINGS = f"""
import resource, sys
from longhaul.core.heap import keep_freed_memory, reserve

keep_freed_memory()
reserve(int(sys.argv[1]))
before, kept = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, []
for _ in range({_PIECES}):
    taken = b"x" * {_PIECE}
    del taken
    kept.append(b"x" * 1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_small_things_that_stay_between_large_ones_that_go_bring_no_page_faults_in_a_reserve():
    def faults(size: int) -> int:
        command = [sys.executable, "-c", _KEEPS_SMALL_THINGS, str(size)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults(0) >= _PIECE // 4096
    assert faults(2 * _PIECES * _PIECE) < 100


def _import_nothing() -> None:
    assert not gc.isenabled()
    importlib.import_module("longhaul.nothing")


@pytest.mark.parametrize("enabled", [True, False])
def test_an_import_is_not_searched_for_garbage_and_leaves_the_collector_as_it_was(enabled: bool):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ModuleNotFoundError), importing():
            _import_nothing()
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
