"""`longhaul evidence NODE`: gathers what is known of a node into a bundle for its provider."""

import io
import json
import tarfile
from contextlib import suppress
from pathlib import Path

from longhaul.cluster.evidence import files_of
from longhaul.cluster.qualify.records import Check, Report, report_of
from longhaul.core.errors import UsageError
from longhaul.core.files import write_bytes
from longhaul.logbook.lease import user_name
from longhaul.run.qualify.qualify import read_outcome
from longhaul.supervise.nodes.known import find_node, known_nodes
from longhaul.supervise.nodes.ledger import read


def bundle(name: str, out: Path, ledger: Path, target: Path) -> list[str]:
    """Write the bundle of node `name`; the names of its files. UsageError if nothing is known of
    it, or the target cannot be written.
    """
    try:
        events = read(ledger)
    except OSError as error:
        raise UsageError(f"{ledger}: cannot be read ({error.strerror})", "name another") from error
    node = find_node(known_nodes(events, 0.0), name).node
    checks: tuple[Check, ...] = ()
    if (out / "qualify.json").is_file():
        checks = read_outcome(out / "qualify.json").checks
    files = files_of(node, checks, _reports(out), events, {user_name(), Path.home().name})
    folder = f"evidence-{''.join(c if c.isalnum() or c in '-.' else '_' for c in node.host)}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for own, text in files.items():
            body = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{own}")  # no owner, no time: they name somebody
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    try:
        write_bytes(target, packed.getvalue())
    except OSError as error:
        said = f"{target}: cannot be written ({error.strerror})"
        raise UsageError(said, "give another --to FILE") from error
    return [f"{folder}/{own}" for own in files]


def _reports(out: Path) -> list[Report]:
    found = []
    for path in sorted((out / "nodes").glob("*.json")):
        with suppress(ValueError, OSError, UsageError):
            found.append(report_of(json.loads(path.read_text(encoding="utf-8"))))
    return found
