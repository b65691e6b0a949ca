"""What is forecast of gauges is shown while it holds, and no longer."""

import json
import math

import pytest

from fakes import FakeClock
from longhaul.board.facts import read_facts
from longhaul.board.forecast import dangers
from longhaul.board.live_run import LiveRun
from longhaul.board.report import gauge_section, render
from longhaul.config.diagnose import GrowthLimits
from longhaul.logbook.segments import read_segments

GAUGE = "attention_logit_max"
CROSSES = 1000 + 100 / 0.3 * math.log(100 / (4 + 0.3 * 3))
"""Step at which layer 3 comes to 100."""
EVIDENCE = {
    "value": 18.0, "warning_line": 50.0, "danger_line": 100.0, "base": 5.0,
    "doubling_steps": 100 / 0.3 * math.log(2), "forecast_step": 1990.0,
}  # fmt: skip


def growing(story, until=1500):
    """Layers 3 and 4 grow from step 1,000 on, and are told at 1,400."""
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(900, 1000)
    story.train(1000, 1400, grow=0.3)
    for layer in (3, 4):
        told(story, f"{GAUGE}[{layer}]")
    keep_growing(story, 1400, until)


def told(story, subject, step=1400, **evidence):
    story.find("growth", "warning", step, 1000, subject=subject, evidence=EVIDENCE | evidence,
               sentence="it grows")  # fmt: skip


def keep_growing(story, begin, end, grow=0.3):
    """Goes on from where growth since step 1,000 has come to."""
    usual = type(story)._gauges
    level = math.exp(0.3 * (begin - 1000) / 100)
    story._gauges = lambda step, growth: usual(story, step, growth * level)
    story.train(begin, end, grow=grow)


def read(folder):
    with LiveRun(folder) as run:
        return run.model_gauges(read_segments(folder))


def layers(found):
    return [danger.layer for danger in found.dangers]


def test_a_layer_that_grows_is_told_with_line_step_and_pace(new_story):
    story = new_story()
    growing(story)
    found = read(story.close())
    first = found.dangers[0]
    assert layers(found) == [3, 4] or layers(found) == [4, 3]
    assert first.line == 100
    assert first.step == pytest.approx(CROSSES, rel=0.03)
    assert first.doubling_steps == pytest.approx(231, rel=0.1)
    label, words = found.words_of(GAUGE, layered=True)
    assert label == f"attention logit max · 100 at step {first.step:,}"
    assert words.startswith(f"Layer {first.layer} will cross 100 at about step {first.step:,}, ")
    assert words.count("layer") == 1


def test_what_was_rolled_back_is_forecast_no_more(new_story):
    story = new_story()
    growing(story, until=1410)
    story.open("1.01", "1.00", 1250, "back")
    keep_growing(story, 1250, 1390)  # to where it was found before, and not yet anew
    assert read(story.close()).dangers == ()


def test_growth_that_has_ended_is_forecast_no_more(new_story):
    story = new_story()
    growing(story, until=1410)
    keep_growing(story, 1410, 1700, grow=0.0)
    assert read(story.close()).dangers == ()


def test_growth_that_has_slowed_down_is_forecast_for_later(new_story):
    story = new_story()
    growing(story, until=1410)
    before = read(story.folder).dangers[0].step
    keep_growing(story, 1410, 1900, grow=0.2)
    (first, *_) = read(story.close()).dangers
    assert before + 100 < first.step < 2400


def test_a_decision_answers_a_forecast_until_new_readings_confirm_it(new_story):
    story = new_story()
    growing(story)
    story.decide("recover", 1500, "policy", "lower", cause="growth", subject=f"{GAUGE}[3]",
                 actions=["lower-lr"], set={"optim.lr": 3e-4}, old={"optim.lr": 6e-4})  # fmt: skip
    keep_growing(story, 1500, 1560)
    assert read(story.folder).dangers == ()
    keep_growing(story, 1560, 1700)
    assert sorted(layers(read(story.close()))) == [3, 4]


def test_warm_up_after_a_reset_confirms_nothing(new_story):
    story = new_story()
    growing(story)
    story.decide("recover", 1500, "policy", "reset", cause="growth", subject=f"{GAUGE}[3]",
                 actions=["reset"], reset=["optimizer"], rewarm_steps=180)  # fmt: skip
    keep_growing(story, 1500, 1700)
    assert read(story.close()).dangers == ()


