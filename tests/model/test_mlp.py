import math

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.mlp import ACTIVATIONS, MLP

FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: max(x, 0.0),
}


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
