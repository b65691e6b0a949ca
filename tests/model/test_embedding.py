import torch

from longhaul.config.model import ModelSection
from longhaul.model.embedding import BigramTable, ValueTables

ALL_PAIRS = torch.cartesian_prod(torch.arange(50), torch.arange(50))


def test_every_pair_has_a_row_of_its_own_where_there_is_room():
    table = BigramTable(rows=51 * 50, width=1, vocab_size=50)
    alone = table.row_of(torch.arange(50)[:, None])
    rows = torch.cat((table.row_of(ALL_PAIRS)[:, 1], alone[:, 0]))
    assert rows.unique().numel() == 51 * 50
    assert int(rows.max()) == 51 * 50 - 1


def test_pairs_without_room_spread_evenly_over_all_rows():
    for rows in (64, 97, 100):  # a power of two, a prime, and neither
        table = BigramTable(rows, width=1, vocab_size=50)
        used = table.row_of(ALL_PAIRS)[:, 1].bincount(minlength=rows)
        assert int(used.min()) > 0
        assert int(used.max()) < 3 * 2500 / rows


def test_a_vocabulary_as_large_as_any_stays_within_the_rows():
    table = BigramTable(rows=1000, width=1, vocab_size=256_000)
    last = torch.full((1, 9), 255_999)
    rows = table.row_of(last)
    assert bool(((rows >= 0) & (rows < 1000)).all())
    assert rows[0, 1:].unique().numel() == 1


def test_a_row_depends_on_the_token_and_the_one_before_alone():
    table = BigramTable(rows=1000, width=1, vocab_size=50)
    tokens_BT = torch.randint(50, (4, 30), generator=torch.Generator().manual_seed(0))
    other_BT = tokens_BT.clone()
    other_BT[:, 10] = (other_BT[:, 10] + 1) % 50
    changed = (table.row_of(tokens_BT) != table.row_of(other_BT)).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [10, 11]


def test_with_the_token_before_it_a_part_has_the_rows_of_the_whole():
    table = BigramTable(rows=1000, width=1, vocab_size=50)
    tokens_BT = torch.randint(50, (4, 30), generator=torch.Generator().manual_seed(0))
    part = table.row_of(tokens_BT[:, 12:], tokens_BT[:, 11:12])
    assert torch.equal(part, table.row_of(tokens_BT)[:, 12:])


def test_each_value_table_serves_a_first_and_a_last_layer():
    settings = ModelSection(layers=7, heads=4, kv_heads=2, width=16, context=4, value_embeddings=2)
    tables = ValueTables(settings, rows=9)
    with torch.no_grad():
        for number, table in enumerate(tables):
            table.weight.fill_(number)
    served = tables(torch.zeros(3, 4, dtype=torch.int64))
    assert {layer: rows.flatten()[0].item() for layer, rows in served.items()} == {
        0: 0.0, 1: 1.0, 5: 0.0, 6: 1.0,
    }  # fmt: skip
    assert served[0].shape == (3, 4, 2 * 4)
