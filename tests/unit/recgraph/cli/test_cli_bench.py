"""Which bundle `recgraph bench` measures."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from recgraph.cli import app


def test_a_folder_without_a_bundle_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "fine", "--bundle", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path}: no bundle in this folder" in result.output
