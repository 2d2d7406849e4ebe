"""Steps that are done once."""

from __future__ import annotations

from pathlib import Path

import pytest

from recgraph.errors import DataError
from recgraph.local.steps import Steps, digest_of


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0
        self.said: list[str] = []

    def run(self, inputs: object = 1) -> tuple[object, str]:
        output = self.folder / "out"

        def work() -> tuple[object, str]:
            self.runs += 1
            output.write_text("x")
            return {"run": self.runs}, f"made {self.runs}"

        return Steps(self.folder / "steps", self.said.append).once("world", inputs, [output], work)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_step_runs_once_for_equal_inputs_and_says_so(job: Job) -> None:
    assert job.run() == job.run()
    assert job.runs == 1
    assert "made 1" in job.said[0]
    assert "reused" in job.said[1]


def test_other_inputs_or_a_lost_output_run_it_again(job: Job) -> None:
    job.run()
    _, first = job.run()
    _, second = job.run({"seed": 2})
    assert first != second
    assert job.runs == 2
    (job.folder / "out").unlink()
    job.run({"seed": 2})
    assert job.runs == 3


def test_a_step_that_fails_is_not_remembered_even_if_an_earlier_run_was(job: Job) -> None:
    job.run()
    steps = Steps(job.folder / "steps", job.said.append)

    def fail() -> tuple[object, str]:
        raise DataError("no")

    with pytest.raises(DataError):
        steps.once("world", 2, [], fail)
    job.run()
    assert job.runs == 2


def test_an_unreadable_memory_is_made_anew(job: Job) -> None:
    job.run()
    (job.folder / "steps" / "world.json").write_text("{")
    job.run()
    assert job.runs == 2


def test_the_digest_of_code_follows_its_text_and_names(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "sub" / "a.py").write_text("x = 1")
    first = digest_of([code])
    (code / "sub" / "a.pyc").write_text("ignored")
    assert digest_of([code]) == first
    (code / "sub" / "a.py").write_text("x = 2")
    second = digest_of([code])
    (code / "sub" / "a.py").rename(code / "sub" / "b.py")
    assert len({first, second, digest_of([code])}) == 3
    with pytest.raises(DataError, match="absent"):
        digest_of([tmp_path / "absent"])
