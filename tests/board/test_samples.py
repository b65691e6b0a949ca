from fakes import FakeClock
from longhaul.board.facts import read_facts
from longhaul.board.samples import sample_list
from longhaul.core.units import figure

HOSTILE = "<script>alert(1)</script>"


def test_samples_stand_beside_their_losses_and_are_never_markup(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    for step in range(200, 801, 200):
        story.train(step - 200, step)  # evaluates every 200 steps
        story.event("sample", step, data={"text": f"{HOSTILE} of {step}"})
    story.open("1.01", "1.00", 600, "back")
    story.train(600, 800)
    story.event("finished", 800, data={"loss": 3.0, "sample": "an old run's last words"})
    facts = read_facts(story.close(), FakeClock())
    html = sample_list(facts)
    assert HOSTILE not in html
    order = [html.index(text) for text in ("last words", "of 800", "of 600", "of 400", "of 200")]
    assert order == sorted(order)
    items = html.split("<li ")[1:]
    assert ["rolled back" in item for item in items] == [False, True, False, False, False]
    loss = next(v.loss for v in facts.validations if v.step == 400)
    assert f"step 400 · validation loss {figure(loss)}" in items[3]


def test_of_many_samples_some_are_shown_from_the_first_to_the_last(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    for step in range(1, 101):
        story.train(step - 1, step)
        story.event("sample", step, data={"text": f"words {step}." + "x" * 9000})
    html = sample_list(read_facts(story.close(), FakeClock()))
    assert html.count("<li ") == 12
    assert "words 1." in html
    assert "words 100." in html
    assert "88 in between are left out" in html
    assert len(html) < 60_000


def test_without_samples_there_is_no_section(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    assert sample_list(read_facts(story.close(), FakeClock())) == ""
