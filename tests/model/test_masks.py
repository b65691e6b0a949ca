import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from longhaul.config.model import ModelSection
from longhaul.model.masks import CAUSAL, EVERYTHING, make_sight, may_attend, views_of
from longhaul.train.memory import LiveBytes

END = 0


def shape(**changes: object) -> ModelSection:
    small = {"layers": 4, "heads": 1, "width": 8, "context": 300}
    return ModelSection.model_validate(small | changes)


def some_tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(4, (batch, length), generator=torch.Generator().manual_seed(length))


def expected(tokens, past, window, documents):
    """Pair by pair: not ahead, within the window, and no end of text from then until now."""
    batch, end = tokens.shape
    seen = torch.zeros(batch, end - past, end, dtype=torch.bool)
    for row in range(batch):
        for now in range(past, end):
            for then in range(now + 1):
                near = window is None or now - then < window
                whole = not documents or END not in tokens[row, then:now]
                seen[row, now - past, then] = near and whole
    return seen


def drawn(view, batch, length, end):
    """A view as a mask [B, T, S]."""
    if view is CAUSAL:
        mask = torch.ones(length, end, dtype=torch.bool).tril()
    elif view is EVERYTHING:
        mask = torch.ones(length, end, dtype=torch.bool)
    else:
        mask = view.mask
    return mask.view(-1, length, end).expand(batch, -1, -1)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 12),
    past=st.integers(0, 9),
    window=st.one_of(st.none(), st.integers(1, 24)),
    documents=st.booleans(),
)
def test_a_view_shows_what_the_switches_say_and_nothing_else(length, past, window, documents):
    settings = shape(window=window, document_mask=documents)
    tokens = some_tokens(3, past + length)
    view = make_sight(settings, tokens, past=past, end_of_text=END)[0]
    wanted = expected(tokens, past, window, documents)
    assert torch.equal(drawn(view, 3, length, past + length), wanted)


@pytest.mark.parametrize("window", [None, 7, 40])
@pytest.mark.parametrize("documents", [False, True])
def test_the_rule_given_to_flex_attention_is_the_same(window, documents):
    tokens = some_tokens(2, 30)
    ends = (tokens == END).long()
    rule = may_attend(window, ends.cumsum(1) - ends if documents else None)
    mask = create_mask(rule, 2, 1, 30, 30, device="cpu")
    assert torch.equal(mask[:, 0], expected(tokens, 0, window, documents))


def test_a_document_owns_the_token_that_ends_it():
    tokens = torch.tensor([[5, END, 6, 7, END, END, 8]])
    view = make_sight(shape(document_mask=True), tokens, end_of_text=END)[0]
    first_seen = view.mask[0, 0].int().argmax(dim=1)
    assert first_seen.tolist() == [0, 0, 2, 2, 2, 5, 6]


@pytest.mark.parametrize("window", [None, 9, 10])
def test_without_anything_to_hide_the_causal_kernel_is_asked_for(window):
    view = make_sight(shape(window=window), some_tokens(2, 9))[0]
    assert view is CAUSAL
    assert view.is_causal
    assert view.mask is None


def test_a_single_new_token_without_a_window_needs_no_mask():
    assert make_sight(shape(), some_tokens(1, 9), past=8)[0] is EVERYTHING


def test_layers_that_see_alike_share_one_view():
    settings = shape(layers=6, window=3, window_full_every=3)
    sight = make_sight(settings, some_tokens(2, 9))
    views = [sight[layer] for layer in range(6)]
    assert [view is CAUSAL for view in views] == [False, False, True, False, False, True]
    assert len({id(view) for view in views}) == 2


def test_a_warming_window_replaces_that_of_windowed_layers_only():
    settings = shape(window=3, window_full_every=2)
    sight = make_sight(settings, some_tokens(1, 9), window=5)
    assert drawn(sight[0], 1, 9, 9)[0, -1].sum() == 5
    assert sight[1] is CAUSAL
    assert make_sight(shape(), some_tokens(1, 9), window=5)[0] is CAUSAL


