"""Text that comes while it is read gives what text that lies there gives."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.small_shards import in_small_shards
from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError, NeedsPerson, RecipeError, UsageError
from longhaul.data import batches
from longhaul.data import streaming as module
from longhaul.data.batches import BatchReader, BatchRequest
from longhaul.data.dataset import MANIFEST, Dataset, open_dataset
from longhaul.data.lint.tokens import token_use
from longhaul.data.prepare import prepare
from longhaul.data.shard_server import PassedShards
from longhaul.data.shards import STREAM
from longhaul.data.streaming import StreamSettings, room_needed, stream_of
from longhaul.data.transport import pull, push
from longhaul.store import store_files
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import StoreError

BLOCK = 64
WINDOW = 40 * BLOCK


def quiet(_: str) -> None:
    pass


@pytest.fixture
def whole(tmp_path: Path, recipe_for) -> Path:
    """A prepared folder with some thirty shards to train on."""
    for path in texts(tmp_path):
        lines = [json.dumps({"text": f"{path.stem} {n} {n * n}" * 30}) for n in range(300)]
        path.write_text("\n".join(lines))
    folder = prepare(recipe_for(texts(tmp_path)), tmp_path / "a", quiet).folder
    return in_small_shards(folder, 8_000)


def texts(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]


def store(tmp_path: Path, whole: Path) -> StoreFiles:
    return StoreFiles(str(tmp_path / "store" / whole.name))


def pulled(tmp_path: Path, whole: Path, cache_bytes: int = 10**9, home: str = "b") -> Path:
    files = store(tmp_path, whole)
    if files.read_small(MANIFEST) is None:
        push(whole, files, 3, RealClock(), quiet)
    address = str(tmp_path / "store" / whole.name)
    settings = StreamSettings(address, str(tmp_path / f"cache-{home}"), cache_bytes, {})
    pull(files, whole.name, tmp_path / home, 3, RealClock(), quiet, None, settings)
    return tmp_path / home / whole.name


def reader(dataset: Dataset, recipe, tokens: int | None = WINDOW) -> BatchReader:
    order = recipe.order.model_copy(update={"shuffle_tokens": tokens, "cycle": 8})
    return BatchReader(dataset, recipe.model_copy(update={"order": order}))


@pytest.fixture
def recipe(tmp_path: Path, recipe_for):
    made = recipe_for(texts(tmp_path))
    model = made.model.model_copy(update={"context": BLOCK})
    return made.model_copy(update={"model": model})


def test_what_comes_is_what_lies_there(tmp_path: Path, whole: Path, recipe) -> None:
    largest = max(path.stat().st_size for path in whole.glob("*.shard"))
    folder = pulled(tmp_path, whole, 10 * largest)
    assert not list(folder.glob("*-small-*.shard")), "no shard to train on came yet"
    here, there = (reader(open_dataset(one), recipe) for one in (whole, folder))
    assert there._dataset.identity == here._dataset.identity
    draw, cache, seen = 0, there._dataset.streaming.cache, set[str]()
    for _ in range(300):
        request = BatchRequest(draw, 8, BLOCK)
        mine, other = here.read(request), there.read(request)
        assert np.array_equal(mine.tokens_BT, other.tokens_BT)
        assert np.array_equal(mine.targets_BT, other.targets_BT)
        draw = mine.next_draw
        held = cache.held()
        assert sum(one.size_bytes for one in held) <= 10 * largest
        seen |= {one.sha256 for one in held}
    assert len(seen) >= 2 * len(held), "shards went again"
    assert len(there._dataset.streaming._open) <= 10, "and are not kept open"


def test_shards_of_the_next_window_come_before_they_are_read(tmp_path, whole, recipe) -> None:
    folder = pulled(tmp_path, whole)
    there = reader(open_dataset(folder), recipe)
    there.read(BatchRequest(0, 8, BLOCK))
    streaming = there._dataset.streaming
    wanted = streaming._wanted
    assert len(wanted) >= 4
    with streaming._changed:
        assert streaming._changed.wait_for(lambda: set(streaming._open) >= set(wanted), 30)


def test_a_recipe_that_shuffles_all_at_once_is_refused(tmp_path, whole, recipe) -> None:
    dataset = open_dataset(pulled(tmp_path, whole))
    with pytest.raises(DataError, match="shuffles all of it at once") as raised:
        reader(dataset, recipe, None)
    assert "order.shuffle_tokens" in raised.value.remedy


def test_a_cache_too_small_for_two_windows_is_refused_before_the_first_step(
    tmp_path, whole, recipe
) -> None:
    dataset = open_dataset(pulled(tmp_path, whole, 50_000))
    with pytest.raises(DataError, match="room for 50 kB; shards of windows of 2,560 tokens"):
        reader(dataset, recipe)


@given(
    shards=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    window=st.integers(1, 200),
)
def test_no_window_touches_more_than_the_room_that_was_counted(shards, window) -> None:
    sizes = [3 * tokens + 7 for tokens in shards]
    owner = np.repeat(np.arange(len(shards)), shards)
    touched = [
        sum(sizes[number] for number in set(owner[begin : begin + window + 1].tolist()))
        for begin in range(len(owner))
    ]
    room = room_needed(sizes, shards, window)
    assert room >= min(2 * max(touched), sum(sizes))
    assert room <= sum(sizes)


class Flaky:
    """Gives shards after a few failures, and counts."""

    def __init__(self, inner: PassedShards, failures: int, error: Exception) -> None:
        self.inner, self.left, self.error, self.reads = inner, failures, error, Counter[str]()

    def use(self, file, opened):
        self.reads[file.name] += 1
        if self.left:
            self.left -= 1
            raise self.error
        return self.inner.use(file, opened)


@pytest.fixture
def dataset(tmp_path, whole, monkeypatch) -> Iterator[Dataset]:
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    made = open_dataset(pulled(tmp_path, whole))
    yield made
    made.streaming.close()


def flaky(dataset: Dataset, failures: int, error: Exception) -> Flaky:
    streaming = dataset.streaming
    streaming._shards = made = Flaky(streaming._source(), failures, error)
    return made


def test_a_store_that_is_away_for_a_while_is_asked_again_and_told(dataset) -> None:
    said: list[str] = []
    dataset.streaming.tell(said.append)
    away = flaky(dataset, 2, StoreError("the store is away"))
    shard = dataset.sources[0].train.shards[0]
    assert len(shard.tokens) == shard.num_tokens
    assert away.reads[shard.path.name] == 3
    assert [line.count("the store is away") for line in said] == [1, 1]


@pytest.mark.parametrize("error", [StoreError("the store is away"), DataError("no room for it")])
def test_what_does_not_come_for_long_ends_the_attempt_and_says_why(
    dataset, monkeypatch, error
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    flaky(dataset, 10**9, error)
    with pytest.raises(type(error), match=error.message):
        _ = dataset.sources[0].train.shards[0].tokens


def test_a_store_that_hangs_ends_the_attempt_too(dataset, monkeypatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    silent = threading.Event()

    class Hanging:
        def use(self, file, opened):
            silent.wait(30)

    dataset.streaming._shards = Hanging()
    with pytest.raises(StoreError, match="has not come from"):
        _ = dataset.sources[0].train.shards[0].tokens
    silent.set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(28, "No space left on device"), NeedsPerson), (UsageError("no key"), UsageError)],
)
def test_what_no_waiting_mends_is_told_at_once(dataset, error, kind) -> None:
    flaky(dataset, 10**9, error)
    with pytest.raises(kind, match=r"No space left|no key"):
        _ = dataset.sources[0].train.shards[0].tokens


def test_whoever_waits_is_told_that_the_run_ends(dataset) -> None:
    flaky(dataset, 10**9, StoreError("the store is away"))
    ended: list[BaseException] = []

    def read() -> None:
        with pytest.raises(StoreError) as raised:
            _ = dataset.sources[0].train.shards[0].tokens
        ended.append(raised.value)

    thread = threading.Thread(target=read)
    thread.start()
    while not dataset.streaming._urgent:
        time.sleep(0.001)
    dataset.streaming.close()
    thread.join(30)
    assert len(ended) == 1


def test_what_fails_ahead_of_use_is_asked_for_again(dataset) -> None:
    said: list[str] = []
    dataset.streaming.tell(said.append)
    name = dataset.sources[0].train.shards[0].path.name
    flaky(dataset, 1, RuntimeError("anything"))
    dataset.streaming.want([name])
    with dataset.streaming._changed:
        assert dataset.streaming._changed.wait_for(lambda: name in dataset.streaming._open, 30)
    assert "does not come (anything)" in said[0]
    assert dataset.streaming.open(name).num_tokens


def test_an_address_that_is_no_good_here_spoils_nothing_but_reading(tmp_path, whole) -> None:
    folder = pulled(tmp_path, whole)
    settings = json.loads((folder / STREAM).read_text())
    (folder / STREAM).write_text(json.dumps(settings | {"address": "s9://no/where"}))
    dataset = open_dataset(folder)
    assert dataset.sources[0].held_out.num_tokens
    with pytest.raises(RecipeError, match="s9"):
        _ = dataset.sources[0].train.shards[0].tokens
    dataset.streaming.close()


def test_a_source_that_is_not_drawn_from_needs_no_room_and_does_not_come(
    tmp_path, whole, recipe
) -> None:
    one, two = recipe.data.sources
    unread = two.model_copy(update={"weight": 0.0})
    data = recipe.data.model_copy(update={"sources": (one, unread)})
    names = open_dataset(whole).sources
    largest = max(path.stat().st_size for path in whole.glob("*.shard"))
    dataset = open_dataset(pulled(tmp_path, whole, 7 * largest))
    with pytest.raises(DataError, match="room for"):
        reader(dataset, recipe)
    there = reader(dataset, recipe.model_copy(update={"data": data}))
    there.read(BatchRequest(0, 8, BLOCK))
    assert set(there._dataset.streaming._wanted) <= {path.name for path in names[0].train.paths}
    there.close()


def test_a_window_smaller_than_a_step_is_refused(tmp_path, whole, recipe) -> None:
    dataset = open_dataset(pulled(tmp_path, whole))
    with pytest.raises(DataError, match="fewer than a step reads"):
        reader(dataset, recipe, BLOCK - 1)


def test_who_waits_for_a_shard_gives_signs_of_life(dataset, recipe, monkeypatch) -> None:
    monkeypatch.setattr(batches, "_SIGN_EVERY_S", 0.005)
    there, asked, came, signs = reader(dataset, recipe), threading.Event(), threading.Event(), []
    inner = dataset.streaming._source()

    class Slow:
        def use(self, file, opened):
            asked.set()
            assert came.wait(30)
            return inner.use(file, opened)

    def sign() -> None:
        signs.append(asked.is_set())
        if len(signs) == 3:
            came.set()

    dataset.streaming._shards = Slow()
    dataset.streaming.on_wait(sign)
    assert there.read(BatchRequest(0, 8, BLOCK)).num_targets == 8 * BLOCK
    assert len(signs) >= 3
    assert signs[-1]
    before = len(signs)
    dataset.streaming.waits()
    assert len(signs) == before, "nobody waits any more"


def test_several_readers_fetch_a_shard_once(dataset) -> None:
    asked = flaky(dataset, 0, OSError())
    shard = dataset.sources[0].train.shards[0]
    threads = [threading.Thread(target=lambda: shard.tokens) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.reads == {shard.path.name: 1}


def test_documents_and_lint_see_the_text(whole, dataset) -> None:
    lies = open_dataset(whole)
    for mine, other in zip(lies.sources, dataset.sources, strict=True):
        assert mine.train.documents_in(100, 5000) == other.train.documents_in(100, 5000)
    for mine, other in zip(token_use(lies), token_use(dataset), strict=True):
        assert np.array_equal(mine.counts, other.counts)


def test_a_pull_again_changes_where_shards_come_to(tmp_path, whole) -> None:
    folder = pulled(tmp_path, whole)
    before = stream_of(folder)
    again = StreamSettings(before.address, str(tmp_path / "other"), 7, {}, ("http://h:1",))
    pull(store(tmp_path, whole), whole.name, tmp_path / "b", 3, RealClock(), quiet, None, again)
    now = stream_of(folder)
    assert (now.cache, now.cache_bytes, now.nodes) == (str(tmp_path / "other"), 7, ("http://h:1",))
    assert now.shards == before.shards


def test_a_text_that_comes_is_neither_pulled_as_a_whole_over_it_nor_pushed(tmp_path, whole) -> None:
    folder = pulled(tmp_path, whole)
    with pytest.raises(DataError, match="comes while it is read"):
        pull(store(tmp_path, whole), whole.name, tmp_path / "b", 3, RealClock(), quiet)
    with pytest.raises(DataError, match="comes from a store itself"):
        push(folder, StoreFiles(str(tmp_path / "elsewhere")), 3, RealClock(), quiet)


@pytest.mark.parametrize("content", ["{", '{"address": "x"}', '{"address": 1, "cache": 2}'])
def test_damaged_settings_are_named(tmp_path, whole, content) -> None:
    folder = pulled(tmp_path, whole)
    (folder / STREAM).write_text(content)
    with pytest.raises(DataError, match=r"stream\.json"):
        open_dataset(folder)


def test_a_shard_damaged_in_the_store_is_named(tmp_path, dataset, monkeypatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.02)
    monkeypatch.setattr(store_files, "_ATTEMPTS", 1)
    shard = dataset.sources[0].train.shards[0]
    path = next((tmp_path / "store").glob(f"*/{shard.path.name}"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises((StoreError, DataError), match=shard.path.name):
        _ = shard.tokens
    assert json.loads((dataset.folder / STREAM).read_text())["shards"][shard.path.name]
