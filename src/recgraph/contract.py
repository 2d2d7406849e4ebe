"""The envelope that passes along the graph: structs, parsing, limits, and the bodies that are answered.

One envelope serves every stage. It is a superset of the fine-rank contract (`request_id, user, items, context` in,
`scores` out), columnar: `items`, `scores`, `sources` and `coarse_scores` are arrays of one length. JSON has no NaN and
no infinity and msgspec refuses numbers out of range, so what was parsed is finite.
"""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from recgraph.errors import BadRequest, ClientError, RecgraphError, TooLarge

MAX_BODY_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 5_000
MAX_FEATURES: Final = 200
MAX_CONTEXT_BYTES: Final = 256 << 10
"""Of a client's context: it travels through all stages, beside candidates that have to fit into the same body."""
MAX_ID_BYTES: Final = 256
MAX_PAGE: Final = 500

# msgspec counts characters; bytes are checked after decoding, where an id is not plain ASCII.
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
T = TypeVar("T")
Scalar = bool | int | float | str | None
_MISSING_FIELD: Final = re.compile(r"missing required field `([^`]+)`")
# Objects with keys of the sender's choice: msgspec calls each of them `[...]`.
_VALUES: Final[dict[str, type]] = {"$.context": Scalar, "$.arm": dict[str, bool], "$.bundle.stages": Id}  # type: ignore[dict-item]
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def _none_yet() -> list[Degraded]:
    """A named factory: msgspec omits an empty `list` default, but `degraded` is to be in every answer."""
    return []


class User(Struct, kw_only=True):
    """Who asks, and for which scene."""

    user_id: Id
    scene: Id


class BundleRef(Struct, kw_only=True, omit_defaults=True):
    """The bundle that an envelope belongs to; `stages` names the bundles of single stages that another one serves."""

    version: Id
    stages: dict[str, Id] = field(default_factory=dict)

    def of(self, stage: str) -> str:
        """The bundle that serves a stage."""
        return self.stages.get(stage, self.version)


class Degraded(Struct, kw_only=True):
    """One fallback: which stage, why (reason code), and what it did instead."""

    stage: str
    reason: str
    action: str


class TraceEntry(Struct, kw_only=True, omit_defaults=True):
    """What one stage did: counts, never ids. received = kept + the sum of `removed`. `ms` is its wall time.

    `short` is the number of places of a page that could not be filled.
    """

    stage: str
    ms: float
    received: int
    kept: int
    removed: dict[str, int] = field(default_factory=dict)
    short: int = 0


class Envelope(Struct, kw_only=True, omit_defaults=True):
    """What a stage receives and answers. `deadline_ms` is Unix time in ms, `remaining_ms` what was left on sending."""

    request_id: Id = ""
    user: User
    context: dict[str, Scalar] = field(default_factory=dict)
    items: list[Id] | None = None
    scores: list[float] | None = None
    sources: list[Id] | None = None
    coarse_scores: list[float] | None = None
    deadline_ms: float | UnsetType = UNSET
    remaining_ms: float | UnsetType = UNSET
    arm: dict[str, dict[str, bool]] = field(default_factory=dict)
    bundle: BundleRef | None = None
    page_size: Annotated[int, Meta(ge=1, le=MAX_PAGE)] | None = None
    explain: bool = False
    record: bool = False
    traceparent: str = ""
    trace: list[TraceEntry] = field(default_factory=list)
    degraded: list[Degraded] = field(default_factory=_none_yet)


class ClientRequest(Struct, kw_only=True):
    """What entry reads of a client's body. The rest of an envelope (arm, bundle, page size...) is entry's to say.

    `deadline_ms` and `items` are checked and then dropped: a wrong type is an error even where the value is not used.
    """

    user: User
    request_id: Id = ""
    context: dict[str, Scalar] = field(default_factory=dict)
    items: list[Id] | None = None
    scores: list[float] | None = None
    deadline_ms: float | UnsetType = UNSET
    explain: bool = False
    traceparent: str = ""


