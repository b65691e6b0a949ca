"""What `longhaul diagnose` prints."""

from pathlib import Path

import pytest

from longhaul.cli.diagnose import diagnose, verdict_lines
from longhaul.core.errors import UsageError
from longhaul.diagnose.cause import Ladder, Verdict
from longhaul.diagnose.signs import Figures, Symptom
from longhaul.run.diagnose.cause import Diagnosed
from longhaul.run.diagnose.rerun import witness_named

SERIES = (Figures(40, 2.5, 1.0), Figures(41, 4.5, 9.0, masked=True))


def test_the_symptom_every_experiment_and_the_cause_are_shown() -> None:
    ladder = Ladder(
        recorded=SERIES,
        replays=(SERIES, SERIES),
        plain=(SERIES[1:],),
        other_data=(SERIES[:1],),
        lower_rates=((0.5, SERIES),),
        skipped={"witness": "there is no other device"},
    )
    symptom = Symptom("loss-spike", step=41, first_step=41, healthy=2.5, reached=4.5)
    verdict = Verdict("data", "data", "on other batches it is gone")
    lines = list(verdict_lines(Diagnosed(symptom, verdict, ladder, 16, ("software.python 1 → 2",))))
    text = "\n".join(lines)
    assert lines[0] == "step 41: loss-spike: loss 2.5 before it, up to 4.5"
    for promised in (
        "since then: software.python 1 → 2", "recorded", "replay 2", "eager float32",
        "0.5 of the learning rate", "not tried: witness: there is no other device",
        "cause: data", "on other batches it is gone", "masked",
    ):  # fmt: skip
        assert promised in text
    assert "another device  " not in text
    assert next(line for line in lines if line.startswith("other batches 1")).endswith("not made")


def test_a_witness_that_is_neither_file_nor_device_is_refused() -> None:
    with pytest.raises(UsageError, match="--witness banana: neither a file nor a device"):
        witness_named("banana")
    assert witness_named("cpu") == "cpu"


def test_an_impossible_place_for_what_was_captured_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("taken")
    for place, why in (
        (tmp_path / "file", "no folder can be made there"),
        (tmp_path / "file" / "below", "no folder can be made there"),
        (tmp_path, "is not empty"),
    ):
        with pytest.raises(UsageError, match=why):
            diagnose("drill", 3, save=place, runs_dir=tmp_path)
