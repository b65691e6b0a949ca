import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.layers import Norm

X = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)) * 3 + 1


def make(norm: str, bias: bool, eps: float = 1e-5, width: int | None = None, scale: bool = True):
    settings = ModelSection.model_validate(
        {"layers": 1, "heads": 1, "width": 24, "context": 4, "norm": norm, "bias": bias}
        | {"norm_eps": eps, "norm_scale": scale}
    )
    module = Norm(settings, width)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(1))
    return module


@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_equals_its_formula(bias):
    module, x = make("layernorm", bias, eps=0.1), X.double()
    expected = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 0.1).sqrt()
    expected = expected * module.weight.double()
    if bias:
        expected = expected + module.bias.double()
    torch.testing.assert_close(module(X).double(), expected, atol=1e-5, rtol=0)


def test_rms_norm_equals_its_formula_and_never_has_a_bias():
    module, x = make("rmsnorm", bias=True, eps=0.1), X.double()
    expected = x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt() * module.weight.double()
    torch.testing.assert_close(module(X).double(), expected, atol=1e-5, rtol=0)
    assert [name for name, _ in module.named_parameters()] == ["weight"]


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_without_a_learned_scale_a_norm_has_no_weights_and_only_normalises(norm):
    module = make(norm, bias=True, scale=False)
    assert list(module.parameters()) == []
    out = module(X).double()
    torch.testing.assert_close(out.square().mean(-1), torch.ones(5).double(), atol=1e-4, rtol=0)
    centred = X - X.mean(-1, keepdim=True) if norm == "layernorm" else X
    cosine = torch.nn.functional.cosine_similarity(out, centred.double())
    torch.testing.assert_close(cosine, torch.ones(5).double())


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_another_width_may_be_normalised_over(norm):
    module = make(norm, bias=False, width=10)
    assert module.weight.shape == (10,)
    assert module(torch.ones(3, 10)).shape == (3, 10)
