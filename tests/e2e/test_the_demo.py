"""The values of the demo, in a release of their own. Runs after test_release.py, which has uninstalled its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_release import Release, keep

FIRST_ANSWER_S = 240.0


@pytest.fixture
def demo(address: str) -> Iterator[Release]:
    found = Release.fresh(address)
    found.values = "demo-values.yaml"
    yield found
    if not keep():
        found.remove()


def test_helm_install_of_the_demo_answers_within_four_minutes(demo: Release) -> None:
    demo.install()

    assert demo.installed_s is not None
    assert demo.installed_s < FIRST_ANSWER_S
    assert len(demo.ask("u_0007").body["items"]) == 20
