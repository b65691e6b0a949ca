"""The page of duplicates shows what was found, and no text in it becomes HTML."""

from longhaul.board.duplicates import PAGE, render, write_page

EVIL = "<script>alert('x')</script>"
MEMBERS = [
    {"source": "wiki", "name": "w:1", "characters": 1234, "similarity": 1.0, "excerpt": EVIL},
    {"source": "mail", "name": "m:7", "characters": 1200, "similarity": 0.912, "excerpt": "near"},
]
REPORT = {
    "documents": 1000, "exact": 12, "near": 30, "clusters": 20,
    "by_source": [
        {"dropped": "mail", "kept": "wiki", "exact": 12, "near": 29},
        {"dropped": EVIL, "kept": "wiki", "exact": 0, "near": 1},
    ],
    "sizes": {"2": 15, "5": 4, "17": 1},
    "largest": [{"size": 17, "members": MEMBERS}],
}  # fmt: skip
NOTHING = {
    "documents": 3, "exact": 0, "near": 0, "clusters": 0, "by_source": [], "sizes": {},
    "largest": [],
}  # fmt: skip


def test_the_page_says_who_repeats_whom_and_shows_the_largest_side_by_side():
    page = render("corpus", REPORT, "")
    assert "42 documents of 1,000 dropped (4.20%)" in page
    assert "<td>12 exact, 29 near</td>" in page
    assert "dropped, Jaccard 0.912" in page
    assert page.index("w:1") < page.index("m:7")
    assert "17 documents" in page


def test_no_text_of_a_document_or_a_source_becomes_html():
    assert EVIL not in render("corpus", REPORT, "")


def test_many_sizes_end_in_one_bar():
    sizes = {str(size): 1 for size in range(2, 200)}
    assert "41 and more" in render("corpus", REPORT | {"sizes": sizes}, "")


def test_where_nothing_is_alike_the_page_says_so(tmp_path):
    write_page(tmp_path / PAGE, "corpus", NOTHING)
    page = (tmp_path / PAGE).read_text()
    assert "0 documents of 3 dropped" in page
    assert page.count("No document is like another.") == 2
    assert "No step has been made" not in page
