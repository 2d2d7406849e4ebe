"""The chart on a real cluster: any KUBECONFIG, a namespace of its own, a client that never retries.

Environment: KUBECONFIG; RECGRAPH_E2E_VALUES (more values files, separated by `:`); RECGRAPH_E2E_ADDRESS (host of the
NodePorts); RECGRAPH_E2E_SECOND_TAG (another tag of the serving image, for the rolling upgrade);
RECGRAPH_E2E_KEEP=1 leaves the release, RECGRAPH_E2E_NAMESPACE takes one that was left.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode has no package for the helpers beside this file

from e2e_release import TOLD, Release, keep, kubectl_json


def _missing(config: pytest.Config) -> str:
    if "e2e" not in config.option.markexpr:
        return "only by -m e2e: they install into the cluster of KUBECONFIG"
    absent = [tool for tool in ("kubectl", "helm") if shutil.which(tool) is None]
    if absent:
        return f"not on PATH: {', '.join(absent)}"
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG is not set"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test of this folder needs a cluster, and time."""
    here = str(Path(__file__).parent)
    reason = _missing(config)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the cluster says to the report of a failed test."""
    report = yield
    if report.failed:
        for release in getattr(item, "funcargs", {}).values():
            if isinstance(release, Release):
                report.sections.append(("the cluster", release.diagnostics()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was measured."""
    if TOLD:
        terminalreporter.section("measured on the cluster")
        for line in TOLD:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def address() -> str:
    """A host on which NodePorts answer."""
    given = os.environ.get("RECGRAPH_E2E_ADDRESS")
    if given:
        return given
    nodes = kubectl_json("get", "nodes")["items"]
    internal = [a["address"] for a in nodes[0]["status"]["addresses"] if a["type"] == "InternalIP"]
    return "127.0.0.1" if len(nodes) == 1 and _is_here(internal[0]) else internal[0]


def _is_here(ip: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


@pytest.fixture(scope="session")
def release(address: str) -> Iterator[Release]:
    """One installation for all tests, gone with its namespace at the end."""
    given = os.environ.get("RECGRAPH_E2E_NAMESPACE", "")
    found = Release(given, address) if given else Release.fresh(address)
    try:
        if given:
            found.attach()
        else:
            found.install()
        yield found
    finally:
        if not given and not keep():
            found.remove()
