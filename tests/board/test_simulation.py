"""The page of simulated runs."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from longhaul.board.simulation import render
from longhaul.board.simulation_figures import GROUPS, size_figures, swing_figure, time_figure
from longhaul.plan.simulate.engine import simulate
from longhaul.plan.simulate.outcome import PARTS
from longhaul.plan.simulate.presets import preset
from longhaul.plan.simulate.study import Swing, sized


@pytest.fixture(scope="module")
def results():
    scenarios = (preset("opt-175b", longhaul) for longhaul in (False, True))
    return [simulate(replace(scenario, days=6.0), [0, 1]) for scenario in scenarios]


def test_a_page_has_its_figures_and_fetches_nothing(results):
    given = results[0].scenario.inputs.person_s
    page = render(results, "", [Swing("person_s", given, 0.6, 0.5)])
    HTMLParser().feed(page)
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    names = [figure["name"] for figure in json.loads(data.group(1))["figures"]]
    assert names == ["time", "course", "swings"]
    assert not re.search(r'(src|href)="https?://', page)
    assert f"{results[0].effective.value:.1%}" in page
    assert "watchdog" in page, "what longhaul decides for itself is said"
    assert page.count('class="mark">assumed') > 20


def test_every_part_of_the_time_is_in_one_group():
    grouped = [part for parts in GROUPS.values() for part in parts]
    assert sorted([*grouped, "training"]) == sorted(PARTS)


def test_bars_add_up_to_what_is_not_training(results):
    figure = time_figure(results)
    for place, result in enumerate(reversed(results)):
        total = sum(trace["x"][place] for trace in figure.traces)
        assert total == pytest.approx(100 * (1 - result.shares()["training"]), abs=0.01)


def test_a_swing_reaches_from_the_middle_to_its_ends(results):
    given = results[0].scenario.inputs.person_s
    low, high = swing_figure([Swing("person_s", given, 0.6, 0.5)], 0.57).traces
    assert low["base"][0] + low["x"][0] == pytest.approx(60)
    assert high["base"][0] + high["x"][0] == pytest.approx(50)


def test_a_study_shows_each_size_and_what_would_help():
    size = sized(1024, [0, 1], failures=3.0)
    goodput, limits, worth = size_figures([size])
    assert goodput.traces[0]["x"] == ["1,024"]
    assert len(limits.traces) == len(GROUPS)
    assert [trace["name"] for trace in worth.traces] == list(size.worth)
