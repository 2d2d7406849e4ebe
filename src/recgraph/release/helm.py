"""Helm, as a process: reading a release's values, and upgrading it by changing some of them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recgraph.errors import DataError, RecgraphError

Changes = Mapping[str, Any]
"""Values by their path (`canary.weight`)."""
Objects = dict[str, str]
"""What a manifest holds: `Kind/name` -> its YAML."""


class HelmError(RecgraphError):
    """Helm refused or failed; the message is its own."""


@dataclass(frozen=True)
class Helm:
    """One release. `timeout_s` bounds every call, hooks included."""

    release: str
    namespace: str
    chart: Path
    context: str = ""
    timeout_s: float = 600.0
    binary: str = "helm"

    def values(self) -> dict[str, Any]:
        """All values in force, the chart's defaults included. Raises HelmError where there is no such release."""
        found: dict[str, Any] = json.loads(self._run("get", "values", self.release, "--all", "-o", "json"))
        return found

    def status(self) -> tuple[int, str]:
        """The revision and its state, for example (3, "deployed")."""
        found = json.loads(self._run("status", self.release, "-o", "json"))
        return int(found["version"]), str(found["info"]["status"])

    def objects(self) -> Objects:
        """What the release consists of now."""
        return split(self._run("get", "manifest", self.release))

    def upgrade_command(self, changes: Changes) -> list[str]:
        """The command that changes these values and keeps all others; what a new chart brings has its default."""
        sets = [part for path, value in changes.items() for part in ("--set-json", f"{path}={json.dumps(value)}")]
        timeout = f"{self.timeout_s:.0f}s"
        base = [self.binary, "upgrade", self.release, str(self.chart), *self._where()]
        return [*base, "--reset-then-reuse-values", "--timeout", timeout, *sets]

    def upgrade(self, changes: Changes) -> int:
        """Upgrades and returns the new revision. Raises HelmError."""
        done = json.loads(self._execute([*self.upgrade_command(changes), "-o", "json"]))
        return int(done["version"])

    def preview(self, changes: Changes) -> Objects:
        """What the release would consist of after `upgrade(changes)`; nothing is changed. Raises HelmError."""
        command = [*self.upgrade_command(changes), "--dry-run=server", "-o", "json"]
        return split(json.loads(self._execute(command))["manifest"])

    def _where(self) -> list[str]:
        context = ["--kube-context", self.context] if self.context else []
        return ["--namespace", self.namespace, *context]

    def _run(self, *arguments: str) -> str:
        return self._execute([self.binary, *arguments, *self._where()])

    def _execute(self, command: list[str]) -> str:
        if shutil.which(self.binary) is None:
            raise DataError(f"{self.binary} is not on PATH: install Helm 3.14 or newer")
        try:
            # A little longer than helm's own bound, so that its message comes through.
            done = subprocess.run(  # noqa: S603  the arguments are a list, no shell
                command, capture_output=True, text=True, timeout=self.timeout_s + 30.0, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HelmError(f"{shlex.join(command)}: no end within {error.timeout:.0f} s") from error
        if done.returncode:
            raise HelmError(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def split(manifest: str) -> Objects:
    """The objects of a manifest by `Kind/name`."""
    found: Objects = {}
    for document in yaml.safe_load_all(manifest):
        if document:
            found[f"{document['kind']}/{document['metadata']['name']}"] = yaml.safe_dump(document)
    return found


def difference(before: Objects, after: Objects) -> dict[str, list[str]]:
    """`Kind/name` of what is created, removed and changed."""
    return {
        "created": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
    }
