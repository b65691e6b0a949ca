import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from longhaul.core.errors import DataError, RecipeError
from longhaul.data.clean.classifier import FEATURES, Quality, features_of, load_classifier
from longhaul.data.clean.prose import Prose
from longhaul.data.clean.training import train_classifier
from longhaul.data.documents import Document


def documents(template, number):
    return [Document(template.format(n, n * 7 % 13), f"x:{n}") for n in range(number)]


GOOD = documents("The engineer of bridge {} measured the river for {} days and wrote it down.", 60)
BAD = documents("CLICK here now {} best price {} click click buy cheap watches online now", 60)


@pytest.fixture(scope="module")
def trained():
    return train_classifier(GOOD, BAD)


def test_it_tells_the_two_sets_apart_and_says_how_well(trained):
    assert trained.facts["area"] > 0.99
    assert trained.facts["good"] == {"documents": 60, "taken": 60}
    assert "bridge" in trained.facts["telling"]["good"]
    assert "click" in trained.facts["telling"]["bad"]
    keeps = Quality(trained, 0.5)
    assert keeps.reason(Prose("An engineer wrote of the river and its bridge.")) is None
    assert keeps.reason(Prose("Buy cheap watches, click now.")) == "classifier < 0.5"


def test_what_is_read_again_judges_alike_and_training_again_gives_the_same_bytes(trained, tmp_path):
    trained.save(tmp_path / "one.safetensors")
    train_classifier(GOOD[::-1], BAD).save(tmp_path / "two.safetensors")
    content = (tmp_path / "one.safetensors").read_bytes()
    assert content == (tmp_path / "two.safetensors").read_bytes()
    again = load_classifier(tmp_path / "one.safetensors")
    prose = Prose("The river was measured and the price was best.")
    assert again.probability(prose) == trained.probability(prose)
    assert again.facts == trained.facts
    sent = pickle.loads(pickle.dumps(Quality(again, 0.5)))  # noqa: S301
    assert sent.classifier.probability(prose) == trained.probability(prose)


def test_a_document_in_both_sets_teaches_nothing(trained):
    facts = train_classifier([*GOOD, BAD[0]], BAD).facts
    assert (facts["in both"], facts["bad"]["taken"]) == (1, 59)
    with pytest.raises(DataError, match=r"0 documents in the good set \(60 more are in both\)"):
        train_classifier(GOOD, GOOD)
    with pytest.raises(DataError, match="3 documents in the bad set"):
        train_classifier(GOOD, BAD[:3])


def test_a_file_that_is_no_classifier_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(RecipeError, match="no such file"):
        load_classifier(path)
    for content in (b"not one", save({"weights": np.zeros(3, np.float32)})):
        path.write_bytes(content)
        with pytest.raises(RecipeError, match="is no classifier"):
            load_classifier(path)
    facts = {"longhaul_classifier": '{"bias": 0.0, "format": 99}'}
    path.write_bytes(save({"weights": np.zeros(FEATURES, np.float32)}, facts))
    with pytest.raises(RecipeError, match="another version"):
        load_classifier(path)


@given(st.text())
def test_every_text_has_features_of_length_one_or_none(text):
    present, values = features_of(Prose(text))
    assert len(present) == len(values)
    assert (np.diff(present) > 0).all()
    assert ((present >= 0) & (present < FEATURES)).all()
    assert not text.split() or np.linalg.norm(values) == pytest.approx(1, abs=1e-5)


def test_features_are_what_they_were():
    # A classifier on disk is of no use to a longhaul that hashes otherwise.
    present, _ = features_of(Prose("One bridge, one river."))
    assert present.tolist() == [82201, 109036, 118413, 175298, 183378, 202132]
