"""Importer of MovieLens-format files: `user::item::rating::unix_time` and `item::title (year)::genre|genre`.

Nothing is guessed: a line that does not fit is skipped and reported with file, number and reason (or ends the import,
when strict). Every line that is not blank becomes an event or an item, or is counted as skipped.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgraph.data.log import SECOND_US, EventLog, IntArray, sorted_log
from recgraph.data.progress import Progress, silent
from recgraph.data.world import ITEMS, TIMESTAMP, USERS, Counts, Meta, World
from recgraph.errors import DataError

MAX_ID_BYTES = 256
MAX_RATING = 10.0
MAX_TIME = 4_102_444_800
"""2100-01-01; a time in milliseconds is above it."""
DEFAULT_THRESHOLD = 7.0
"""A rating of at least this is a click: for scales up to 10 (MovieTweetings). MovieLens goes up to 5: take 4."""
_ITEM_FORM, _RATING_FORM = "item::title (year)::genre|genre", "user::item::rating::unix_time"
_NO_GENRE = "(no genres listed)"
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_YEAR = re.compile(r"\((1[89][0-9]{2}|2[01][0-9]{2})\)\s*$")
_KEPT_PROBLEMS = 1000


@dataclass(frozen=True)
class Problem:
    """A line that was not taken: `str()` of it reads `ratings.dat:7: rating 'x' is not a number`."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass
class _Report:
    """Counts problems; the first thousand are kept in full. When strict, the first one is raised."""

    strict: bool
    problems: list[Problem] = field(default_factory=list)
    skipped: int = 0
    blank: int = 0

    def add(self, path: Path, line: int, reason: str) -> None:
        problem = Problem(path, line, reason)
        if self.strict:
            raise DataError(str(problem))
        self.skipped += 1
        if len(self.problems) < _KEPT_PROBLEMS:
            self.problems.append(problem)

    def nothing_usable(self, path: Path, form: str) -> DataError:
        """What to raise for a file that gave nothing, with its first problem: most likely all lines have it."""
        first = next((f"; {problem}" for problem in self.problems if problem.path == path), "")
        return DataError(f"{path}: no usable line (expected {form}){first}")


@dataclass(frozen=True)
class Imported:
    """The data set, and the lines (at most a thousand) that are not in it; `world.meta.counts` has their number."""

    world: World
    problems: list[Problem]


class _BadLine(ValueError):
    """Says why a line cannot be taken."""


@dataclass(frozen=True)
class _Item:
    item_id: str
    title: str
    genres: list[str]
    year: int | None


def import_movielens(
    ratings: Path,
    items: Path,
    *,
    click_threshold: float = DEFAULT_THRESHOLD,
    strict: bool = False,
    progress: Progress = silent,
) -> Imported:
    """Reads both files into a data set.

    Raises DataError for a file that cannot be read or holds nothing usable and, when strict, for the first bad line.
    An item is published on 1 January of the year in its title; without one, at its first event; without that, at the
    first event of the data.
    """
    if not 0 <= click_threshold <= MAX_RATING:
        raise DataError(f"click threshold {click_threshold} is not between 0 and {MAX_RATING:g}")
    report = _Report(strict)
    catalogue = _read_items(items, report, progress)
    log, user_ids = _read_ratings(
        ratings, items, [item.item_id for item in catalogue], click_threshold, report, progress
    )
    first_seen = _first_times(log.user_row, log.time_us, log.users)
    users = pa.table({"user_id": pa.array(user_ids, pa.string()), "created": _times(first_seen)}, schema=USERS)
    meta = Meta(
        kind="movielens",
        seed=None,
        parameters={"ratings": ratings.name, "items": items.name, "click_threshold": click_threshold},
        counts=Counts(log.users, log.items, len(log), int(log.clicked.sum()), report.skipped, report.blank),
        start=log.start_us / SECOND_US,
        end=log.end_us / SECOND_US,
    )
    report.problems.sort(key=lambda problem: (problem.path != items, problem.line))
    return Imported(World(users, _item_table(catalogue, log), log, meta), report.problems)


def _lines(path: Path, report: _Report, progress: Progress) -> Iterator[tuple[int, str]]:
    """Lines that are neither blank nor badly encoded, without BOM and line end."""
    try:
        size = max(1, path.stat().st_size)
        with path.open("rb") as stream:
            done = 0
            for number, raw in enumerate(stream, start=1):
                done += len(raw)
                if number % 50_000 == 0:
                    progress(f"read {path.name}", done / size)
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                text = _decoded(path, number, raw.rstrip(b"\r\n"), report)
                if text:
                    yield number, text
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    progress(f"read {path.name}", 1.0)


def _decoded(path: Path, number: int, raw: bytes, report: _Report) -> str:
    if not raw.strip():
        report.blank += 1
        return ""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        report.add(path, number, f"byte 0x{raw[error.start]:02x} at position {error.start} is not UTF-8")
        return ""


def _fields(text: str, count: int, form: str) -> list[str]:
    fields = text.split("::")
    if len(fields) != count:
        raise _BadLine(f"{len(fields)} fields instead of {count} ({form})")
    return fields


def _id(text: str, what: str) -> str:
    size = len(text.encode())
    if not 1 <= size <= MAX_ID_BYTES:
        raise _BadLine(f"{what} id has {size} bytes instead of 1 to {MAX_ID_BYTES}")
    return text


