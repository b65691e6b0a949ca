import random

from longhaul.data.documents import is_held_out, text_digest
from longhaul.data.lint import leakage
from longhaul.data.lint.leakage import SplitLeakage

ALL = frozenset({"a", "b"})


def words(seed, count=200):
    chosen = random.Random(seed)
    return [f"{chosen.choice('bcdfgh')}{chosen.randrange(10_000)}" for _ in range(count)]


def seen(*texts, fraction=0.5):
    looked = SplitLeakage(fraction)
    for number, text in enumerate(texts):
        content = text.encode()
        looked.see("ab"[number % 2], f"d{number}", content, text_digest(content))
    return looked


def pair(change, seed=0):
    """A text and a changed one that fall on different sides."""
    while True:
        own = words(seed)
        text, other = " ".join(own), change(own)
        held_out = [is_held_out(text_digest(t.encode()), 0.5) for t in (text, other)]
        if held_out == [True, False]:
            return text, other
        seed += 1


def test_the_same_words_in_another_form_leak():
    for change in (
        lambda own: "\n".join(own),
        lambda own: " ".join(own).upper(),
        lambda own: ", ".join(own) + ".",
    ):
        num_held_out, (leak,) = seen(*pair(change)).leaks(ALL)
        assert num_held_out == 1
        assert (leak.held_out, leak.trained_on) == ("a: d0", "b: d1")


def test_a_text_with_a_few_words_changed_mostly_leaks_and_another_never():
    def edited(own):
        return " ".join("other" if place == 100 else word for place, word in enumerate(own))

    found = [len(seen(*pair(edited, 100 * n)).leaks(ALL)[1]) for n in range(20)]
    assert sum(found) >= 15
    for number in range(20):
        unlike = pair(lambda own: " ".join(words(own[0])), number)
        assert seen(*unlike).leaks(ALL)[1] == []


def test_sources_held_out_otherwise_do_not_count():
    looked = seen(*pair(lambda own: "\n".join(own)))
    assert looked.leaks(frozenset({"b"})) == (0, [])


def test_memory_is_bounded_and_the_share_stays_right(monkeypatch):
    """Of a hundred held-out documents and their changed copies, a fair sample is kept."""
    monkeypatch.setattr(leakage, "_MOST_DOCUMENTS", 60)
    texts = [text for n in range(100) for text in pair(lambda own: "\n".join(own), 1000 * n)]
    looked = seen(*texts)
    num_held_out, leaks = looked.leaks(ALL)
    assert len(looked._known) <= 60
    assert 10 <= num_held_out <= 40
    assert len(leaks) == num_held_out
