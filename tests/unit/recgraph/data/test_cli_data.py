"""`recgraph data`: files, summaries, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recgraph.cli import app

RATINGS = "u1::1::8::1000\nbroken\nu2::2::3::90000\n"
ITEMS = "1::One (1999)::Drama\n2::Two (2001)::Comedy\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "r.dat").write_text(RATINGS)
    (tmp_path / "i.dat").write_text(ITEMS)
    return ["--ratings", tmp_path / "r.dat", "--items", tmp_path / "i.dat", "--out", tmp_path / "world"]


def test_make(tmp_path: Path) -> None:
    result = run("make", "--items", 1000, "--events", 2000, "--out", tmp_path / "world", "-o", "json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["counts"]["items"] == 1000
    assert summary["sha256"] == json.loads((tmp_path / "world/meta.json").read_text())["sha256"]
    assert result.stderr == ""


def test_import_reports_what_it_skips(files: list[str | Path], tmp_path: Path) -> None:
    result = run("import", *files, "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["counts"]["skipped_lines"] == 1
    reason = "1 fields instead of 4 (user::item::rating::unix_time)"
    assert result.stderr == f"skipped {tmp_path}/r.dat:2: {reason}\n"


def test_strict_import_stops(files: list[str | Path], tmp_path: Path) -> None:
    result = run("import", *files, "--strict")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"error: {tmp_path}/r.dat:2: 1 fields instead of 4" in result.stderr
    assert not (tmp_path / "world").exists()


def test_sources(files: list[str | Path], tmp_path: Path) -> None:
    run("import", *files)
    arguments = ["sources", "--world", tmp_path / "world", "--out", tmp_path / "offline", "-o", "json"]
    daily = json.loads(run(*arguments).stdout)
    assert daily["rows"]["user_seen"] == 2
    assert daily["end"] == "1970-01-02T01:00:00+00:00"
    assert (tmp_path / "offline/item_stats.parquet").exists()
    part = json.loads(run(*arguments, "--cadence", "0", "--end", "1970-01-01T12:00").stdout)
    assert part["rows"]["user_seen"] == 1


def test_table_is_one_value_per_line(files: list[str | Path]) -> None:
    lines = run("import", *files).stdout.splitlines()
    assert "counts.events".ljust(len(lines[0].split("/")[0])) + "2" in lines


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["make", "--items", "5"], 2, "items 5 is not between"),
        (["make", "--end", "soon"], 2, "'soon' is not an ISO 8601 time"),
        (["make", "--itmes", "5"], 2, "No such option"),
        (["sources", "--world", "nowhere", "--cadence", "1y"], 2, "'1y' is not a number with s, m, h or d"),
        (["sources", "--world", "nowhere", "--start", "2013-02-01", "--end", "2013-01-01"], 2, "is after --end"),
        (["sources", "--world", "nowhere"], 1, "nowhere: no data set here"),
        (["import", "--ratings", "no.dat", "--items", "no.dat"], 1, "no.dat: cannot be read: No such file"),
    ],
)
def test_errors_have_a_message_and_a_code(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments, "--out", tmp_path / "out")
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", "").split())


def test_a_full_folder_is_refused_before_the_work(files: list[str | Path], tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    (tmp_path / "world/letters.txt").write_text("dear")
    result = run("import", *files)
    assert result.exit_code == 1
    assert "is not empty and not a data set (it holds letters.txt)" in result.stderr
