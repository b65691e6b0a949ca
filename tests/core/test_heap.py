import gc
import importlib
import os
import resource
import sys

import pytest

from longhaul.core.heap import importing, keep_freed_memory

_TAKEN, _PIECES, _CYCLES = 6 << 20, 16, 3
"""Together more than the 64 MiB that glibc keeps at most by itself."""


def faults_of_cycles(keep: bool) -> int:
    """Page faults of a process that frees and takes the same memory again and again."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if keep:
            keep_freed_memory()
        for number in range(_CYCLES + 1):
            if number == 1:  # the heap has grown by now
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            taken = [b"x" * _TAKEN for _ in range(_PIECES)]
            del taken
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        os.write(writing, str(faults).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        return int(said.read())


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_memory_that_is_freed_and_taken_again_brings_no_page_faults():
    pages = _CYCLES * _PIECES * _TAKEN // resource.getpagesize()
    assert faults_of_cycles(keep=False) > pages // 2
    assert faults_of_cycles(keep=True) < pages // 20


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
