import pytest

from longhaul.core.devices import ALIASES, DEVICES, device_named, device_of_driver
from longhaul.core.errors import UsageError


@pytest.mark.parametrize(
    ("driver", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_driver_name_finds_its_own_row(driver, key):
    found = device_of_driver(driver)
    assert found is not None
    assert found.key == key


def test_a_processor_is_no_known_device():
    assert device_of_driver("AMD EPYC 9B14") is None


def test_no_measured_product_exceeds_its_peak():
    for device in DEVICES:
        for element, rate in device.best_product.items():
            assert 0.4 < rate / device.peak[element] < 1, device.key


def test_rates_are_bytes_and_flops_not_giga_or_bits():
    for device in DEVICES:
        assert 1e13 < device.peak["fp32"] < 1e15
        assert 1e10 <= device.memory_bytes < 1e12
        assert 5e11 < device.memory_rate < 1e13
        assert device.network_rate <= device.link_rate < device.memory_rate


def test_keys_are_unique_and_aliases_lead_somewhere():
    keys = [device.key for device in DEVICES]
    assert len(set(keys)) == len(keys)
    assert set(ALIASES.values()) <= set(keys)
    assert device_named("RTX 4090").key == device_named("4090").key == "rtx4090"
    assert device_named("A100_80").key == device_named("a100").key == "a100-80"


def test_an_unknown_device_is_told_the_nearest():
    with pytest.raises(UsageError, match="a100-08 is not a known device") as raised:
        device_named("a100-08")
    assert "did you mean a100-80?" in raised.value.remedy


def test_what_is_assumed_says_so():
    for device in DEVICES:
        assumed = device.network_source.startswith("assumed")
        assert (device.basis("network_rate") == "assumed") == assumed, device.key
        assert device.basis("memory_rate") == "published"
