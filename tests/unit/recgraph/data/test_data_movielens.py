"""The importer: what it takes, what it reports, and that nothing is lost in between."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgraph.data import world as container
from recgraph.data.movielens import Imported, import_movielens
from recgraph.data.world import times_us
from recgraph.errors import DataError

ITEMS = "1::One (1999)::Drama|War\n2::Two (2001)::Comedy\n"
RATINGS = "u1::1::8::1000\nu2::2::6.5::1001\n"


def run(
    folder: Path,
    ratings: str | bytes = RATINGS,
    items: str | bytes = ITEMS,
    *,
    strict: bool = False,
    threshold: float = 7,
) -> Imported:
    for name, content in (("ratings.dat", ratings), ("items.dat", items)):
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return import_movielens(folder / "ratings.dat", folder / "items.dat", strict=strict, click_threshold=threshold)


def test_plain_files(tmp_path: Path) -> None:
    found = run(tmp_path)
    log = found.world.log
    assert found.problems == []
    assert found.world.user_ids.tolist() == ["u1", "u2"]
    assert log.item_row.tolist() == [0, 1]
    assert log.time_us.tolist() == [1_000_000_000, 1_001_000_000]
    assert log.clicked.tolist() == [True, False]
    assert log.rating.tolist() == [8.0, 6.5]
    assert found.world.items.to_pylist()[0]["categories"] == ["Drama", "War"]
    assert found.world.items["publish_time"][0].as_py().isoformat() == "1999-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("u1::1::8", r"3 fields instead of 4"),
        ("u1::1::8::1000::x", r"5 fields instead of 4"),
        ("u1::1::good::1000", r"rating 'good' is not a number"),
        ("u1::1::nan::1000", r"rating 'nan' is not a number"),
        ("u1::1::inf::1000", r"rating 'inf' is not a number"),
        ("u1::1::1_0::1000", r"rating '1_0' is not a number"),
        ("u1::1::٣::1000", r"rating '٣' is not a number"),
        ("u1::1::::1000", r"rating '' is not a number"),
        ("u1::1::11::1000", r"rating 11 is not between 0 and 10"),
        ("u1::1::-1::1000", r"rating -1 is not between 0 and 10"),
        ("u1::1::8::yesterday", r"time 'yesterday' is not a number"),
        ("u1::1::8::-5", r"time -5 is not between 0 and 4102444800"),
        ("u1::1::8::1365029107000", r"time 1365029107000 is not between"),
        ("u1::1::8::1e400", r"time 1e400 is not between"),
        ("u1::1::8::10.5", r"time 10.5 is not a whole number of seconds"),
        ("u1::9::8::1000", r"item '9' is not in items\.dat"),
        ("::1::8::1000", r"user id has 0 bytes"),
        ("u1::::8::1000", r"item id has 0 bytes"),
        (f"{'é' * 129}::1::8::1000", r"user id has 258 bytes instead of 1 to 256"),
    ],
)
def test_bad_rating_lines(tmp_path: Path, line: str, reason: str) -> None:
    content = RATINGS + line + "\n"
    found = run(tmp_path, content)
    assert len(found.world.log) == 2
    assert found.world.meta.counts.skipped_lines == 1
    [problem] = found.problems
    assert problem.line == 3
    assert str(problem).startswith(f"{tmp_path}/ratings.dat:3: ")
    with pytest.raises(DataError, match=rf"ratings\.dat:3: {reason}"):
        run(tmp_path, content, strict=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("3::Three (2002)", r"2 fields instead of 3"),
        ("3::Three :: the return (2002)::Drama", r"4 fields instead of 3"),
        ("1::Again (2002)::Drama", r"item '1' was defined before"),
        ("::Nobody (2002)::Drama", r"item id has 0 bytes"),
    ],
)
def test_bad_item_lines(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(DataError, match=rf"items\.dat:3: {reason}"):
        run(tmp_path, items=ITEMS + line, strict=True)
    found = run(tmp_path, items=ITEMS + line)
    assert found.world.items["title"].to_pylist() == ["One (1999)", "Two (2001)"]
    assert [problem.line for problem in found.problems] == [3]


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    found = run(tmp_path, RATINGS.encode() + b"u\xff::1::8::1000\n")
    assert [str(p) for p in found.problems] == [f"{tmp_path}/ratings.dat:3: byte 0xff at position 1 is not UTF-8"]


def test_bom_line_ends_and_blank_lines_are_no_fault(tmp_path: Path) -> None:
    ratings = b"\xef\xbb\xbf" + RATINGS.replace("\n", "\r\n").encode() + b"\r\n  \n\nu3::1::9::1002"
    found = run(tmp_path, ratings, "\ufeff" + ITEMS.replace("\n", "\r\n"))
    assert found.world.user_ids.tolist() == ["u1", "u2", "u3"]
    assert found.world.item_ids.tolist() == ["1", "2"]
    assert found.world.categories.offsets.tolist() == [0, 2, 3]
    assert found.world.meta.counts.skipped_lines == 0
    assert found.world.meta.counts.blank_lines == 3


def test_a_repeated_event_counts_once_and_a_second_rating_twice(tmp_path: Path) -> None:
    found = run(tmp_path, RATINGS + "u1::1::3::1000\nu1::1::3::2000\n")
    assert [str(problem) for problem in found.problems] == [f"{tmp_path}/ratings.dat:3: repeats user, item and time"]
    assert found.world.log.rating.tolist() == [8.0, 6.5, 3.0]
    with pytest.raises(DataError, match=r"ratings\.dat:3: repeats"):
        run(tmp_path, RATINGS + "u1::1::3::1000\n", strict=True)


def test_missing_year_and_genre(tmp_path: Path) -> None:
    items = ITEMS + "3::No year::\n4::Odd (12)::(no genres listed)\n5::Far (9999)::A||B|A\n"
    found = run(tmp_path, RATINGS + "u1::3::1::1500\n", items)
    assert found.problems == []
    rows = found.world.items.to_pylist()[2:]
    # The first event of the item, and of the data where the item has none.
    assert [row["publish_time"].timestamp() for row in rows] == [1500, 1000, 1000]
    assert [row["category"] for row in rows] == ["", "", "A"]
    assert [row["categories"] for row in rows] == [[], [], ["A", "B"]]


def test_threshold_for_five_stars(tmp_path: Path) -> None:
    assert run(tmp_path, "u::1::4::1\nu::2::3.5::2\n", threshold=4).world.log.clicked.tolist() == [True, False]
    with pytest.raises(DataError, match="click threshold nan is not between 0 and 10"):
        run(tmp_path, threshold=float("nan"))


@pytest.mark.parametrize(
    ("ratings", "items", "first"),
    [
        ("", ITEMS, ""),
        (RATINGS, "\n", ""),
        ("x\n", ITEMS, r"; .*/ratings\.dat:1: 1 fields instead of 4 .*"),
        ("\nu1::7::8::1\n" * 9, ITEMS + "x\n", r"; .*/ratings\.dat:2: item '7' is not in items\.dat"),
        (b"\x1f\x8b", ITEMS, r"; .*/ratings\.dat:1: byte 0x8b at position 1 is not UTF-8"),
    ],
)
def test_nothing_usable(tmp_path: Path, ratings: str | bytes, items: str, first: str) -> None:
    with pytest.raises(DataError, match=rf"no usable line \(expected [^)]*\)?[^)]*\){first}$"):
        run(tmp_path, ratings, items)


def test_unreadable_file(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(DataError, match=r"absent\.dat: cannot be read: No such file"):
        import_movielens(tmp_path / "absent.dat", tmp_path / "items.dat")


line_texts = st.sampled_from(
    [
        "u1::1::8::1000",
        "u2::2::1::1000",
        "ü::1::7::5",
        "u1::1::8",
        "",
        " ",
        "u1::3::8::1",
        "u1::1::x::1",
        "u1::1::9::1000",
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(lines=st.lists(line_texts, max_size=30))
def test_every_line_is_an_event_or_counted(tmp_path: Path, lines: list[str]) -> None:
    content = "".join(line + "\n" for line in ["u0::1::8::1", *lines])
    counts = run(tmp_path, content).world.meta.counts
    assert counts.events + counts.skipped_lines + counts.blank_lines == len(lines) + 1


def test_many_problems_are_counted_though_not_all_are_kept(tmp_path: Path) -> None:
    found = run(tmp_path, RATINGS + "x\n" * 1500)
    assert len(found.problems) == 1000
    assert found.world.meta.counts.skipped_lines == 1500


def test_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    lines = [f"u{n % 7}::{n % 2 + 1}::{n % 11}::{1000 + n}" for n in range(50)]
    one = run(tmp_path, "\n".join(lines)).world
    random.Random(1).shuffle(lines)
    two = run(tmp_path, "\n".join(lines)).world
    (tmp_path / "1").mkdir()
    assert container.save(one, tmp_path / "1").sha256 == container.save(two, tmp_path / "2").sha256


def test_movietweetings(movietweetings: Path) -> None:
    found = import_movielens(movietweetings / "ratings.dat", movietweetings / "movies.dat", strict=True)
    counts = found.world.meta.counts
    assert (counts.users, counts.items, counts.events, counts.skipped_lines) == (16_554, 10_506, 100_000, 0)
    assert counts.clicks == 72_771
    assert found.world.item_ids[0] == "0002844"
    assert found.world.items["title"][0].as_py() == "Fantômas - À l'ombre de la guillotine (1913)"
    first = np.unique(found.world.log.user_row, return_index=True)[1]
    assert np.array_equal(times_us(found.world.users["created"]), found.world.log.time_us[first])