class AnswerItem(Struct, kw_only=True):
    """One place of the page."""

    item_id: str
    score: float
    source: str


class Answer(Struct, kw_only=True):
    """The client's answer. `trace` only where it was asked to explain."""

    request_id: str
    items: list[AnswerItem]
    degraded: list[Degraded]
    bundle: BundleRef | None
    arm: dict[str, dict[str, bool]]
    trace: list[TraceEntry] | UnsetType = UNSET


class _Identity(Struct):
    request_id: str = ""


_envelopes = msgspec.json.Decoder(Envelope)
_requests = msgspec.json.Decoder(ClientRequest)
_identities = msgspec.json.Decoder(_Identity)
_encoder = msgspec.json.Encoder()


def new_request_id() -> str:
    """A fresh id, for a request that brought none."""
    return f"req_{secrets.token_hex(8)}"


def parse_request(body: bytes, *, request_id: str = "", traceparent: str = "") -> Envelope:
    """A client's body as a fresh envelope. The arguments are the headers X-Request-Id and traceparent.

    The body's own values come first. Raises BadRequest and TooLarge.
    """
    request = _decode(body, _requests)
    envelope = Envelope(
        request_id=request.request_id or request_id or new_request_id(),
        user=request.user,
        context=request.context,
        items=request.items,
        scores=request.scores,
        explain=request.explain,
        traceparent=_trace_context(request.traceparent or traceparent),
    )
    _check(envelope)
    if len(body) > MAX_CONTEXT_BYTES:
        _check_size(len(_encoder.encode(envelope.context)), MAX_CONTEXT_BYTES, "$.context", "bytes")
    envelope.items = envelope.scores = None
    return envelope


def parse_envelope(body: bytes, *, needs_items: bool, request_id: str = "", traceparent: str = "") -> Envelope:
    """An envelope as a stage receives it, from the stage before or from a caller with plain business fields.

    Raises BadRequest with the path of the bad value, and TooLarge.
    """
    envelope = _decode(body, _envelopes)
    if needs_items and envelope.items is None:
        raise BadRequest("Object missing required field `items`", "$.items")
    envelope.request_id = envelope.request_id or request_id or new_request_id()
    envelope.traceparent = _trace_context(envelope.traceparent or traceparent)
    _check(envelope)
    return envelope


def encode(envelope: Envelope) -> bytes:
    """The envelope as JSON, for the next stage."""
    return _encoder.encode(envelope)


def encode_answer(envelope: Envelope) -> bytes:
    """The client's answer as JSON, from the envelope that rerank leaves."""
    return _encoder.encode(answer(envelope))


def answer(envelope: Envelope) -> Answer:
    """The client's answer: one object per place of the page, nothing of the graph's inner state."""
    items = envelope.items or []
    scores = envelope.scores or [0.0] * len(items)
    sources = envelope.sources or [""] * len(items)
    return Answer(
        request_id=envelope.request_id,
        items=[
            AnswerItem(item_id=item, score=score, source=source)
            for item, score, source in zip(items, scores, sources, strict=True)
        ],
        degraded=envelope.degraded,
        bundle=envelope.bundle,
        arm=envelope.arm,
        trace=envelope.trace if envelope.explain else UNSET,
    )


def error_body(error: RecgraphError, request_id: str) -> bytes:
    """`{"error", "path", "request_id"}`: the same shape at every stage, alone and through the graph."""
    reason, path = (error.reason, error.path) if isinstance(error, BadRequest | TooLarge) else (str(error), "$")
    return _encoder.encode({"error": reason, "path": path, "request_id": request_id})


def request_id_of(body: bytes, header: str) -> str:
    """The id to name in an error, as far as one can be read: the body's, else the header's, else a fresh one."""
    try:
        found = _identities.decode(body).request_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = ""
    candidate = found or header
    return candidate if 0 < len(candidate.encode("utf-8", "replace")) <= MAX_ID_BYTES else new_request_id()


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    if len(body) > MAX_BODY_BYTES:
        raise TooLarge(f"The body has {len(body)} bytes, the limit is {MAX_BODY_BYTES}")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _bad_value(str(error), body) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not JSON: {error}", "$") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply", "$") from error


