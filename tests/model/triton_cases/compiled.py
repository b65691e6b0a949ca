"""The loss's kernel, compiled for GPUs that are not there, and as a part of a compiled model."""

import re

import pytest
import torch
import triton
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from longhaul.config.model import ModelSection
from longhaul.model import loss_kernel
from longhaul.model.initialise import build

KERNEL = loss_kernel._replace_by_gradient
POINTERS = ("paddings", "targets", "counts", "found")


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("element", ["bf16", "fp32"])
@pytest.mark.parametrize("is_capped", [False, True])
def test_it_compiles_to_ptx(capability: int, element: str, is_capped: bool) -> None:
    types = dict(zip(POINTERS, (f"*{element}", "*i64", "*fp32", "*fp32"), strict=True))
    numbers = {"rows": "i32", "softcap": "fp32", "z_loss": "fp32"}
    constants = {
        "V": 50_304, "K": 3, "IS_CAPPED": is_capped, "IS_PADDED": True, "BLOCK": 4096,
    }  # fmt: skip
    signature = {
        "logits": f"*{element}",
        **types,
        **numbers,
        **dict.fromkeys(constants, "constexpr"),
    }
    source = ASTSource(KERNEL, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": loss_kernel._WARPS})
    assert f"sm_{capability}" in re.search(r"\.target (\w+)", made.asm["ptx"]).group(1)
    assert "ld.global" in made.asm["ptx"]


class Driver:
    """Of a GPU that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Stop(Exception):
    """Before anything is computed: there is no GPU."""


def test_it_is_part_of_one_graph_and_changes_only_the_logits(monkeypatch) -> None:
    """Autocast is on, chunks are several, and a graph break would fail."""
    monkeypatch.setattr(_triton, "has_triton", lambda: True)
    triton.runtime.driver.set_active(Driver())
    settings = {
        "layers": 1, "heads": 2, "width": 16, "context": 24, "logit_softcap": 5.0, "z_loss": 1e-2,
        "vocab_multiple": 8, "ahead_stages": ({"from_step": 0, "weights": (0.5,)},),
    }  # fmt: skip
    model = build(ModelSection.model_validate(settings), 45, seed=0)
    model.loss_kernel = loss_kernel.loss_in_place
    monkeypatch.setattr("longhaul.config.model.CHUNK_ON_CPU", 48 * 20)
    monkeypatch.setattr("longhaul.config.model._FEWEST_ROWS", 1)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph.graph)

        def stop(*given):
            raise Stop

        return stop

    form = torch.compile(
        model, backend=aot_autograd(fw_compiler=keep), fullgraph=True, dynamic=False
    )
    tokens = torch.arange(48).view(2, 24) % 45
    with pytest.raises(Stop), torch.autocast("cpu", torch.bfloat16):
        form(tokens, tokens)
    assert len(graphs) == 1
    kernels = [node for node in graphs[0].nodes if "triton_kernel" in str(node.target)]
    assert len(kernels) == 3
    assert all(node.kwargs["tensors_to_clone"] == ["logits", "found"] for node in kernels)