def _number(text: str, what: str, low: float, high: float) -> float:
    if not _NUMBER.fullmatch(text):
        raise _BadLine(f"{what} {text!r} is not a number")
    value = float(text)
    if not low <= value <= high or not math.isfinite(value):
        raise _BadLine(f"{what} {text} is not between {low:g} and {high:.10g}")
    return value


def _parse_item(text: str) -> _Item:
    item_id, title, genres = _fields(text, 3, _ITEM_FORM)
    year = _YEAR.search(title)
    names = [] if genres == _NO_GENRE else [name for name in genres.split("|") if name]
    return _Item(_id(item_id, "item"), title, list(dict.fromkeys(names)), int(year.group(1)) if year else None)


def _read_items(path: Path, report: _Report, progress: Progress) -> list[_Item]:
    """Items sorted by id; of several lines with one id the first counts."""
    found: dict[str, _Item] = {}
    for number, text in _lines(path, report, progress):
        try:
            item = _parse_item(text)
            if item.item_id in found:
                raise _BadLine(f"item {item.item_id!r} was defined before")
        except _BadLine as error:
            report.add(path, number, str(error))
            continue
        found[item.item_id] = item
    if not found:
        raise report.nothing_usable(path, _ITEM_FORM)
    return sorted(found.values(), key=lambda item: item.item_id.encode())


class _Ratings:
    """Columns of the ratings file, as compact as ten million lines need."""

    def __init__(self, item_rows: dict[str, int], items_file: Path) -> None:
        self.user_codes: dict[str, int] = {}
        self._item_rows = item_rows
        self._items_file = items_file
        self.user, self.item, self.time, self.line = array("q"), array("q"), array("q"), array("q")
        self.rating = array("d")

    def take(self, number: int, text: str) -> None:
        """Adds one line, or raises _BadLine and adds nothing."""
        user, item, rating, time = _fields(text, 4, _RATING_FORM)
        _id(user, "user")
        row = self._item_rows.get(_id(item, "item"))
        if row is None:
            raise _BadLine(f"item {item!r} is not in {self._items_file.name}")
        stars = _number(rating, "rating", 0, MAX_RATING)
        at = _number(time, "time", 0, MAX_TIME)
        if at != int(at):
            raise _BadLine(f"time {time} is not a whole number of seconds")
        self.user.append(self.user_codes.setdefault(user, len(self.user_codes)))
        self.item.append(row)
        self.rating.append(stars)
        self.time.append(int(at))
        self.line.append(number)


def _read_ratings(
    path: Path, items_file: Path, item_ids: list[str], threshold: float, report: _Report, progress: Progress
) -> tuple[EventLog, list[str]]:
    """The log and the user ids, sorted."""
    columns = _Ratings({item_id: row for row, item_id in enumerate(item_ids)}, items_file)
    for number, text in _lines(path, report, progress):
        try:
            columns.take(number, text)
        except _BadLine as error:
            report.add(path, number, str(error))
    if not columns.time:
        raise report.nothing_usable(path, _RATING_FORM)
    user, item, time = (np.array(c, np.int64) for c in (columns.user, columns.item, columns.time))
    keep = _without_repeats(
        user, item, time, lambda k: report.add(path, columns.line[k], "repeats user, item and time")
    )
    codes = list(columns.user_codes)
    order = sorted(range(len(codes)), key=lambda code: codes[code].encode())
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes))
    rating = np.array(columns.rating, np.float64)[keep]
    log = sorted_log(
        rank[user[keep]],
        item[keep],
        time[keep] * SECOND_US,
        rating >= threshold,
        rating.astype(np.float32),
        users=len(codes),
        items=len(item_ids),
    )
    return log, [codes[code] for code in order]


def _without_repeats(user: IntArray, item: IntArray, time: IntArray, repeat: Callable[[int], None]) -> IntArray:
    """Positions to keep: of several lines with one user, item and time the first."""
    order = np.lexsort((item, user, time))
    same = np.ones(len(order) - 1, np.bool_)
    for column in (user, item, time):
        same &= column[order][1:] == column[order][:-1]
    repeats = np.sort(order[1:][same])
    for position in repeats.tolist():
        repeat(position)
    return np.setdiff1d(np.arange(len(order)), repeats, assume_unique=True)


def _first_times(rows: npt.NDArray[np.int32], time_us: IntArray, entities: int) -> IntArray:
    """First event of each entity, by row; the first of all where it has none."""
    first = np.full(entities, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, rows, time_us)
    return np.where(first == np.iinfo(np.int64).max, time_us[0], first)


def _item_table(catalogue: list[_Item], log: EventLog) -> Any:
    first_seen = _first_times(log.item_row, log.time_us, log.items)
    known = {item.year for item in catalogue if item.year is not None}
    years = {year: int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US for year in known}
    publish = [years[item.year] if item.year else int(first_seen[row]) for row, item in enumerate(catalogue)]
    columns = {
        "item_id": [item.item_id for item in catalogue],
        "title": [item.title for item in catalogue],
        "category": [item.genres[0] if item.genres else "" for item in catalogue],
        "categories": [item.genres for item in catalogue],
        "creator": [""] * len(catalogue),
        "publish_time": _times(np.array(publish, np.int64)),
        "available": [True] * len(catalogue),
    }
    return pa.table(columns, schema=ITEMS)


def _times(values: IntArray) -> Any:
    return pa.array(values).cast(TIMESTAMP)
