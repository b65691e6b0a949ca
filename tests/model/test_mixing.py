import pytest
import torch

from longhaul.model.layers import InputMix, Skips


def test_the_input_is_mixed_in_by_learned_shares():
    mix = InputMix()
    x, given = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    with torch.no_grad():
        mix.weight.copy_(torch.tensor(mix.start))
        assert torch.equal(mix(x, given), x)
        mix.weight.copy_(torch.tensor([0.5, 2.0]))
        torch.testing.assert_close(mix(x, given), 0.5 * x + 2 * given)


@pytest.mark.parametrize(
    ("layers", "joined"),
    [
        (2, {1: 0}),
        (3, {2: 0}),
        (4, {2: 1, 3: 0}),
        (5, {3: 1, 4: 0}),
        (12, {6: 5, 7: 4, 8: 3, 9: 2, 10: 1, 11: 0}),
    ],
)
def test_the_second_half_reads_the_first_half_last_to_first(layers, joined):
    skips, kept, found = Skips(layers), [], {}
    with torch.no_grad():
        skips.weight.copy_(torch.arange(len(skips.start)) + 2.0)
        x = torch.zeros(1)
        for layer in range(layers):
            read = skips(layer, x, kept)
            if layer in joined:
                factor = skips.weight[sorted(joined).index(layer)]
                found[layer] = round(((read - x) / factor).log2().item())
            else:
                assert torch.equal(read, x)
            x = torch.tensor([2.0**layer])  # the output of this block
    assert found == joined
    assert kept == []
