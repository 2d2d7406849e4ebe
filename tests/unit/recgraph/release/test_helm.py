"""Commands for helm, checked with the real one where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from recgraph.errors import DataError
from recgraph.release.helm import Changes, Helm, HelmError, Objects, difference, split
from recgraph.repository import chart_folder

BINARY = next(
    (
        str(path)
        for folder in [*os.environ["PATH"].split(":"), "/var/lib/testbed/bin"]
        if (path := Path(folder) / "helm").is_file()
    ),
    "",
)
needs_helm = pytest.mark.skipif(not BINARY, reason="helm is not installed")


def _helm(**more: Any) -> Helm:
    return Helm("rg", "shop", chart_folder(), binary=BINARY or "helm", **more)


def _rendered(changes: Changes) -> Objects:
    """What `helm template` makes of the very flags that an upgrade has."""
    command = _helm().upgrade_command(changes)
    flags = command[command.index("--timeout") + 2 :]
    done = subprocess.run(
        [BINARY, "template", "rg", str(chart_folder()), "--kube-version", "1.34.0", *flags],
        capture_output=True,
        text=True,
        check=True,
    )
    return split(done.stdout)


def test_an_upgrade_keeps_the_other_values() -> None:
    command = _helm(context="prod", timeout_s=90.0).upgrade_command({"canary.bundle": "v2", "canary.layers": ["fine"]})
    assert command[1:3] == ["upgrade", "rg"]
    assert command[4:] == [
        *("--namespace", "shop", "--kube-context", "prod", "--reset-then-reuse-values", "--timeout", "90s"),
        *("--set-json", 'canary.bundle="v2"', "--set-json", 'canary.layers=["fine"]'),
    ]


@needs_helm
def test_a_canary_adds_its_services_and_a_weight_changes_no_pod() -> None:
    bare = _rendered({})
    idle = {"canary.bundle": "v2", "canary.weight": 0, "canary.layers": ["fine"]}
    up = _rendered(idle)
    change = difference(bare, up)
    assert [name for name in change["created"] if name.startswith("Infer")] == ["InferenceService/rg-recgraph-fine-v2"]
    assert change["removed"] == []
    assert not [name for name in change["changed"] if name.startswith(("Infer", "Deployment"))]
    weighed = difference(up, _rendered(idle | {"canary.weight": 5}))
    assert (weighed["created"], weighed["removed"]) == ([], [])
    assert not [name for name in weighed["changed"] if name.startswith(("Infer", "Deployment", "StatefulSet"))]


@needs_helm
def test_promote_leaves_the_canarys_services_as_they_are() -> None:
    stable = {"bundles.stable": "v1", "bootstrap.enabled": False}
    before = _rendered(stable | {"canary.bundle": "v2", "canary.weight": 100, "canary.layers": ["cascade"]})
    after = _rendered(stable | {"bundles.stable": "v2", "canary.bundle": "", "canary.weight": 0})
    change = difference(before, after)
    gone = [name for name in change["removed"] if name.startswith("InferenceService/")]
    assert gone == [f"InferenceService/rg-recgraph-{stage}-v1" for stage in ("coarse", "fine", "recall", "rerank")]
    assert not [name for name in change["changed"] if name.startswith("Infer")], "no pod restarts, entry's neither"


@needs_helm
def test_helms_own_words_are_kept() -> None:
    with pytest.raises(HelmError, match="helm get values rg"):
        Helm("rg", "shop", Path("/nowhere"), "no-such-context", 5.0, BINARY).values()


def test_without_helm_it_is_said() -> None:
    with pytest.raises(DataError, match="no-helm-here is not on PATH"):
        Helm("rg", "shop", Path(), binary="no-helm-here").values()


def test_values_are_passed_as_json() -> None:
    command = _helm().upgrade_command({"a.b": {"c": [1, "x,y=z"]}})
    assert json.loads(command[-1].partition("=")[2]) == {"c": [1, "x,y=z"]}
