"""Steps that are done once: each is kept under a fingerprint of its inputs and skipped while that holds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from recgraph.errors import DataError


class Done(msgspec.Struct, frozen=True):
    """What is remembered of a step: `result` in JSON types, `outputs` the files that must still be there."""

    fingerprint: str
    seconds: float
    result: Any
    outputs: list[str]


class Line(msgspec.Struct, frozen=True):
    """What a run did about one step, for the report."""

    name: str
    seconds: float
    reused: bool


class Steps:
    """Runs steps in a workspace. `report` gets one line per step."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self.lines: list[Line] = []

    def once(
        self, name: str, inputs: object, outputs: Iterable[Path], work: Callable[[], tuple[Any, str]]
    ) -> tuple[Any, str]:
        """The result of a step and its fingerprint, for the steps that build on it.

        `work` returns the result and a few words about it. It runs unless it has run for equal `inputs` (JSON types)
        before and its `outputs` are still there.
        """
        wanted = fingerprint(name, inputs)
        files = [str(path) for path in outputs]
        done = self._load(name)
        if done is not None and done.fingerprint == wanted and all(Path(file).exists() for file in done.outputs):
            self._say(name, f"reused, took {done.seconds:.1f} s when it was made", 0.0, reused=True)
            return done.result, wanted
        self.forget(name)
        begun = time.perf_counter()
        result, words = work()
        seconds = time.perf_counter() - begun
        self._save(name, Done(wanted, seconds, result, files))
        self._say(name, words, seconds, reused=False)
        return result, wanted

    def always(self, name: str, work: Callable[[], tuple[Any, str]]) -> Any:
        """The result of a step that is never kept."""
        begun = time.perf_counter()
        result, words = work()
        self._say(name, words, time.perf_counter() - begun, reused=False)
        return result

    def forget(self, name: str) -> None:
        """Makes the next run of a step a real one."""
        self._path(name).unlink(missing_ok=True)

    def _say(self, name: str, words: str, seconds: float, *, reused: bool) -> None:
        self.lines.append(Line(name, round(seconds, 3), reused))
        self._report(f"{name:<12} {seconds:7.1f} s  {words}")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _load(self, name: str) -> Done | None:
        try:
            return msgspec.json.decode(self._path(name).read_bytes(), type=Done)
        except (FileNotFoundError, msgspec.DecodeError):
            return None  # one that cannot be read, of an older version for example, is simply made again

    def _save(self, name: str, done: Done) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path(name).write_bytes(msgspec.json.encode(done))


def fingerprint(name: str, inputs: object) -> str:
    """A digest of a step's inputs."""
    return hashlib.sha256(msgspec.json.encode([name, inputs], order="sorted")).hexdigest()


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of files, folders taken with all Python and YAML files in them: data by content, code by its text.

    Raises DataError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        for file in _files(path):
            try:
                with file.open("rb") as stream:
                    content = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as error:
                raise DataError(f"{file}: cannot be read: {error.strerror}") from error
            digest.update(f"{file.relative_to(path.parent)}\0{content}\n".encode())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in {".py", ".yaml"} and file.is_file())
