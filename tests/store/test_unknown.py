from longhaul.store.catalogue import ASIDE, catalogue, set_aside, unknown


def test_a_run_that_begins_knows_no_checkpoint_that_lies_there(tmp_path, fill):
    fill(tmp_path / "step-85", 85, time=500.0)
    there = catalogue(tmp_path)
    assert unknown(there, (), begun=False, created=400.0) == there


def test_what_the_ledger_names_is_the_runs_whatever_the_clocks_say(tmp_path, fill):
    fill(tmp_path / "step-85", 85, time=100.0)
    there = catalogue(tmp_path)
    named = {there[0].manifest_sha256}
    assert not unknown(there, named, begun=True, created=400.0)
    assert unknown(there, (), begun=True, created=400.0) == there


def test_a_checkpoint_that_no_record_names_yet_is_the_runs(tmp_path, fill):
    """Its process died between the commit and the next record."""
    fill(tmp_path / "step-85", 85, time=500.0)
    there = catalogue(tmp_path)
    assert not unknown(there, (), begun=True, created=400.0)
    assert not unknown(there, (), begun=True, created=None), "an older run does not say"


def test_what_is_set_aside_is_kept_whole_and_chosen_no_more(tmp_path, fill):
    contents = []
    for content in (b"one", b"another"):
        fill(tmp_path / "step-85", 85, content)
        contents.append((tmp_path / "step-85" / "manifest.json").read_bytes())
        assert set_aside(catalogue(tmp_path)) == tmp_path / ASIDE
        assert catalogue(tmp_path) == []
    kept = [path.read_bytes() for path in (tmp_path / ASIDE).rglob("manifest.json")]
    assert sorted(kept) == sorted(contents)
