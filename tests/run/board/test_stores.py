"""Runs that lie in stores, on the board."""

from pathlib import Path

from starlette.testclient import TestClient

from fakes import FakeClock
from longhaul.run.board.app import application
from longhaul.run.board.shelf import Shelf
from longhaul.run.board.stores import Stores
from longhaul.store.remote_run import COPIES


def test_runs_below_an_address_are_shown_followed_and_not_steered(sent: Path, tmp_path: Path):
    said: list[str] = []
    stores = Stores([f"file://{sent.parent / 'store'}"], tmp_path, said.append)
    stores.look()
    copies = tmp_path / COPIES
    client = TestClient(
        application(Shelf([copies], FakeClock(), copies), "token", ["127.0.0.1"]),
        base_url="http://127.0.0.1",
    )
    (row,) = client.get("/api/runs").json()
    assert (row["name"], row["step"], row["state"]) == ("drill", 4, "finished")
    answer = client.post(
        f"/api/runs/{row['key']}/requests", json={"kind": "note", "text": "hello"},
        headers={"authorization": "Bearer token"},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["message"][:24]) == (422, "this run trains elsewher")
    stores.look()
    assert said == []


def test_a_store_that_is_not_there_is_said_once(tmp_path: Path):
    said: list[str] = []
    stores = Stores([f"file://{tmp_path / 'nothing'}", "nonsense://x"], tmp_path, said.append)
    stores.look()
    before = list(said)
    stores.look()
    assert said == before
    assert any("nonsense" in line for line in before)
