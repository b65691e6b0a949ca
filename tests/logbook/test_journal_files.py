import pytest

from longhaul.logbook.reading import JournalFile, journal_files


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("000001.pilot.jsonl", JournalFile(1, 1, "pilot", False)),
        ("000001.pilot.events.jsonl", JournalFile(1, 1, "pilot", True)),
        ("000012-0002.pilot.jsonl", JournalFile(12, 2, "pilot", False)),
        ("1000000-10000.supervisor.events.jsonl", JournalFile(1000000, 10000, "supervisor", True)),
    ],
)
def test_names_say_what_a_file_holds(name, file):
    assert JournalFile.parse(name) == file
    assert file.name == name


@pytest.mark.parametrize("name", [".reserve", "compacted", "000001.pilot.jsonl~", "1.pilot.jsonl"])
def test_other_files_in_the_folder_are_left_alone(tmp_path, name):
    (tmp_path / name).touch()
    assert journal_files(tmp_path) == []


def test_attempts_and_rotations_sort_as_numbers(tmp_path):
    names = ["1000000.pilot.jsonl", "000002-10000.pilot.jsonl", "000002-0009.pilot.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    assert [file.name for file in journal_files(tmp_path)] == names[::-1]
