"""When the loss's kernel is taken; and what it computes, in processes of their own, as Triton's
interpreter is chosen when Triton is imported.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.config.model import ModelSection
from longhaul.config.size import shrunken
from longhaul.model import chunked_loss
from longhaul.model.chunked_loss import kernel_for
from longhaul.model.initialise import build
from longhaul.train.equality import make_step

CASES = Path(__file__).with_name("triton_cases")
has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@has_triton
@pytest.mark.slow
@pytest.mark.parametrize("cases", ["interpreted", "compiled"])
def test_in_a_process_of_its_own(cases: str, tmp_path: Path) -> None:
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    if cases == "interpreted":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{CASES / cases}.py"],
        capture_output=True, text=True, check=False, timeout=220, env=os.environ | environment,
        cwd=CASES.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_it_trains_as_pytorch_does(compiled: bool, dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    kernel = kernel_for(device)
    if kernel is None:
        pytest.skip("this GPU is not taken, or Triton is missing")
    settings = ModelSection(
        layers=1, heads=2, width=128, context=512, logit_softcap=15.0, z_loss=1e-3,
        vocab_multiple=64, ahead_stages=({"from_step": 0, "weights": (0.5,)},),
    )  # fmt: skip
    tokens = torch.randint(50_257, (4, 512), device=device)
    found = []
    for taken in (None, kernel):
        model = build(settings, 50_257, 0, device)
        model.loss_kernel = taken
        form = torch.compile(model, dynamic=False) if compiled else model
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = form(tokens, tokens)
        (loss / tokens.numel()).backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    rtol, atol = (1e-4, 1e-6) if dtype == torch.float32 else (2e-2, 1e-4)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("kind", "lacks", "capability", "taken"),
    [
        ("cpu", (), (9, 0), False),
        ("cuda", (), (9, 0), True),
        ("cuda", (), (8, 6), True),
        ("cuda", (), (7, 5), False),
        ("cuda", ("a C compiler",), (9, 0), False),
    ],
)
def test_it_is_taken_on_gpus_for_which_code_can_be_made(
    monkeypatch: pytest.MonkeyPatch, kind: str, lacks: tuple[str], capability: tuple, taken: bool
) -> None:
    monkeypatch.setattr(chunked_loss, "lacks_for_triton", lambda: iter(lacks))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    kernel = type(sys)("loss_kernel")
    kernel.loss_in_place = object()
    monkeypatch.setitem(sys.modules, "longhaul.model.loss_kernel", kernel)
    monkeypatch.setattr(chunked_loss, "_tried_out", lambda device: "")
    found = kernel_for(torch.device(kind))
    assert found is (kernel.loss_in_place if taken else None)


def test_a_kernel_that_fails_is_left_out_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError("[Errno 13] Permission denied: '/root/.triton'")

    kernel = type(sys)("loss_kernel")
    kernel.loss_in_place = fails
    monkeypatch.setitem(sys.modules, "longhaul.model.loss_kernel", kernel)
    monkeypatch.setattr(chunked_loss, "lacks_for_triton", lambda: iter(()))
    monkeypatch.setattr(chunked_loss, "KERNEL_DEVICES", ("cpu",))
    assert kernel_for(torch.device("cpu")) is None
    assert "PermissionError: [Errno 13]" in capsys.readouterr().err


def test_a_step_in_plain_form_does_without_it() -> None:
    """A search for the cause of a fault compares with what no kernel of ours computes."""
    recipe = load_recipe("drill").recipe
    recipe = load_recipe("drill", shrunken(recipe)).recipe
    step = make_step(recipe, 64, torch.device("cpu"), None)
    step.model.loss_kernel = kernel = lambda *given: None
    with step.plainly():
        assert step.model.loss_kernel is None
    assert step.model.loss_kernel is kernel
