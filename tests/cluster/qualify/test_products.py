"""Products of a device, in every format that it has."""

import pytest
import torch

from longhaul.cluster.qualify import products
from longhaul.cluster.qualify.products import Unit, speeds

CPU = Unit("cpu", torch.device("cpu"))


@pytest.fixture
def eight_bits(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(products, "formats", lambda unit: ("fp32", "fp8"))
    return monkeypatch


def test_eight_bits_are_measured_where_torch_has_them(eight_bits: pytest.MonkeyPatch) -> None:
    work, flops = products._product_of(CPU, "fp8")
    made = work()
    assert isinstance(made, torch.Tensor)
    assert flops == 2.0 * made.shape[0] ** 3
    found = {one.name: one for one in speeds([CPU], 0.3, lambda unit: "")}
    assert found["product fp8"].value > 0
    assert found["product fp8"].facts["format"] == "fp8"


def test_eight_bits_that_torch_refuses_are_left_out_with_the_reason(
    eight_bits: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel\nand much more")

    eight_bits.setattr(torch, "_scaled_mm", refuse)
    found = {one.name: one for one in speeds([CPU], 0.3, lambda unit: "")}
    assert found["product fp8"].skipped == "torch refuses it: no such kernel"
    assert found["product fp32"].value > 0


def test_cards_with_units_for_eight_bits_are_asked_for_them(monkeypatch) -> None:
    for name, has in (("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", False),
                      ("Some card", False)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert ("fp8" in products.formats(Unit("cuda:0", torch.device("cuda", 0)))) is has