@pytest.mark.parametrize(
    ("path", "from_step", "stands"),
    [
        ("optim.lr", 0, False),
        ("optim.lr", 1900, True),
        ("checkpoint.interval_steps", 0, True),
    ],
)
def test_only_settings_in_force_that_move_gauges_answer(new_story, path, from_step, stands):
    story = new_story()
    growing(story)
    story.decide("set", 1500, "anna", "try", path=path, value=1, old=2)
    journal = story.folder.journal
    (events,) = journal.glob("*.events.jsonl")
    text = events.read_text()
    events.write_text(text.replace('"from_step":0', f'"from_step":{from_step}'))
    assert bool(read(story.close()).dangers) is stands


def test_nothing_is_forecast_beyond_the_end_of_the_run(new_story):
    story = new_story()
    growing(story)
    story.start(2, resumed_from=1500, total_steps=1900)
    story.open("1.01", "1.00", 1500, "restart")
    keep_growing(story, 1500, 1510)
    assert read(story.close()).dangers == ()


def test_a_line_that_was_crossed_is_said_to_be(new_story):
    story = new_story()
    growing(story)
    keep_growing(story, 1500, 2060)
    found = read(story.close())
    assert found.dangers[0].crossed
    assert "beyond 100" in found.words_of(GAUGE, layered=True)[0]
    assert "beyond 100" in found.words_of(GAUGE, layered=True)[1]


def test_figures_of_the_model_have_their_line_and_their_forecast(new_story):
    story = new_story()
    usual = story._totals
    story._totals = lambda step: (
        usual(step) | {"output_logit_max": 9 * math.exp(max(0, step - 1000) / 350)}
    )
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(900, 1500)
    told(story, "output_logit_max", step=1500, doubling_steps=243.0)
    found = read(story.folder)
    (danger,) = found.dangers
    assert (danger.gauge, danger.layer, danger.line) == ("output_logit_max", None, 100)
    assert danger.step == pytest.approx(1000 + 350 * math.log(100 / 9), abs=2)
    assert found.opens_on(layered=False) == "output_logit_max"
    assert found.opens_on(layered=True) == GAUGE
    assert found.lines["output_logit_max"] == 100
    assert found.lines["update_ratio.matrix"] == 0.05
    story.decide("set", 1500, "anna", "", path="diagnose.growth.output_logit_alarm", value=300.0)
    changed = read(story.close())
    assert changed.lines["output_logit_max"] == 300


def test_the_most_pressing_gauge_is_opened_and_marked(new_story):
    story = new_story()
    usual = type(story)._gauges
    story._gauges = lambda step, growth: (
        usual(story, step, growth)
        | {"residual_max": tuple(2 * math.exp(max(0, step - 1000) / 150) for _ in range(12))}
    )
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(900, 1000)
    story.train(1000, 1400, grow=0.3)
    told(story, f"{GAUGE}[3]")
    for layer in range(12):
        told(story, f"residual_max[{layer}]", doubling_steps=104.0)
    folder = story.close()
    found = read(folder)
    assert found.opens_on(layered=True) == "residual_max"
    words = found.words_of("residual_max", layered=True)[1]
    assert words.endswith("8 more after these.")
    html = gauge_section(found)
    assert '<option value="residual_max" selected>residual max · 100 at step' in html
    assert html.count(" · 100 at step ") == 2
    assert "No danger is forecast" in found.words_of("residual_min", layered=True)[1]


@pytest.mark.parametrize(
    ("subject", "evidence"),
    [
        ("<img src=x>[3]", {}),
        (f"{GAUGE}[999999]", {}),
        (f"{GAUGE}[3]", {"danger_line": -1.0}),
        (f"{GAUGE}[3]", {"danger_line": float("nan")}),
        (f"{GAUGE}[3]", {"doubling_steps": 0.0}),
        (f"{GAUGE}[3]", {"doubling_steps": float("inf")}),
    ],
)
def test_strange_findings_forecast_nothing_and_break_nothing(new_story, subject, evidence):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(1000, 1400, grow=0.3)
    told(story, subject, **evidence)
    folder = story.close()
    assert read(folder).as_json()["dangers"] == []
    assert "<img" not in render(read_facts(folder, FakeClock()), "")


def test_the_page_is_told_numbers_that_json_knows(new_story):
    story = new_story()
    growing(story)
    usual = type(story)._gauges
    story._gauges = lambda step, growth: usual(story, step, growth) | {GAUGE: (math.inf,) * 12}
    story.train(1500, 1510)
    gauges = json.loads(json.dumps(read(story.close()).as_json(), allow_nan=False))
    assert [danger["value"] for danger in gauges["dangers"]] == [None, None]
    assert gauges["opens"] == {"gauge": GAUGE, "total": "logsumexp_max"}


def test_without_a_finding_no_reading_is_looked_at():
    assert dangers(None, (), (), GrowthLimits()) == ()
