"""Every error that recgraph raises on purpose, as one tree.

RecgraphError
├── ClientError                the caller can mend it (4xx); never counted as a failure
│   ├── BadRequest             400, with the path of the bad value
│   └── TooLarge               413
├── StageFailure               a part is slow or gone; the stage answers with its fallback
├── BundleError                a bundle that does not fit: the process refuses to start
└── DataError                  an input file or a configuration that cannot be used
"""

from __future__ import annotations

from typing import ClassVar


class RecgraphError(Exception):
    """Base of all errors of this project. `status` is the HTTP status it is answered with."""

    status: ClassVar[int] = 500


class ClientError(RecgraphError):
    """The request is at fault, not the service."""

    status = 400


class BadRequest(ClientError):
    """A value of the request is wrong. `path` names it the way msgspec does, for example `$.user.user_id`."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(f"{reason} - at `{path}`")
        self.reason = reason
        self.path = path


class TooLarge(ClientError):
    """The request exceeds a limit of the contract."""

    status = 413

    def __init__(self, reason: str, path: str = "$") -> None:
        super().__init__(f"{reason} - at `{path}`")
        self.reason = reason
        self.path = path


class StageFailure(RecgraphError):
    """A dependency of a stage failed. `reason` is the code that the answer's `degraded` carries."""

    status = 503

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class BundleError(RecgraphError):
    """A bundle is missing, damaged, or made for something else."""


class DataError(RecgraphError):
    """A file or a configuration cannot be used; the message names the file and the value."""
