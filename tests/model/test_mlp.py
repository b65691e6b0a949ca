import math

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.layers import ACTIVATIONS, MLP

FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "geglu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "swiglu": lambda x: x / (1 + math.exp(-x)),
}


def make(**changes: object) -> MLP:
    """Every weight random."""
    shape = {"layers": 1, "heads": 1, "width": 8, "context": 4, "mlp_width": 12, "bias": True}
    mlp = MLP(ModelSection.model_validate(shape | changes))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.normal_(0.5, 1.0, generator=generator)
    return mlp


def reference(mlp: MLP, activation: str, x: torch.Tensor) -> torch.Tensor:
    """Number by number, float64; of a gated one the gate's rows come first."""
    wide = x.double() @ mlp.up.weight.double().T + mlp.up.bias.double()
    gate, rest = wide[:, :12], wide[:, 12:]
    inner = gate.detach().clone().apply_(FORMULAS[activation])
    if rest.numel():
        inner = inner * rest
    if mlp.inner_norm is not None:
        inner = inner / (inner.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        inner = inner * mlp.inner_norm.weight.double()
    return inner @ mlp.down.weight.double().T + mlp.down.bias.double()


def test_every_activation_a_recipe_can_name_exists():
    assert set(ACTIVATIONS) == set(ModelSection.model_fields["activation"].annotation.__args__)


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_equal_their_formulas(name):
    x = torch.linspace(-5, 5, 101)
    expected = torch.tensor([FORMULAS[name](float(v)) for v in x], dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name](x).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("given", "inner"), [(None, 32), (12, 12)])
def test_the_inner_width_is_four_widths_unless_given(given, inner):
    settings = ModelSection(layers=1, heads=1, width=8, context=4, mlp_width=given)
    mlp = MLP(settings)
    assert mlp.up.weight.shape == (inner, 8)
    assert mlp.down.weight.shape == (8, inner)


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("mlp_inner_norm", [False, True])
def test_the_mlp_equals_a_float64_reference(activation, mlp_inner_norm):
    mlp = make(activation=activation, mlp_inner_norm=mlp_inner_norm)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    expected = reference(mlp, activation, x)
    torch.testing.assert_close(mlp(x).double(), expected, atol=1e-4, rtol=1e-5)


def test_only_a_gated_mlp_has_twice_the_rows_and_only_a_switch_adds_a_norm():
    assert make(activation="swiglu").up.weight.shape == (24, 8)
    assert make(activation="relu2").up.weight.shape == (12, 8)
    assert make().inner_norm is None
    assert make(activation="geglu", mlp_inner_norm=True).inner_norm.weight.shape == (12,)


def test_projections_that_start_at_zero_say_so():
    assert make(zero_projections=True).down.zero
    assert not make().down.zero