@pytest.mark.parametrize("window", [40, torch.tensor(40)], ids=["number", "tensor"])
def test_block_masks_hold_the_same_rule(window):
    tokens = some_tokens(2, 300)
    settings = shape(window=40, document_mask=True)
    ends = (tokens == END).long()
    documents = ends.cumsum(1) - ends
    blocks = views_of(300, 0, tokens.device, [window], documents, sparse=True)[0].blocks
    assert blocks.shape == (2, 1, 300, 300)
    # Squares of 128 tokens, three a side: those ahead and those behind the window are skipped.
    assert blocks.to_dense()[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    dense = make_sight(settings, tokens, end_of_text=END)[0].mask
    rows, columns = torch.arange(300)[:, None], torch.arange(300)
    for batch in range(2):
        sequence = torch.tensor(batch)
        assert torch.equal(blocks.mask_mod(sequence, sequence, rows, columns), dense[batch, 0])


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    length=st.integers(129, 700),
    window=st.one_of(st.none(), st.sampled_from([1, 2, 127, 128, 129, 255, 256, 257, 400, 1000])),
    ends=st.one_of(st.none(), st.lists(st.integers(0, 699), max_size=6)),
)
def test_squares_told_from_their_borders_are_those_of_all_pairs(length, window, ends):
    tokens = torch.ones(2, length, dtype=torch.long)
    if ends is not None:
        tokens[0, [end for end in ends if end < length]] = END
    elif window is None or window >= length:
        window = 5
    of_end = (tokens == END).long()
    documents = None if ends is None else of_end.cumsum(1) - of_end
    ours = views_of(length, 0, tokens.device, [window], documents, sparse=True)[0].blocks
    batch = None if documents is None else 2
    window = None if window is None or window >= length else window
    theirs = create_block_mask(may_attend(window, documents), batch, None, length, length, "cpu")
    assert ours.shape == theirs.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(ours, f"{name}_num_blocks"), getattr(theirs, f"{name}_num_blocks")
        assert torch.equal(*counts), name
        columns = getattr(ours, f"{name}_indices"), getattr(theirs, f"{name}_indices")
        there = torch.arange(columns[0].size(-1)) < counts[0][..., None]
        assert torch.equal(columns[0][there], columns[1][there]), name


def test_block_masks_are_made_without_writing_all_pairs_out():
    length = 8192
    tokens = some_tokens(2, length)
    of_end = (tokens == END).long()
    with LiveBytes() as live:
        documents = of_end.cumsum(1) - of_end
        sight = views_of(length, 0, tokens.device, [1024, None], documents, sparse=True)
        assert sight[0].blocks.sparsity() > 80
        assert sight[1].blocks is not None
    assert live.peak < length * length / 20  # 134 MB for one such mask of bytes


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("window", "documents"), [(None, False), (40, False), (40, True)])
def test_some_rows_of_a_view_are_those_rows(window, documents, sparse):
    tokens, rows = some_tokens(2, 150), torch.tensor([0, 7, 149])
    ends = (tokens == END).long()
    of_document = ends.cumsum(1) - ends if documents else None
    view = views_of(150, 0, tokens.device, [window], of_document, sparse)[0]
    assert (view.blocks is not None) == (sparse and view is not CAUSAL)
    seen = view.seen_by(rows, 2, 150).view(-1, 3, 150).expand(2, 3, 150)
    assert torch.equal(seen, expected(tokens, 0, window, documents)[:, rows])


def test_rows_that_see_everything_need_no_mask():
    assert EVERYTHING.seen_by(torch.tensor([0]), 2, 9) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_gets_block_masks_where_flex_attention_can_serve():
    tokens = some_tokens(2, 300).cuda()
    assert make_sight(shape(window=40), tokens)[0].blocks is not None
    assert make_sight(shape(window=40, dropout=0.1), tokens)[0].mask is not None
    assert make_sight(shape(window=40), tokens, past=299)[0].mask is not None
    assert make_sight(shape(window=40), tokens[:, :60])[0].mask is not None
    assert make_sight(shape(window=40), tokens, skips_masked=False)[0].mask is not None
    assert make_sight(shape(), tokens)[0] is CAUSAL