def _bad_value(message: str, body: bytes) -> ClientError:
    """msgspec's message (`Expected ... - at `$.user`) as reason and path; a missing field is part of the path."""
    reason, _, rest = message.partition(" - at `")
    path = _with_key(rest.rstrip("`") or "$", body)
    missing = _MISSING_FIELD.search(reason)
    return BadRequest(reason, f"{path}.{missing.group(1)}" if missing else path)


def _with_key(path: str, body: bytes) -> str:
    """The path with the key that msgspec leaves out (`$.context[...]`): that of the first value that does not fit."""
    where, left_out, rest = path.partition("[...]")
    kind = _VALUES.get(where)
    if not left_out or kind is None:
        return path
    try:
        found: bytes | msgspec.Raw = body
        for name in where.split(".")[1:]:
            found = msgspec.json.decode(found, type=dict[str, msgspec.Raw])[name]
        values = msgspec.json.decode(found, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, KeyError, RecursionError):
        return path  # what comes after the bad value is no JSON either
    for key, value in values.items():
        try:
            msgspec.json.decode(value, type=kind)
        except (msgspec.DecodeError, RecursionError):
            return f"{where}.{key[:64]}{rest}"
    return path


def _check(envelope: Envelope) -> None:
    """The limits that types cannot say. Raises BadRequest and TooLarge."""
    _check_ids([envelope.request_id], "$.request_id", indexed=False)
    _check_ids([envelope.user.user_id], "$.user.user_id", indexed=False)
    _check_ids([envelope.user.scene], "$.user.scene", indexed=False)
    _check_context(envelope.context)
    if envelope.items is None:
        return
    _check_size(len(envelope.items), MAX_ITEMS, "$.items", "candidates")
    _check_ids(envelope.items, "$.items", indexed=True)
    _check_length(envelope.scores, len(envelope.items), "$.scores")
    _check_length(envelope.sources, len(envelope.items), "$.sources")
    _check_length(envelope.coarse_scores, len(envelope.items), "$.coarse_scores")


def _check_ids(ids: list[str], path: str, *, indexed: bool) -> None:
    if "".join(ids).isascii() and (indexed or len(ids[0]) <= MAX_ID_BYTES):
        return  # every character is one byte, and msgspec has counted the characters of a list's ids
    for index, value in enumerate(ids):
        size = len(value.encode())
        if size > MAX_ID_BYTES:
            where = f"{path}[{index}]" if indexed else path
            raise BadRequest(f"Expected an id of 1 to {MAX_ID_BYTES} bytes of UTF-8, got {size} bytes", where)


def _check_context(context: dict[str, Scalar]) -> None:
    _check_size(len(context), MAX_FEATURES, "$.context", "features")
    for name, top in (("hour", 23), ("weekday", 6)):
        value = context.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= top):
            raise BadRequest(f"Expected `int` from 0 to {top}, got {_short(value)}", f"$.context.{name}")
    device = context.get("device")
    if device is not None and not isinstance(device, str):
        raise BadRequest(f"Expected `str`, got {_short(device)}", "$.context.device")


def _check_size(size: int, limit: int, path: str, what: str) -> None:
    if size > limit:
        raise TooLarge(f"Got {size} {what}, the limit is {limit}", path)


def _check_length(column: list[float] | list[str] | None, expected: int, path: str) -> None:
    if column is not None and len(column) != expected:
        raise BadRequest(f"Expected {expected} values, one per item, got {len(column)}", path)


def _short(value: Scalar) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _trace_context(value: str) -> str:
    """A W3C traceparent, or nothing: a malformed one is dropped, as the recommendation asks of a receiver."""
    return value if _TRACEPARENT.fullmatch(value) else ""
