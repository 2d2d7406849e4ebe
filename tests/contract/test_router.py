"""What the graph's manifest means, held by the local router and by kserve-router alike."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from typing import Any

import pytest

from recgraph.ports import free_ports

from .conftest import Run, spec_of
from .upstream import ALWAYS, Behaviour, Upstream

pytestmark = pytest.mark.contract

FAILED = "Failed to process request"
UNMATCHED = "None of the routes matched with the switch condition"


def sequence(*steps: dict[str, Any], **spec: Any) -> Any:
    return spec_of({"root": {"routerType": "Sequence", "steps": list(steps)}}, **spec)


def switch(*steps: dict[str, Any]) -> Any:
    return spec_of({"root": {"routerType": "Switch", "steps": list(steps)}})


def ensemble(*steps: dict[str, Any]) -> Any:
    return spec_of({"root": {"routerType": "Ensemble", "steps": list(steps)}})


# -- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("GET", "/any/path?q=1"), ("PUT", "/v1/models/x:predict"), ("POST", "/")])
def test_any_path_and_method_posts_the_body_to_the_graph(run: Run, upstream: Upstream, method: str, path: str) -> None:
    with run(sequence({"serviceUrl": upstream.url("echo")})) as client:
        answer = client.send(b'{"x":1}', method, path)
    assert (answer.status, answer.body) == (200, b'{"x":1}')
    assert [(seen.method, seen.path, seen.body) for seen in upstream.seen] == [("POST", "/echo", b'{"x":1}')]


def test_readyz_is_not_the_graph(run: Run, upstream: Upstream) -> None:
    with run(sequence({"serviceUrl": upstream.url("echo")})) as client:
        answers = [client.send(b"{}", method, "/readyz") for method in ("GET", "POST")]
    assert [(a.status, a.body) for a in answers] == [(200, b""), (200, b"")]
    assert upstream.seen == []


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"a": 1}', "application/json"),
        (b" [1, 2]\n", "application/json"),
        (b'"\xff"', "application/json"),
        (b"[1e999]", "application/json"),
        (b'"\\ud800"', "application/json"),
        (b"NaN", "text/plain; charset=utf-8"),
        (b'{"a": 1}x', "text/plain; charset=utf-8"),
        (b"hello", "text/plain; charset=utf-8"),
        (b"", None),
    ],
)
def test_content_type_follows_the_body_and_step_headers_are_dropped(
    run: Run, upstream: Upstream, body: bytes, content_type: str | None
) -> None:
    behaviour = Behaviour(body=body, headers={"Content-Type": "text/html", "Retry-After": "1"})
    with run(sequence({"serviceUrl": upstream.url("step", behaviour)})) as client:
        answer = client.send()
    assert (answer.status, answer.body, answer.headers.get("Content-Type")) == (200, body, content_type)
    assert "X-Upstream" not in answer.headers
    assert "Retry-After" not in answer.headers


def test_a_body_that_is_not_json_reaches_the_step_as_it_is(run: Run, upstream: Upstream) -> None:
    with run(sequence({"serviceUrl": upstream.url("echo")})) as client:
        answer = client.send(b"not json", Content_Type="text/plain")
    assert (answer.status, answer.body) == (200, b"not json")
    assert upstream.seen[0].headers["content-type"] == "application/json"


def test_the_router_itself_has_no_limit_on_the_body(run: Run, upstream: Upstream) -> None:
    body = b'"' + b"a" * 3_000_000 + b'"'
    with run(sequence({"serviceUrl": upstream.url("echo")})) as client:
        assert client.send(body).body == body


def test_a_compressed_body_goes_on_as_it_came(run: Run, upstream: Upstream) -> None:
    body = gzip.compress(b'{"a":1}')
    with run(sequence({"serviceUrl": upstream.url("echo")})) as client:
        answer = client.send(body, Content_Encoding="gzip")
    assert (answer.status, answer.body) == (200, body)
    assert "content-encoding" not in upstream.seen[0].headers


def test_who_asks_whether_to_send_the_body_is_told_to(run: Run, upstream: Upstream) -> None:
    with (
        run(sequence({"serviceUrl": upstream.url("echo")})) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection,
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"[1]")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    assert upstream.seen[0].body == b"[1]"


def test_request_headers_are_not_propagated(run: Run, upstream: Upstream) -> None:
    with run(sequence({"serviceUrl": upstream.url("echo")})) as client:
        client.send(X_Request_Id="r1", traceparent="00-1", Authorization="Bearer x")
    assert upstream.seen[0].headers.keys().isdisjoint({"x-request-id", "traceparent", "authorization"})


def test_propagated_headers_match_canonical_names_unanchored(run: Run, upstream: Upstream) -> None:
    patterns = "Request-Id,^Content-Type$,x-lower,(bad"
    with run(sequence({"serviceUrl": upstream.url("echo")}), propagate=patterns) as client:
        client.send(x_request_id="r1", Content_Type="text/x", x_lower="no")
    headers = upstream.seen[0].headers
    assert (headers["x-request-id"], headers["content-type"]) == ("r1", "text/x")
    assert "x-lower" not in headers


def test_past_the_write_timeout_the_connection_is_closed_without_an_answer(run: Run, upstream: Upstream) -> None:
    slow = upstream.url("slow", Behaviour(delay_s=1.4))
    with (
        run(sequence({"serviceUrl": slow}, routerTimeouts={"serverWrite": 1})) as client,
        pytest.raises(http.client.RemoteDisconnected),
    ):
        client.send()


def test_past_the_read_timeout_the_graph_gets_what_has_come(run: Run, upstream: Upstream) -> None:
    with (
        run(sequence({"serviceUrl": upstream.url("echo")}, routerTimeouts={"serverRead": 1})) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection,
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n[1]")
        received = connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert upstream.seen[0].body == b"[1]"


# -- steps that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
@pytest.mark.parametrize("body", [b'{"reason": "x"}', b"down"])
def test_hard_step_stops_the_sequence_with_its_own_answer(
    run: Run, upstream: Upstream, status: int, body: bytes
) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(status, body)), "dependency": "Hard"}
    with run(sequence(first, {"serviceUrl": upstream.url("second")})) as client:
        answer = client.send()
    assert (answer.status, answer.body) == (status, body)
    assert upstream.paths() == ["first"]


@pytest.mark.parametrize("dependency", [{"dependency": "Soft"}, {}])
@pytest.mark.parametrize("body", [b'{"reason": "x"}', b"down"])
def test_soft_step_hands_its_error_body_on(
    run: Run, upstream: Upstream, dependency: dict[str, str], body: bytes
) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(503, body)), **dependency}
    with run(sequence(first, {"serviceUrl": upstream.url("second"), "data": "$response"})) as client:
        answer = client.send(b'{"x":1}')
    assert (answer.status, answer.body) == (200, body)
    assert upstream.seen[1].body == body


@pytest.mark.parametrize("dependency", ["Soft", "Hard"])
def test_the_last_steps_status_is_the_graphs(run: Run, upstream: Upstream, dependency: str) -> None:
    last = {"serviceUrl": upstream.url("last", Behaviour(418, b"{}")), "dependency": dependency}
    with run(sequence({"serviceUrl": upstream.url("first")}, last)) as client:
        assert client.send().status == 418


@pytest.mark.parametrize("dependency", ["Soft", "Hard"])
@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        (Behaviour(hang_ups=ALWAYS), 'Post "{url}": EOF'),
        (Behaviour(body=b"{}", fault="truncate"), "unexpected EOF"),
        (
            Behaviour(delay_s=1.5),
            'Post "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
        ),
        (
            Behaviour(fault="stall"),
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)",
        ),
    ],
)
def test_a_transport_error_is_a_500_soft_or_hard(
    run: Run, upstream: Upstream, dependency: str, behaviour: Behaviour, cause: str
) -> None:
    url = upstream.url("first", behaviour)
    first = {"serviceUrl": url, "dependency": dependency}
    graph = sequence(first, {"serviceUrl": upstream.url("second")}, routerTimeouts={"serviceClient": 1})
    with run(graph) as client:
        answer = client.send()
    assert answer.status == 500
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == {"error": FAILED, "cause": cause.format(url=url)}
    assert upstream.paths() == ["first"]


def test_a_refused_connection_is_a_500(run: Run) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/a&b"
    with run(sequence({"serviceUrl": url})) as client:
        answer = client.send()
    host = url.split("/")[2]
    cause = f'Post "{url}": dial tcp {host}: connect: connection refused'
    assert (answer.status, answer.json) == (500, {"error": FAILED, "cause": cause})
    assert b"\\u0026" in answer.body


def test_a_host_that_does_not_resolve_is_a_500(run: Run) -> None:
    with run(sequence({"serviceUrl": "http://nowhere.invalid/x"})) as client:
        answer = client.send()
    assert answer.status == 500
    assert answer.json["cause"].startswith('Post "http://nowhere.invalid/x": dial tcp: lookup nowhere.invalid')


def test_without_a_client_timeout_a_slow_step_is_waited_for(run: Run, upstream: Upstream) -> None:
    with run(sequence({"serviceUrl": upstream.url("slow", Behaviour(delay_s=1.2))})) as client:
        assert client.send().status == 200


@pytest.mark.parametrize(("status", "method", "body"), [(307, "POST", b'{"x":1}'), (302, "GET", b"")])
def test_redirects_are_followed(run: Run, upstream: Upstream, status: int, method: str, body: bytes) -> None:
    upstream.url("final")
    moved = upstream.url("moved", Behaviour(status, b"", headers={"Location": "/final"}))
    with run(sequence({"serviceUrl": moved})) as client:
        answer = client.send(b'{"x":1}')
    assert (answer.status, answer.body) == (200, body)
    assert (upstream.seen[1].method, upstream.seen[1].path) == (method, "/final")


def test_a_loop_of_redirects_ends(run: Run, upstream: Upstream) -> None:
    url = upstream.url("round", Behaviour(307, b"", headers={"Location": "/round"}))
    with run(sequence({"serviceUrl": url})) as client:
        answer = client.send()
    assert (answer.status, answer.json["cause"]) == (500, 'Post "/round": stopped after 10 redirects')
    assert len(upstream.seen) == 10


def test_a_redirect_to_another_protocol_is_a_500(run: Run, upstream: Upstream) -> None:
    moved = upstream.url("moved", Behaviour(307, b"", headers={"Location": "ftp://x/y"}))
    with run(sequence({"serviceUrl": moved})) as client:
        answer = client.send()
    assert (answer.status, answer.json["cause"]) == (500, 'Post "ftp://x/y": unsupported protocol scheme "ftp"')


def test_a_compressed_answer_that_is_not_is_a_500(run: Run, upstream: Upstream) -> None:
    behaviour = Behaviour(body=b"plain", headers={"Content-Encoding": "gzip"})
    with run(sequence({"serviceUrl": upstream.url("step", behaviour)})) as client:
        assert client.send().status == 500


def test_a_redirect_without_a_location_is_the_answer(run: Run, upstream: Upstream) -> None:
    with run(sequence({"serviceUrl": upstream.url("moved", Behaviour(307, b"{}"))})) as client:
        assert client.send()[:2] == (307, b"{}")


def test_connections_to_a_step_are_used_again(run: Run, upstream: Upstream) -> None:
    steps = [{"serviceUrl": upstream.url(name), "data": "$response"} for name in ("a", "b")]
    with run(sequence(*steps)) as client:
        for _ in range(3):
            client.send()
    assert (len(upstream.seen), upstream.connections) == (6, 1)


def test_a_step_that_ended_an_idle_connection_is_called_on_a_new_one(run: Run, upstream: Upstream) -> None:
    behaviour = Behaviour(body=b"{}", headers={"Connection": "close"})
    with run(sequence({"serviceUrl": upstream.url("step", behaviour)})) as client:
        assert [client.send().status for _ in range(3)] == [200, 200, 200]
    assert upstream.connections == 3


def test_a_compressed_answer_is_read(run: Run, upstream: Upstream) -> None:
    behaviour = Behaviour(body=gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"})
    with run(sequence({"serviceUrl": upstream.url("step", behaviour)})) as client:
        assert client.send().body == b'{"a": 1}'
    assert upstream.seen[0].headers["accept-encoding"] == "gzip"


def test_propagated_headers_do_not_break_the_steps_framing(run: Run, upstream: Upstream) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(body=b'{"longer": "than the request"}'))}
    graph = sequence(first, {"serviceUrl": upstream.url("second"), "data": "$response"})
    with run(graph, propagate=".*") as client:
        answer = client.send(b"{}", User_Agent="me", X_Two="2")
    assert answer.body == b'{"longer": "than the request"}'
    seen = upstream.seen[1].headers
    assert (seen["user-agent"], seen["x-two"], seen["content-length"]) == ("me", "2", str(len(answer.body)))
    assert seen["host"] == upstream.address.removeprefix("http://")


def test_concurrent_requests_do_not_mix(run: Run, upstream: Upstream) -> None:
    steps = [{"serviceUrl": upstream.url(f"s{i}", Behaviour(delay_s=0.01)), "data": "$response"} for i in range(3)]
    with run(sequence(*steps)) as client:
        connections = [http.client.HTTPConnection("127.0.0.1", client.port, timeout=10) for _ in range(8)]
        for i, connection in enumerate(connections):
            connection.request("POST", "/", json.dumps({"i": i}))
        bodies = [json.loads(connection.getresponse().read()) for connection in connections]
        for connection in connections:
            connection.close()
    assert bodies == [{"i": i} for i in range(8)]


# -- Sequence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "received"), [("$response", b'{"y":2}'), ("$request", b'{"x":1}'), ("", b'{"x":1}')])
def test_only_dollar_response_hands_the_response_on(run: Run, upstream: Upstream, data: str, received: bytes) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(body=b'{"y":2}'))}
    with run(sequence(first, {"serviceUrl": upstream.url("second"), "data": data})) as client:
        client.send(b'{"x":1}')
    assert upstream.seen[1].body == received


def test_dollar_response_on_the_first_step_is_the_request(run: Run, upstream: Upstream) -> None:
    with run(sequence({"serviceUrl": upstream.url("echo"), "data": "$response"})) as client:
        assert client.send(b'{"x":1}').body == b'{"x":1}'


def test_an_unmet_condition_ends_the_graph_with_200_and_the_response_so_far(run: Run, upstream: Upstream) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(503, b'{"items": []}'))}
    second = {"serviceUrl": upstream.url("second"), "condition": "deadline_ms"}
    with run(sequence(first, second, {"serviceUrl": upstream.url("third")})) as client:
        answer = client.send(b'{"deadline_ms": 1}')
    assert (answer.status, answer.body) == (200, b'{"items": []}')
    assert upstream.paths() == ["first"]


def test_an_unmet_condition_ends_only_the_nested_sequence(run: Run, upstream: Upstream) -> None:
    nested = [
        {"serviceUrl": upstream.url("inner", Behaviour(body=b'{"done": 1}'))},
        {"serviceUrl": upstream.url("skipped"), "condition": "more"},
    ]
    root = [{"nodeName": "inner"}, {"serviceUrl": upstream.url("after"), "data": "$response"}]
    graph = spec_of(
        {"root": {"routerType": "Sequence", "steps": root}, "inner": {"routerType": "Sequence", "steps": nested}}
    )
    with run(graph) as client:
        assert client.send().body == b'{"done": 1}'
    assert upstream.paths() == ["inner", "after"]


def test_a_condition_on_a_response_that_is_not_json_is_a_500(run: Run, upstream: Upstream) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(body=b"text"))}
    with run(sequence(first, {"serviceUrl": upstream.url("second"), "condition": "x"})) as client:
        answer = client.send()
    assert (answer.status, answer.json) == (500, {"error": FAILED, "cause": "invalid response"})


# -- conditions ------------------------------------------------------------------------------------------------------

DOCUMENT = {
    "arm": {"cascade": {"stable": True}, "x.y": {"deep": 0}},
    "none": None,
    "false": False,
    "empty": "",
    "list": [5, {"e": 1}, []],
    "7": {"seven": 7},
    "a*b": 1,
    "é": {"ü": 1},
    "with space": 1,
}


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ("arm.cascade.stable", True),
        ("arm.cascade.canary", False),
        ("arm", True),
        ("none", True),
        ("none.x", False),
        ("false", True),
        ("empty", True),
        ("empty.0", False),
        ("arm.x", False),
        ("arm.x\\.y.deep", True),
        ("list.0", True),
        ("list.1.e", True),
        ("list.01.e", True),
        ("list.2.0", False),
        ("list.3", False),
        ("list.-1", False),
        ("list.e", False),
        ("7.seven", True),
        ("a\\*b", True),
        ("é.ü", True),
        ("with space", True),
        ("Arm", False),
    ],
)
@pytest.mark.parametrize("where", ["switch", "sequence"])
def test_a_condition_tests_that_a_path_exists(
    run: Run, upstream: Upstream, condition: str, matches: bool, where: str
) -> None:
    second = {"serviceUrl": upstream.url("second"), "condition": condition}
    graph = switch(second) if where == "switch" else sequence({"serviceUrl": upstream.url("first")}, second)
    with run(graph) as client:
        client.send(DOCUMENT)
    assert ("second" in upstream.paths()) == matches


def test_a_condition_reads_arrays_at_the_top(run: Run, upstream: Upstream) -> None:
    with run(switch({"serviceUrl": upstream.url("echo"), "condition": "0.a"})) as client:
        assert [client.send(body).status for body in (b'[{"a": 1}]', b'[{"b": 1}]', b"5")] == [200, 404, 404]


# -- Switch ----------------------------------------------------------------------------------------------------------


def test_switch_takes_the_first_match_and_the_original_input(run: Run, upstream: Upstream) -> None:
    steps = [{"serviceUrl": upstream.url(name), "condition": name} for name in ("a", "b", "c")]
    with run(switch(*steps)) as client:
        answer = client.send(b'{"c":1,"b":{}}')
    assert answer.body == b'{"c":1,"b":{}}'
    assert upstream.paths() == ["b"]


@pytest.mark.parametrize("body", [b'{"x": 1}', b"not json", b""])
def test_switch_without_a_match_is_a_404_at_the_root(run: Run, upstream: Upstream, body: bytes) -> None:
    with run(switch({"serviceUrl": upstream.url("a"), "condition": "a"})) as client:
        answer = client.send(body)
    assert (answer.status, answer.json) == (404, {"error": FAILED, "cause": UNMATCHED})
    assert answer.body.startswith(b'{"error":')


@pytest.mark.parametrize("router_type", ["Sequence", "Switch", "Splitter", "Ensemble"])
def test_switch_without_a_match_is_a_500_in_any_other_node(run: Run, upstream: Upstream, router_type: str) -> None:
    step: dict[str, Any] = {"nodeName": "inner", "dependency": "Soft"}
    step |= {"Switch": {"condition": "x"}, "Splitter": {"weight": 100}}.get(router_type, {})
    inner = [{"serviceUrl": upstream.url("a"), "condition": "a"}]
    graph = spec_of(
        {"root": {"routerType": router_type, "steps": [step]}, "inner": {"routerType": "Switch", "steps": inner}}
    )
    with run(graph) as client:
        answer = client.send(b'{"x": 1}')
    assert (answer.status, answer.json) == (500, {"error": FAILED, "cause": UNMATCHED})


@pytest.mark.parametrize("dependency", ["Soft", "Hard"])
def test_switch_answers_with_the_steps_status(run: Run, upstream: Upstream, dependency: str) -> None:
    step = {"serviceUrl": upstream.url("a", Behaviour(503, b"down")), "condition": "a", "dependency": dependency}
    with run(switch(step)) as client:
        answer = client.send(b'{"a": 1}')
    assert (answer.status, answer.body) == (503, b"down")


# -- Splitter --------------------------------------------------------------------------------------------------------


def test_splitter_follows_the_weights(run: Run, upstream: Upstream) -> None:
    weights = {"never": 0, "mostly": 80, "rarely": 20}
    steps = [{"serviceUrl": upstream.url(name), "weight": weight} for name, weight in weights.items()]
    with run(spec_of({"root": {"routerType": "Splitter", "steps": steps}})) as client:
        for _ in range(200):
            client.send()
    counts = {name: upstream.paths().count(name) for name in weights}
    # Six standard deviations of a binomial with n = 200, p = 0.2 are 34: chance does not break this.
    assert counts["never"] == 0
    assert 6 <= counts["rarely"] <= 74
    assert counts["mostly"] + counts["rarely"] == 200


@pytest.mark.parametrize("dependency", ["Soft", "Hard"])
def test_splitter_answers_with_the_steps_status(run: Run, upstream: Upstream, dependency: str) -> None:
    step = {"serviceUrl": upstream.url("a", Behaviour(503, b"{}")), "weight": 100, "dependency": dependency}
    with run(spec_of({"root": {"routerType": "Splitter", "steps": [step]}})) as client:
        assert client.send().status == 503


# -- Ensemble --------------------------------------------------------------------------------------------------------


def test_ensemble_merges_by_name_or_index_in_gos_json(run: Run, upstream: Upstream) -> None:
    numbers = b'{"z": 1.0, "k": 1e3, "big": 12345678901234567890, "small": 1e-9, "huge": 1e21, "text": "<&>\xc3\xa9"}'
    steps = [
        {"serviceUrl": upstream.url("a", Behaviour(body=numbers)), "name": "named"},
        {"serviceUrl": upstream.url("b", Behaviour(503, b'{"error": true}'))},
        {"serviceUrl": upstream.url("c", Behaviour(body=b"null"))},
        {"serviceUrl": upstream.url("d")},
    ]
    with run(ensemble(*steps)) as client:
        answer = client.send(b'{"x":[]}')
    assert answer.status == 200
    assert answer.body == (
        b'{"1":{"error":true},"2":null,"3":{"x":[]},"named":{"big":12345678901234567000,"huge":1e+21,"k":1000,'
        b'"small":1e-9,"text":"\\u003c\\u0026\\u003e\xc3\xa9","z":1}}'
    )
    assert all(seen.body == b'{"x":[]}' for seen in upstream.seen)


def test_ensemble_runs_its_steps_at_the_same_time(run: Run, upstream: Upstream) -> None:
    steps = [{"serviceUrl": upstream.url(f"s{i}", Behaviour(delay_s=0.5))} for i in range(4)]
    with run(ensemble(*steps)) as client:
        started = time.monotonic()
        client.send()
        assert time.monotonic() - started < 1.9  # one after the other they take two seconds


def test_hard_member_of_an_ensemble_decides(run: Run, upstream: Upstream) -> None:
    steps = [
        {"serviceUrl": upstream.url("a")},
        {"serviceUrl": upstream.url("b", Behaviour(429, b'{"b": 1, "a": 2.50}')), "dependency": "Hard"},
        {"serviceUrl": upstream.url("c", Behaviour(503, b"{}")), "dependency": "Hard"},
    ]
    with run(ensemble(*steps)) as client:
        answer = client.send()
    assert (answer.status, answer.body) == (429, b'{"a":2.5,"b":1}')


@pytest.mark.parametrize(
    ("body", "kind"), [(b"[1]", "array"), (b'"x"', "string"), (b"1.5", "number"), (b"true", "bool")]
)
def test_ensemble_refuses_a_member_that_is_no_object(run: Run, upstream: Upstream, body: bytes, kind: str) -> None:
    steps = [{"serviceUrl": upstream.url("a")}, {"serviceUrl": upstream.url("b", Behaviour(body=body))}]
    with run(ensemble(*steps)) as client:
        answer = client.send()
    cause = f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
    assert (answer.status, answer.json) == (500, {"error": FAILED, "cause": cause})


@pytest.mark.parametrize("body", [b"text", b"", b'{"n": 1e999}'])
def test_ensemble_refuses_a_member_that_cannot_be_read(run: Run, upstream: Upstream, body: bytes) -> None:
    steps = [{"serviceUrl": upstream.url("a")}, {"serviceUrl": upstream.url("b", Behaviour(body=body))}]
    with run(ensemble(*steps)) as client:
        answer = client.send()
    assert (answer.status, answer.json["error"]) == (500, FAILED)


def test_a_member_that_fails_answers_for_the_ensemble_before_a_slow_one(run: Run, upstream: Upstream) -> None:
    slow = {"serviceUrl": upstream.url("slow", Behaviour(delay_s=5))}
    with run(ensemble(slow, {"serviceUrl": f"http://127.0.0.1:{free_ports(1)[0]}/"})) as client:
        started = time.monotonic()
        answer = client.send()
        assert time.monotonic() - started < 4
    assert answer.status == 500
    assert "connection refused" in answer.json["cause"]


# -- mapPredictionsToInstances ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "received"),
    [
        (b'{"predictions": [1.0, "<"], "k": 1}', b'{"instances":[1,"\\u003c"]}'),
        (b'{"predictions": [1], "instances": [9]}', b'{"instances":[1]}'),
        (b'{"predictions": []}', b'{"predictions": []}'),
        (b'{"predictions": "x"}', b'{"predictions": "x"}'),
        (b'{"other": [1], "request_id": "r"}', b'{"other": [1], "request_id": "r"}'),
        (b'{"predictions": [1e999]}', b'{"predictions": [1e999]}'),
        (b"[1]", b"[1]"),
        (b"text", b"text"),
    ],
)
def test_predictions_become_instances_and_nothing_else_is_kept(
    run: Run, upstream: Upstream, body: bytes, received: bytes
) -> None:
    first = {"serviceUrl": upstream.url("first", Behaviour(body=body))}
    second = {"serviceUrl": upstream.url("second"), "data": "$response", "mapPredictionsToInstances": True}
    with run(sequence(first, second)) as client:
        client.send()
    assert upstream.seen[1].body == received


def test_mapping_applies_to_the_request_of_a_first_step_and_only_in_a_sequence(run: Run, upstream: Upstream) -> None:
    body = b'{"predictions":[1],"k":1}'
    step = {"serviceUrl": upstream.url("echo"), "mapPredictionsToInstances": True}
    with run(sequence(step)) as client:
        assert client.send(body).body == b'{"instances":[1]}'
    with run(switch({**step, "condition": "k"})) as client:
        assert client.send(body).body == body
