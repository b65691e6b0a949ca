from fakes import FakeClock
from longhaul.board.facts import read_facts
from longhaul.board.figures import loss_figure, progress_figure, step_figures


def test_a_spike_that_was_rolled_back_does_not_flatten_the_loss(told):
    facts = read_facts(told, FakeClock())
    wild = [c for c in facts.curves["loss"] if not c.kept]
    assert wild
    figure = loss_figure(facts)
    low, high = figure.layout["yaxis"]["range"]
    kept = [y for curve in facts.curves["loss"] if curve.kept for y in curve.y]
    assert low < min(kept)
    assert max(kept[:5]) < high < 2 * max(kept)


def test_marks_of_one_step_hang_below_each_other(told):
    marks = [t for t in loss_figure(read_facts(told, FakeClock())).traces if "tone" in t["meta"]]
    places = [
        (x, y) for trace in marks for x, y in zip(trace["x"], trace["y"], strict=True)
    ]  # fmt: skip
    assert len(places) == len(set(places)) == 5


def test_one_stretch_is_kept_on_top_of_what_was_lost(told):
    traces = loss_figure(read_facts(told, FakeClock())).traces
    fates = [t["meta"]["kept"] for t in traces if "place" in t["meta"]]
    assert fates == sorted(fates)


def test_figures_without_data_are_left_out(told):
    names = [figure.name for figure in step_figures(read_facts(told, FakeClock()))]
    assert names == ["learning_rate", "gradient_norm", "throughput"]


def test_progress_falls_where_the_run_does(told):
    thread = progress_figure(read_facts(told, FakeClock())).traces[0]
    assert thread["x"] == sorted(thread["x"])
    falls = [b - a for a, b in zip(thread["y"], thread["y"][1:], strict=False) if b < a]
    assert len(falls) == 3
