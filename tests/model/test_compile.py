import os
import shutil
from functools import partial

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.config.train import PrecisionSection
from longhaul.model.compiling import compiled_by_shape
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build, to_number_format
from longhaul.model.tap import Tap

SHAPE = {"layers": 2, "heads": 2, "width": 16, "context": 8, "vocab_multiple": 8}
SPEEDRUN = {
    "qk_norm": True, "activation": "relu2", "kv_heads": 1, "norm_scale": False,
    "embedding_norm": True,
    "value_residual": True, "value_embeddings": 1, "input_mix": True, "unet_skips": True,
    "logit_softcap": 15.0, "bigram_rows": 64, "window": 3, "zero_head": True,
}  # fmt: skip
POST_NORM = {
    "positions": "learned", "norm": "layernorm", "norm_placement": "post", "bias": True,
    "embedding_width": 8, "tied_head": True, "split_score_scale": True, "embedding_scale": 4.0,
    "attention_out_norm": True, "mlp_inner_norm": True, "attention_head_scale": True,
    "activation": "geglu", "z_loss": 1e-3,
}  # fmt: skip
FORMS = {"plain": {}, "speedrun": SPEEDRUN, "post_norm": POST_NORM}


def made(form: str) -> GPT:
    return build(ModelSection.model_validate(SHAPE | FORMS[form]), 21, seed=0)


def loss_and_gradients(model: GPT, compiled: bool, tap: Tap | None, backend: str):
    generator = torch.Generator().manual_seed(0)
    tokens_BT, targets_BT = torch.randint(21, (2, 3, 8), generator=generator)
    forward = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
    if tap is None:
        loss = forward(tokens_BT, targets_BT)
    else:
        with tap.open_for_forward():
            loss = forward(tokens_BT, targets_BT, tap=tap)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize(
    ("form", "tapped"),
    [
        pytest.param("plain", False, marks=pytest.mark.slow),
        ("plain", True),
        pytest.param("speedrun", False, marks=pytest.mark.slow),
        pytest.param("post_norm", True, marks=pytest.mark.slow),
    ],
)
def test_the_model_is_one_graph_with_the_same_loss_gradients_and_gauges(form, tapped):
    """Captured whole (a graph break would fail it), forward and backward; the code generator is
    left out, so that a machine without a C++ compiler can test this too."""
    found = []
    for compiled in (False, True):
        torch.compiler.reset()
        model = made(form)
        tap = Tap(model.gauges, layers=2) if tapped else None
        results = loss_and_gradients(model, compiled, tap, "aot_eager")
        found.append([*results, tap.drain() if tap is not None else torch.zeros(0)])
    for eager, captured in zip(*found, strict=True):
        # Sums of thousands of terms, in another order on some processors.
        torch.testing.assert_close(captured, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "precision",
    [
        "autocast",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("bf16 with islands", "bf16", "fp16")
        ),
    ],
)
def test_every_precision_is_one_graph_with_the_same_loss_and_gradients(precision):
    found = []
    for compiled in (False, True):
        torch.compiler.reset()
        model = made("post_norm")
        if precision != "autocast":
            compute, _, islands = precision.partition(" with ")
            section = PrecisionSection(compute=f"{compute}_weights", islands=bool(islands))
            to_number_format(model, section)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            found.append(loss_and_gradients(model, compiled, None, "aot_eager"))
    for eager, captured in zip(*found, strict=True):
        torch.testing.assert_close(captured, eager)


def test_no_number_of_shapes_and_windows_is_computed_uncompiled_in_silence(
    monkeypatch: pytest.MonkeyPatch,
):
    """Torch gives up after 8 of them, and FlexAttention then writes all scores out."""
    uncompiled = []

    def attend(x: torch.Tensor, window: int) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            uncompiled.append(window)
        return x[-window:].sum()

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        compiled = compiled_by_shape(attend)
        for window in range(1, 13):
            for length in (20, 30):
                assert compiled(torch.ones(length), window) == window
    assert not uncompiled
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        compiled = compiled_by_shape(attend)
        torch._dynamo.config.recompile_limit = 30  # 24 are there
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            any(compiled(torch.ones(99), window) is None for window in range(1, 60))
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize("form", ["speedrun", "post_norm"])
def test_generated_code_gives_the_same_loss_and_gradients(form):
    """Of every switch alone, and of pairs: test_switches.py."""
    torch.compiler.reset()
    eager = loss_and_gradients(made(form), False, None, "inductor")
    compiled = loss_and_gradients(made(form), True, None, "inductor")
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
