"""The prepared text of a run: pinned when it first trains, compared with its manifest's hashes.

What small data takes is compared before the first step, and the rest on a thread that rests as long
as it reads. A restart reads no file again whose size, time of change and inode are as they were.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from longhaul.config.recipe import Recipe, source_name
from longhaul.core.clocks import Clock, RealClock
from longhaul.core.errors import DataError, UsageError
from longhaul.core.files import write_json
from longhaul.core.output import Say
from longhaul.core.strict import read_object
from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.data.dataset import (
    Dataset,
    files_here,
    open_dataset,
    read_manifest,
    shards_of,
)
from longhaul.data.prepare import prepare
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.run_spec import RunSpec

MEMORY = ".compared.jsonl"
"""Beside the prepared files, or where that is read-only in the run's folder."""
_PINNED = "text.json"
"""In the run's folder."""
_AT_ONCE: Bytes = 64 << 20
"""Compared before the first step; a tenth of a second where the files are in memory."""
_CHUNK: Bytes = 4 << 20
_END_S: Seconds = 5.0


@dataclass(frozen=True, slots=True)
class _Compared:
    name: str
    size_bytes: Bytes
    mtime_ns: int
    inode: int
    sha256: str


class Verification:
    """The comparison of one prepared folder with its manifest.

    Of `memories`, files that remember what was compared, the first that can be written is; `begin`
    compares `at_once` before it returns. DataError if there is no manifest, or it lists what is not
    there.
    """

    def __init__(
        self,
        folder: Path,
        memories: Sequence[Path] = (),
        at_once: Bytes = _AT_ONCE,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._memories = tuple(memories)
        self._at_once = at_once
        self._clock: Clock = clock or RealClock()
        known = set(_remembered(self._memories))
        wanted = files_here(folder, read_manifest(folder)).items()
        found = {name: _found(folder / name, name, str(file["sha256"])) for name, file in wanted}
        self.left = [file for file in found.values() if file is not None and file not in known]
        """Not compared yet, in the order of the manifest."""
        self.num_files = len(found)
        self.unread = [f"{folder / n}: cannot be read" for n, file in found.items() if not file]
        """Files that could not be read, and why."""
        self._wrong: DataError | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def left_bytes(self) -> Bytes:
        """Of the files that were not compared yet."""
        return sum(file.size_bytes for file in self.left)

    def begin(self, say: Say) -> None:
        """Compare what takes no time, and the rest meanwhile; DataError if one differs."""
        done: Bytes = 0
        while self.left and done + self.left[0].size_bytes <= self._at_once:
            done += self.left[0].size_bytes
            self._next()
        if self.left:
            say(
                f"data: comparing {len(self.left)} files ({short_bytes(self.left_bytes)}) with "
                "their checksums beside training"
            )
            self._thread = threading.Thread(target=self._run, name="compare data", daemon=True)
            self._thread.start()

    def raise_if_wrong(self) -> None:
        """Raise the DataError of a file that differs, if one was found since `begin`."""
        if self._wrong is not None:
            raise self._wrong

    def compare_all(self, memories: Sequence[Path] = ()) -> None:
        """Compare all files left, remembered in `memories` too; DataError if one differs."""
        self._memories += tuple(memories)
        while self.left:
            self._next()
        if self.unread:
            raise DataError(self.unread[0], "mend the medium, or prepare the data again")

    def close(self) -> None:
        """End the thread; what is left is compared after the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            while self.left and not self._stop.is_set():
                self._next(rest=True)
        except DataError as error:
            self._wrong = error

    def _next(self, rest: bool = False) -> None:
        file = self.left[0]
        path = self._folder / file.name
        try:
            sha256 = self._sha256(path, rest)
        except OSError as error:
            # Of a medium that is away for a moment no run ends here: training reads the file too.
            self.unread.append(f"{path}: cannot be read ({error.strerror})")
            self.left.pop(0)
            return
        if sha256 is None:  # it is to stop
            return
        if sha256 != file.sha256:
            written = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.mtime_ns / 1e9))
            raise DataError(
                f"{path}: its bytes are not those that were prepared (SHA-256 {sha256[:12]}…, the "
                f"manifest says {file.sha256[:12]}…; last written {written})",
                f"delete {self._folder} and start again, which prepares it anew from its sources; "
                "`longhaul rollback RUN --to STEP` goes back behind steps made on other bytes",
            )
        self.left.pop(0)
        if _found(path, file.name, file.sha256) == file:  # it did not change while it was read
            _remember(self._memories, file)

    def _sha256(self, path: Path, rest: bool) -> str | None:
        digest, buffer = hashlib.sha256(), bytearray(_CHUNK)
        with path.open("rb", buffering=0) as opened:
            while True:
                began = self._clock.monotonic()
                size = opened.readinto(buffer)
                if not size:
                    return digest.hexdigest()
                digest.update(memoryview(buffer)[:size])
                # Half of the time is left to whoever reads and computes beside this.
                if rest and self._stop.wait(self._clock.monotonic() - began):
                    return None


@contextmanager
def verifying(folder: Path, run: Path, say: Say) -> Iterator[Verification]:
    """Compare the prepared folder of a run beside the body, until it ends."""
    verification = Verification(folder, (folder / MEMORY, run / MEMORY))
    try:
        verification.begin(say)
        yield verification
    finally:
        verification.close()
    if left := len(verification.left) + len(verification.unread):
        say(
            f"data: {left} of {verification.num_files} files were not compared with their "
            "checksums yet; the next start goes on with them"
        )


def _found(path: Path, name: str, sha256: str) -> _Compared | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _Compared(name, found.st_size, found.st_mtime_ns, found.st_ino, sha256)


def _remembered(memories: Iterable[Path]) -> Iterator[_Compared]:
    for memory in memories:
        with suppress(OSError):
            for line in memory.read_bytes().splitlines():
                with suppress(ValueError, TypeError):  # torn, or of a later longhaul
                    yield _Compared(**json.loads(line))


def _remember(memories: Iterable[Path], file: _Compared) -> None:
    line = json.dumps(asdict(file)).encode() + b"\n"
    for memory in memories:
        with suppress(OSError), memory.open("ab", buffering=0) as opened:
            opened.write(line)  # else it is compared again
            return


def text_for_training(folder: RunFolder, spec: RunSpec, say: Say) -> Dataset:
    """The run's pinned text, or text prepared now and pinned; DataError if it cannot be had.

    Where the recipe has other sources than the run began with, text is prepared with them and the
    run's own tokenizer. DataError unless the sources that both have are the same, token for token.
    """
    pins, recipe = _pins(folder), spec.settings()
    dataset = None
    if pins:
        with suppress(DataError, OSError):
            dataset = open_dataset(pins[-1].folder)
    if dataset is not None and pins:
        if not has_sources_of(dataset, recipe):
            return _with_other_sources(folder, spec, dataset, pins, say)
        say(f"data: reusing {_listed(dataset.summary())}")
    dataset = dataset or prepare(recipe, Path(spec.prepared), say)
    if not pins:
        _write_pins(folder, (_Pin(dataset.folder.resolve(), dataset.identity),))
    elif dataset.identity != pins[-1].identity:
        raise DataError(
            f"run {folder.name} was trained on prepared text {pins[-1].identity[:12]}, which is "
            f"gone from {pins[-1].folder}; its sources now give {dataset.identity[:12]}",
            "put the prepared text or the sources back, or start another run with --new",
        )
    return replace(dataset, continues=tuple(pin.identity for pin in pins))


def _with_other_sources(
    folder: RunFolder, spec: RunSpec, known: Dataset, pins: tuple["_Pin", ...], say: Say
) -> Dataset:
    say("data: the recipe has other sources than the run was trained on so far")
    tokenizer = known.folder / known.tokenizer_file
    dataset = prepare(spec.settings(), Path(spec.prepared), say, tokenizer)
    before, now = (shards_of(read_manifest(found.folder)) for found in (known, dataset))
    for name, shards in now.items():
        if before.get(name, shards) != shards:
            raise DataError(
                f"{name}: prepared beside the other sources it is not what run {folder.name} was "
                "trained on",
                "name new sources after those that the run has: of documents that are in several, "
                "the first is kept; or start another run with --new",
            )
    _write_pins(folder, (*pins, _Pin(dataset.folder.resolve(), dataset.identity)))
    return replace(dataset, continues=tuple(pin.identity for pin in pins))


def earlier_texts(folder: RunFolder) -> Iterator[Dataset]:
    """What a run was trained on before its sources changed, newest first, as far as it is there."""
    for pin in reversed(_pins(folder)[:-1]):
        with suppress(DataError, OSError):
            yield open_dataset(pin.folder)


def text_of(folder: RunFolder, recipe: Recipe | None = None) -> Dataset:
    """The text a run was trained on, to read only; `recipe`: when its sources were those of this.
    UsageError if there is none, or it is gone.
    """
    pins = _pins(folder)
    if not pins:
        raise UsageError(f"run {folder.name} has not been trained yet", "start it first")
    pin = pins[-1]
    try:
        dataset = open_dataset(pin.folder)
        if recipe is not None and not has_sources_of(dataset, recipe):
            others = (text for text in earlier_texts(folder) if has_sources_of(text, recipe))
            return next(others, dataset)
    except (DataError, OSError) as error:
        why = error.message if isinstance(error, DataError) else error
        raise UsageError(
            f"the prepared text of run {folder.name} is gone from {pin.folder} ({why})",
            f"`longhaul train {folder.path}` prepares it again",
        ) from error
    if dataset.identity != pin.identity:
        raise UsageError(f"{pin.folder} holds other text than run {folder.name} was trained on")
    return replace(dataset, continues=tuple(pin.identity for pin in pins))


def pinned_texts(folder: RunFolder) -> list[tuple[Path, str]]:
    """Folder and identity of every text that a run was trained on, the last one last; they need not
    be there any more.
    """
    return [(pin.folder, pin.identity) for pin in _pins(folder)]


def pin_texts(folder: RunFolder, texts: Sequence[tuple[Path, str]]) -> None:
    """Say where a run's texts lie on this machine, as `pinned_texts` tells them; none: nothing."""
    if texts:
        _write_pins(folder, tuple(_Pin(path, identity) for path, identity in texts))


def has_sources_of(dataset: Dataset, recipe: Recipe) -> bool:
    """Whether it was prepared of the sources that the recipe names."""
    names = {source_name(source.name, source.path) for source in recipe.data.sources}
    return names == {source.name for source in dataset.sources}


def _listed(summary: str) -> str:
    """One source beside what is said of it, several each on a line of its own."""
    lines = summary.splitlines()
    return "\n  ".join([f"{len(lines)} sources", *lines]) if len(lines) > 1 else summary


@dataclass(frozen=True, slots=True)
class _Pin:
    folder: Path
    identity: str


def _pins(folder: RunFolder) -> tuple[_Pin, ...]:
    """Where the texts lie that the run was trained on, and their identities, the last one last."""
    try:
        body = read_object(folder.path / _PINNED)
        given = [*body.get("earlier", ()), body]
        return tuple(_Pin(Path(pin["folder"]), str(pin["identity"])) for pin in given)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _write_pins(folder: RunFolder, pins: tuple[_Pin, ...]) -> None:
    *earlier, last = ({"folder": str(pin.folder), "identity": pin.identity} for pin in pins)
    write_json(folder.path / _PINNED, {**last, "earlier": earlier} if earlier else last)
