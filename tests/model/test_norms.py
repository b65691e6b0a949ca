import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.norms import NORMS, make_norm

X = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)) * 3 + 1


def make(norm: str, bias: bool, eps: float = 1e-5):
    settings = ModelSection.model_validate(
        {"layers": 1, "heads": 1, "width": 24, "context": 4, "norm": norm, "bias": bias}
        | {"norm_eps": eps}
    )
    module = make_norm(settings)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(1))
    return module


def test_every_norm_a_recipe_can_name_exists():
    assert set(NORMS) == set(ModelSection.model_fields["norm"].annotation.__args__)


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
