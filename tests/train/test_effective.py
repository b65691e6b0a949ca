import pytest

from longhaul.core.errors import NeedsPerson
from longhaul.train.effective import refuse_if_different


def test_equal_settings_pass() -> None:
    refuse_if_different({"matrix.lr": 1e-3, "clip": 1.0}, {"matrix.lr": 1e-3, "clip": 1.0}, 5)


def test_every_setting_that_differs_is_named_with_both_values() -> None:
    with pytest.raises(NeedsPerson) as caught:
        refuse_if_different({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, 5)
    assert "b: live 2, asked for 3; c: live None, asked for 4" in str(caught.value)
    assert caught.value.exit_code == 17
