from types import SimpleNamespace

import numpy as np
import pytest

from longhaul.data.lint.tokens import TokenUse, token_findings, token_use
from longhaul.data.prepare import prepare


def data_set(vocab_size=2000):
    decode = lambda ids: "".join(f"t{number}" for number in ids)  # noqa: E731
    return SimpleNamespace(vocab_size=vocab_size, tokenizer=SimpleNamespace(decode=decode))


def use(name, rare, per_byte=0.25, vocab_size=2000, times=5000):
    counts = np.full(vocab_size, times, np.int64)
    counts[:rare] = np.arange(rare) % 10
    return TokenUse(name, counts, per_byte)


def test_each_token_of_the_training_text_is_counted(tmp_path, recipe_for):
    text = "".join(f"line {number} of the text\n" for number in range(3000))
    (tmp_path / "a.txt").write_text(text)
    dataset = prepare(recipe_for(tmp_path / "a.txt"), tmp_path / "prepared", lambda _: None)
    (found,) = token_use(dataset)
    assert found.source == "a.txt"
    assert found.counts.sum() == dataset.sources[0].train.num_tokens
    assert found.counts[ord("f")] == pytest.approx(3000, rel=0.02), "one a line, less held out"
    assert found.tokens_per_byte == pytest.approx(1, abs=0.01)


def test_a_vocabulary_that_the_text_hardly_uses_is_told_with_examples():
    (finding,) = token_findings([use("web", 600)], data_set())
    assert (finding.kind, finding.source, finding.share) == (
        "tokens hardly ever used", "all sources", 0.3,
    )  # fmt: skip
    assert "600 of 2,000 tokens (30.0%) occur fewer than 10 times, 60 of them never" in (
        finding.sentence
    )
    assert "'t599'" in finding.examples[0]


def test_what_one_source_uses_the_others_need_not():
    uses = [use("web", 600), use("code", 0)]
    assert list(token_findings(uses, data_set())) == []


@pytest.mark.parametrize(
    ("rare", "vocab_size", "times"),
    [(300, 2000, 5000), (100, 257, 5000), (600, 2000, 500)],
    ids=["a seventh", "bytes", "too few tokens to say"],
)
def test_a_vocabulary_in_use_is_passed_in_silence(rare, vocab_size, times):
    uses = [use("web", rare, vocab_size=vocab_size, times=times)]
    assert list(token_findings(uses, data_set(vocab_size))) == []


def test_a_source_that_takes_many_tokens_a_byte_is_told():
    uses = [use("web", 0, 0.25), use("code", 0, 0.3), use("thai", 0, 0.7), use("old", 0, None)]
    (finding,) = token_findings(uses, data_set())
    assert (finding.kind, finding.source) == ("many tokens a byte", "thai")
    assert "0.70 tokens a byte; the other sources take 0.28" in finding.sentence
