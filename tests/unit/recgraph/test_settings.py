"""Settings from the environment."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from recgraph.settings import Settings


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("RECGRAPH_BUNDLE", "/b")
    monkeypatch.setenv("RECGRAPH_SCENES", "/s.yaml")
    return monkeypatch


def test_one_budget_can_be_set_alone(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RECGRAPH_BUDGETS__FINE", "20")
    budgets = Settings().budgets  # type: ignore[call-arg]
    assert (budgets.fine, budgets.recall) == (20.0, 32.0)


def test_passwords_are_hidden_and_settings_frozen(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RECGRAPH_FEATURES_REDIS", "redis://user:secret@host:6379/0")
    settings = Settings()  # type: ignore[call-arg]
    assert settings.features_redis == "redis://user:secret@host:6379/0"
    assert settings.public()["features_redis"] == "redis://user:***@host:6379/0"
    assert "secret" not in str(settings.public())
    with pytest.raises(ValidationError):
        settings.project = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [("READER", "csv"), ("EXECUTOR_WORKERS", "0"), ("RECORD_SAMPLE", "2"), ("BUDGETS__FINES", "1"), ("LOG_LEVEL", "x")],
)
def test_bad_values_are_refused(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(f"RECGRAPH_{name}", value)
    with pytest.raises(ValidationError):
        Settings()  # type: ignore[call-arg]
