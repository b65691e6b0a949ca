"""Fused kernels compile for GPUs that are not there."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("cases") / "compile_for.py"


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_norm_and_softcap_compile_to_ptx_without_a_device(capability: int) -> None:
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        pytest.skip(f"torch {torch.__version__} has no CUDA build, or no Triton")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability)],
        capture_output=True, text=True, check=False, timeout=220,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [line for line in done.stdout.splitlines() if line.startswith("triton_")]
    assert kernels
    assert all(f"sm_{capability}" in kernel for kernel in kernels), kernels
