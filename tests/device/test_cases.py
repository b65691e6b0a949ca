"""What would break on a GPU, found without one: all files of `cases/` in a pytest of their own.

They register a device with PyTorch, which a process keeps, and which counts devices once, at its
first backward pass: neither goes with other tests.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

CASES = Path(__file__).with_name("cases")
LONGEST_S = 900.0
"""They take most of a minute; several times as long on a machine that does other work too."""


@pytest.mark.timeout(LONGEST_S + 30)
@pytest.mark.parametrize("cases", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_on_a_device_without_numbers(cases: str) -> None:
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} has no device that is made of Python alone")
    command = [
        sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "--no-header", "--tb=short",
        "-p", "no:cacheprovider", "-m", cases, *sorted(map(str, CASES.glob("on_*.py"))),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        cwd=CASES.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
