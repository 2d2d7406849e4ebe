"""The gateway: the real Envoy with the configuration that the chart renders, against real upstream servers.

Whatever becomes of the graph and of the pool server, a well-meant request gets 200, a list, and the reason.
Envoy is found through RECGRAPH_ENVOY or PATH, helm through RECGRAPH_HELM, PATH or the test bed.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgraph.ports import free_ports

from .upstream import ALWAYS, Behaviour, Upstream

pytestmark = pytest.mark.contract

CHART = Path(__file__).parents[2] / "helm" / "recgraph"
TESTBED_HELM = Path("/var/lib/testbed/bin/helm")
PATH = "/v1/recommend"
LIMIT = 1 << 20
LATE_S = 2.5
REQUEST = {"request_id": "r1", "user": {"user_id": "u1", "scene": "home_feed"}}
GRAPH_ANSWER = b'{"request_id":"r1","items":[{"item_id":"i1","score":0.5,"source":"ann"}],"degraded":[]}'
POOL_ANSWER = b'{"request_id":"r1","items":[{"item_id":"hot1","score":0.0,"source":"hot"}]}'
FIXED = ["d1", "d2"]
HOME_FIXED = ["h1", '100% "%REQ(X)%"']
SCENES = {
    "home_feed": {
        "page_size": 2,
        "filters": {"blocklist": ["blocked"]},
        "rules": {"exclude": {"items": ["excluded"]}},
        "pools": {"fixed": ["blocked", HOME_FIXED[0], "excluded", HOME_FIXED[1], "beyond the page"]},
    },
    "für dich/..": {"pools": {"fixed": ["ü1"]}},
}


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def item_ids(self) -> list[str]:
        return [item["item_id"] for item in self.json["items"]]


@dataclass
class Gateway:
    """A running Envoy."""

    port: int
    admin_port: int
    metrics_port: int
    log: Path
    pid: int = 0

    def post(self, body: object = None, path: str = PATH, method: str = "POST", **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(REQUEST if body is None else body).encode()
        return self.ask(self.port, method, path, content, **headers)

    def get(self, path: str) -> Answer:
        return self.ask(self.port, "GET", path)

    def ask(self, port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request on a connection of its own; never retried."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {"Content-Type": "application/json", **named})
            response = connection.getresponse()
            return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        finally:
            connection.close()


def program(variable: str, name: str, *places: Path) -> str:
    found = os.environ.get(variable) or shutil.which(name) or next((str(p) for p in places if p.exists()), None)
    if not found:
        pytest.skip(f"no {name} on this machine: set {variable}")
    return found


def helm_template(values: dict[str, Any], folder: Path, template: str) -> Any:
    """The one object of a template of the chart."""
    helm = program("RECGRAPH_HELM", "helm", TESTBED_HELM)
    given_values = folder / "values.yaml"
    given_values.write_text(json.dumps({"gateway": values, "scenes": SCENES}))
    command = [helm, "template", "rg", str(CHART), "--kube-version", "1.34", "-f", str(given_values)]
    done = subprocess.run([*command, "-s", f"templates/{template}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def address(port: int) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port}


@contextmanager
def running(
    folder: Path, graph_port: int, pools_port: int, *, replace: dict[str, str] | None = None, **values: Any
) -> Iterator[Gateway]:
    """Envoy with the chart's configuration for these values; `replace` breaks it: each text once, by another."""
    envoy = program("RECGRAPH_ENVOY", "envoy")
    gateway = Gateway(*free_ports(3), folder / "access.log")
    ports = {"http": gateway.port, "admin": gateway.admin_port, "metrics": gateway.metrics_port}
    config = folder / "envoy.yaml"
    configmap = helm_template(
        {
            "listenAddress": "127.0.0.1",
            "ports": ports,
            "graph": address(graph_port),
            "pools": address(pools_port),
            "fixedPool": FIXED,
            **values,
        },
        folder,
        "gateway-configmap.yaml",
    )
    text: str = configmap["data"]["envoy.yaml"]
    for old, new in (replace or {}).items():
        assert text.count(old) == 1, f"{text.count(old)} times in the configuration: {old}"
        text = text.replace(old, new)
    config.write_text(text)
    command = [envoy, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    command += ["--file-flush-interval-msec", "100"]
    with gateway.log.open("wb") as stdout, (folder / "envoy.log").open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    gateway.pid = process.pid
    try:
        wait_until_ready(gateway, process, folder / "envoy.log")
        yield gateway
    finally:
        process.kill()
        process.wait()


def wait_until_ready(gateway: Gateway, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1000):
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", gateway.port)) == 0 and gateway.get("/healthz").status == 200:
                return
        time.sleep(0.01)
    pytest.fail(f"Envoy does not answer: {log.read_text()}")


def test_pods_roll_when_the_configuration_changes(tmp_path: Path) -> None:
    def checksum(**values: Any) -> str:
        deployment = helm_template(values, tmp_path, "gateway-deployment.yaml")
        found: str = deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return found

    assert checksum() == checksum(replicas=3)
    assert checksum() != checksum(fixedPool=["i_1"])


@pytest.fixture(scope="module")
def upstreams() -> Iterator[tuple[Upstream, Upstream]]:
    pair = Upstream(Behaviour(body=GRAPH_ANSWER)), Upstream(Behaviour(body=POOL_ANSWER))
    yield pair
    for upstream in pair:
        upstream.stop()


@pytest.fixture
def graph(upstreams: tuple[Upstream, Upstream]) -> Upstream:
    upstreams[0].reset()
    return upstreams[0]


@pytest.fixture
def pools(upstreams: tuple[Upstream, Upstream]) -> Upstream:
    upstreams[1].reset()
    return upstreams[1]


@pytest.fixture(scope="module")
def gateway(upstreams: tuple[Upstream, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    for upstream in upstreams:
        upstream.reset()
    folder = tmp_path_factory.mktemp("gateway")
    # The timeouts are wide enough for a busy machine; what is late is later by far.
    wide: dict[str, Any] = {
        "timeoutMs": 800,
        "pools": {**address(upstreams[1].port), "timeoutMs": 600},
        "rateLimit": {"enabled": False},
    }
    with running(folder, upstreams[0].port, upstreams[1].port, **wide) as gateway:
        yield gateway


def break_upstream(upstream: Upstream, fault: str) -> None:
    if fault == "late":
        upstream.now.delay_s = LATE_S
    elif fault == "gone":
        upstream.stop()
    elif fault == "hangs up":
        upstream.now.hang_ups = ALWAYS
    else:
        upstream.now.status = int(fault)
        upstream.now.body = b'{"error":"broken"}'


GRAPH_FAULTS = [
    ("500", "graph_error"),
    ("503", "graph_error"),
    ("504", "graph_error"),
    ("404", "graph_error"),
    ("late", "graph_timeout"),
    ("gone", "graph_unavailable"),
    ("hangs up", "graph_unavailable"),
]


def test_answer_of_the_graph_passes_unchanged(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    answer = gateway.post()
    assert (answer.status, answer.body) == (200, GRAPH_ANSWER)
    assert answer.headers["content-type"] == "application/json"
    assert (graph.seen[0].method, json.loads(graph.seen[0].body)) == ("POST", REQUEST)
    assert not pools.seen


@pytest.mark.parametrize("status", [400, 413])
def test_clients_fault_passes_unchanged(status: int, gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    graph.now.status, graph.now.body = status, b'{"error":"Unknown scene","path":"$.user.scene","request_id":"r1"}'
    answer = gateway.post()
    assert (answer.status, answer.body) == (status, graph.now.body)
    assert not pools.seen


@pytest.mark.parametrize(("fault", "reason"), GRAPH_FAULTS)
def test_hot_pool_when_the_graph_fails(
    fault: str, reason: str, gateway: Gateway, graph: Upstream, pools: Upstream
) -> None:
    break_upstream(graph, fault)
    answer = gateway.post()
    assert (answer.status, answer.body) == (200, POOL_ANSWER)
    assert [(seen.method, seen.path, seen.body) for seen in pools.seen] == [("GET", "/pools/home_feed", b"")]
    assert pools.seen[0].headers["x-recgraph-last-resort"] == reason
    assert pools.seen[0].headers["x-request-id"] == "r1"


@pytest.mark.parametrize("pool_fault", ["500", "503", "404", "202", "302", "late", "gone", "hangs up"])
@pytest.mark.parametrize(("fault", "reason"), [("500", "graph_error"), ("gone", "graph_unavailable")])
def test_fixed_pool_when_the_pool_server_fails_too(
    fault: str, reason: str, pool_fault: str, gateway: Gateway, graph: Upstream, pools: Upstream
) -> None:
    break_upstream(graph, fault)
    break_upstream(pools, pool_fault)
    answer = gateway.post()
    assert_fixed_pool(answer, reason)


def assert_fixed_pool(answer: Answer, reason: str, ids: list[str] = HOME_FIXED) -> None:
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "request_id": "r1",
        "items": [{"item_id": item, "score": 0, "source": "fixed"} for item in ids],
        "degraded": [{"stage": "gateway", "reason": reason, "action": "fixed_pool"}],
        "bundle": None,
        "arm": {},
    }


def test_late_graph_and_late_pools_still_give_a_list(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "late")
    break_upstream(pools, "late")
    answer = gateway.post()
    assert answer.status == 200
    assert answer.json["degraded"] == [{"stage": "gateway", "reason": "graph_timeout", "action": "fixed_pool"}]


def test_starved_gateway_still_gives_a_list(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    """It wakes up with every timeout of the last resort behind it."""
    break_upstream(graph, "500")
    break_upstream(pools, "late")
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(gateway.post)
        while not pools.seen and not answer.done():
            time.sleep(0.005)
        os.kill(gateway.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(gateway.pid, signal.SIGCONT)
        assert_fixed_pool(answer.result(10), "graph_error")


@contextmanager
def pool_server_with_a_pause() -> Iterator[tuple[int, Event, Event]]:
    """Its port, and two events: the head of the one answer was sent; the body may follow."""
    head_sent, go_on = Event(), Event()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(POOL_ANSWER)}\r\n\r\n"

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(head.encode())
            head_sent.set()
            go_on.wait(10)
            connection.sendall(POOL_ANSWER)
            connection.recv(1)  # until Envoy closes

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        threads.submit(answer, server)
        try:
            yield server.getsockname()[1], head_sent, go_on
        finally:
            server.shutdown(socket.SHUT_RDWR)  # where there is no Envoy, nobody ever connects


def test_slow_pool_server_in_its_time(graph: Upstream, tmp_path: Path) -> None:
    """The graph is late, and so the client has waited already: the whole page still comes."""
    break_upstream(graph, "late")
    with pool_server_with_a_pause() as (port, head_sent, go_on):
        values = {"timeoutMs": 100, "pools": {**address(port), "timeoutMs": 2000}}
        with running(tmp_path, graph.port, port, **values) as gateway, ThreadPoolExecutor(1) as clients:
            answer = clients.submit(gateway.post)
            assert head_sent.wait(10)
            time.sleep(0.5)
            go_on.set()
            assert (answer.result(10).status, answer.result().body) == (200, POOL_ANSWER)


@pytest.mark.parametrize("starved", [False, True])
def test_answer_of_the_pool_server_that_has_begun_and_is_late(starved: bool, graph: Upstream, tmp_path: Path) -> None:
    """The pools' time, and in a starved Envoy every other, ends behind the status line: a list all the same."""
    break_upstream(graph, "late")
    with pool_server_with_a_pause() as (port, head_sent, go_on):
        values = {"timeoutMs": 100, "pools": {**address(port), "timeoutMs": 400}}
        with running(tmp_path, graph.port, port, **values) as gateway, ThreadPoolExecutor(1) as clients:
            answer = clients.submit(gateway.post)
            assert head_sent.wait(10)
            if starved:
                time.sleep(0.1)  # the head is on its way
                os.kill(gateway.pid, signal.SIGSTOP)
                go_on.set()
                time.sleep(1.5)
                os.kill(gateway.pid, signal.SIGCONT)
            assert_fixed_pool(answer.result(10), "graph_timeout")
            go_on.set()


def test_answer_of_the_pool_server_that_breaks_off(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "500")
    pools.now.fault = "truncate"
    assert_fixed_pool(gateway.post(), "graph_error")


# Ways to make Envoy itself reply on the way to the last resort.
CLUSTER = "    - name: last_resort\n      connect_timeout: 0.050s"
ROUTE = '- name: last_resort\n                      domains: ["*"]'
OWN_REPLIES = {
    "timeout": {"timeout: 1.600s": "timeout: 0.001s"},
    "no listener": {"{server_listener_name: last_resort}": "{server_listener_name: none}"},
    "overflow": {CLUSTER: f"{CLUSTER}\n      circuit_breakers: {{thresholds: [{{max_requests: 0}}]}}"},
    "no route inside": {ROUTE: ROUTE.replace("*", "none")},
}


@pytest.mark.parametrize("fault", OWN_REPLIES)
def test_own_replies_of_envoy_are_the_fixed_pool(fault: str, graph: Upstream, pools: Upstream, tmp_path: Path) -> None:
    """None of them goes out with the redirect's 200 and an error for a body."""
    break_upstream(graph, "500")
    pools.now.delay_s = 0.2
    values = {"pools": {**address(pools.port), "timeoutMs": 600}}
    with running(tmp_path, graph.port, pools.port, replace=OWN_REPLIES[fault], **values) as gateway:
        assert_fixed_pool(gateway.post(), "graph_error")
        assert_fixed_pool(gateway.post({"request_id": "r1"}), "graph_error", FIXED)


def test_as_many_headers_as_a_client_may_send(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    """The gateway adds its own on the way to the last resort."""
    graph.stop()
    pools.stop()
    assert_fixed_pool(gateway.post(**{f"h{number}": "1" for number in range(96)}), "graph_unavailable")
    assert_fixed_pool(gateway.post(long="x" * 61_200), "graph_unavailable")
    assert gateway.post(**{f"h{number}": "1" for number in range(97)}).status == 431


def test_refused_request_gets_no_pool_for_the_headers_of_the_inside(gateway: Gateway) -> None:
    forged = {"X_Recgraph_Last_Resort": "graph_error", "X_Recgraph_Scene": "home_feed"}
    assert gateway.post(path="/%00", **forged).status == 400
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as client:
        client.sendall(b"POST /%00 HTTP/1.1\r\nHost: x\r\nx_recgraph_redirected: true\r\nContent-Length: 0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("escaped", [True, False])
def test_scene_of_any_text(escaped: bool, gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "500")
    body = json.dumps({"user": {"user_id": "u", "scene": "für dich/.."}}, ensure_ascii=escaped).encode()
    assert gateway.post(body).body == POOL_ANSWER
    assert unquote(pools.seen[0].path) == "/pools/für dich/.."
    break_upstream(pools, "gone")
    assert gateway.post(body).item_ids == ["ü1"]


@pytest.mark.parametrize(
    ("raw", "scene"),
    [
        (r"\u0068\u006F\u006d\u0065", "home"),
        (r"\\u0041", r"\u0041"),
        (r"\ud83d\ude00\/", "😀/"),
        (r"a\"b", 'a"b'),
        (r"\u0000", "-"),
        (r"\n", "-"),
        ("x" * 257, "-"),
    ],
)
def test_escapes_in_a_scene(raw: str, scene: str, gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "500")
    gateway.post(b'{"request_id": "r", "user": {"scene": "' + raw.encode() + b'"}}')
    assert unquote(pools.seen[0].path) == f"/pools/{scene}"


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"user":', b"{}", b'{"user":{"scene":""}}', b"\xff\x00"])
def test_body_without_a_scene_gets_the_default(body: bytes, gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    graph.now.status = 400
    assert gateway.post(body).status == 400
    break_upstream(graph, "500")
    assert gateway.post(body).body == POOL_ANSWER
    assert pools.seen[0].path == "/pools/-"
    break_upstream(pools, "gone")
    assert gateway.post(body).item_ids == ["d1", "d2"]


def test_connection_that_ended_is_tried_once_more(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    graph.now.hang_ups = 1
    assert gateway.post().body == GRAPH_ANSWER
    graph.now.hang_ups = 2
    pools.now.hang_ups = 1
    assert gateway.post().body == POOL_ANSWER
    assert (len(graph.seen), len(pools.seen)) == (4, 2)


def test_full_answers_come_back(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    graph.stop()
    assert gateway.post().body == POOL_ANSWER
    graph.reset()
    assert gateway.post().body == GRAPH_ANSWER


def test_body_at_the_limit_passes(gateway: Gateway, graph: Upstream) -> None:
    body = b'{"request_id":"r1","x":"' + b"a" * (LIMIT - 26) + b'"}'
    assert len(body) == LIMIT
    assert gateway.post(body).body == GRAPH_ANSWER
    assert graph.seen[0].body == body


def test_body_above_the_limit_is_refused(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    answer = gateway.post(b" " * (LIMIT + 1), X_Request_Id="big")
    assert answer.status == 413
    assert answer.json == {"error": f"the body is larger than {LIMIT} bytes", "path": "$", "request_id": "big"}
    assert not graph.seen
    assert not pools.seen


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b"[" * (LIMIT - 1),
        b"{" + b'"a":[],' * 100_000 + b'"b":1}',
        b'{"a":"' + rb"\n" * 400_000 + b'"}',
        b'{"a":1}' + b" " * 800_000,
        b" " * 800_000 + b"{}",
    ],
    ids=["nested", "many values", "many escapes", "object and spaces", "spaces and object"],
)
def test_large_and_hostile_bodies_are_passed_on_as_they_are(body: bytes, gateway: Gateway, graph: Upstream) -> None:
    assert gateway.post(body).body == GRAPH_ANSWER
    assert graph.seen[0].body == body


def test_scene_behind_many_items(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "500")
    gateway.post({"items": [f"item_{number:06d}" for number in range(5000)], **REQUEST})
    assert pools.seen[0].path == "/pools/home_feed"
    assert len(json.loads(graph.seen[0].body)["items"]) == 5000


@pytest.mark.parametrize("path", ["/v1/models/recgraph:predict", "/v1/recommend?x=1"])
def test_other_paths_of_the_graph(path: str, gateway: Gateway, graph: Upstream) -> None:
    assert gateway.post(path=path).body == GRAPH_ANSWER


@pytest.mark.parametrize("path", ["/", "/pools/home_feed", "/v1/recommendX", "/x/v1/recommend", "/stats", "/metrics"])
def test_unknown_path(path: str, gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    for answer in (gateway.post(path=path), gateway.get(path)):
        assert answer.status == 404
        assert answer.json["error"] == "no such path, POST to /v1/recommend"
    assert not graph.seen
    assert not pools.seen


def test_other_methods_are_refused(gateway: Gateway, graph: Upstream) -> None:
    answer = gateway.get(PATH)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.json["path"] == "$"
    assert not graph.seen


def test_request_id_is_made_and_given_to_the_graph(gateway: Gateway, graph: Upstream) -> None:
    answer = gateway.post({"user": {"user_id": "u", "scene": "s"}, "context": {"request_id": "not this"}})
    seen = graph.seen[0]
    made = answer.headers["x-request-id"]
    assert len(made) == 36
    assert seen.headers["x-request-id"] == json.loads(seen.body)["request_id"] == made


def test_request_id_of_the_header_is_kept(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    answer = gateway.post(b" { }", X_Request_Id="mine-1")
    assert answer.headers["x-request-id"] == "mine-1"
    assert graph.seen[0].body == b' {"request_id":"mine-1" }'


@pytest.mark.parametrize("request_id", ["b1", "für-1", 'quo"te\\', "日本"])
def test_request_id_of_the_body_comes_first(
    request_id: str, gateway: Gateway, graph: Upstream, pools: Upstream
) -> None:
    body = {**REQUEST, "request_id": request_id}
    answer = gateway.post(body, X_Request_Id="header")
    assert answer.headers["x-request-id"].encode("latin-1").decode() == request_id
    assert json.loads(graph.seen[0].body) == body
    break_upstream(graph, "500")
    break_upstream(pools, "500")
    assert gateway.post(body, X_Request_Id="header").json["request_id"] == request_id
    assert pools.seen[0].headers["x-request-id"] == request_id


def test_control_characters_never_become_a_header(gateway: Gateway, graph: Upstream) -> None:
    answer = gateway.post({**REQUEST, "request_id": "a\r\nX-Evil: 1"})
    assert "x-evil" not in answer.headers
    assert len(graph.seen[0].headers["x-request-id"]) == 36


@pytest.mark.parametrize("body", [b'{"request_id":7}', b'{"request_id":null}', b'{"a":1', b'{"a":"x', b"[{}]"])
def test_body_that_has_or_cannot_take_a_request_id_is_left_alone(
    body: bytes, gateway: Gateway, graph: Upstream
) -> None:
    gateway.post(body)
    assert graph.seen[0].body == body


def test_clients_headers_of_the_inside_are_dropped(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    answer = gateway.post(X_Recgraph_Last_Resort="graph_error", X_Recgraph_Scene="other")
    assert answer.body == GRAPH_ANSWER
    break_upstream(graph, "500")
    gateway.post({"user": {}}, X_Recgraph_Scene="other")
    assert pools.seen[0].path == "/pools/-"


def test_client_cannot_stretch_the_timeout(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "late")
    answer = gateway.post(X_Envoy_Upstream_Rq_Timeout_Ms="5000", X_Envoy_Max_Retries="5")
    assert answer.body == POOL_ANSWER
    assert len(graph.seen) == 1


def test_access_log_tells_both_answers_with_the_reason(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    break_upstream(graph, "503")
    gateway.post({**REQUEST, "request_id": "logged-1"})
    lines: list[dict[str, Any]] = []
    for _ in range(200):  # the log is written behind the answer
        lines = [json.loads(line) for line in gateway.log.read_text().splitlines() if "logged-1" in line]
        if len(lines) == 2:
            break
        time.sleep(0.05)
    wanted = ("status", "details", "last_resort", "scene")
    assert [tuple(line[name] for name in wanted) for line in lines] == [
        (503, "internal_redirect", "graph_error", "home_feed"),
        (200, "via_upstream", "graph_error", "home_feed"),
    ]


def test_metrics_count_the_last_resort_by_reason(gateway: Gateway, graph: Upstream, pools: Upstream) -> None:
    def count() -> int:
        text = gateway.ask(gateway.metrics_port, "GET", "/metrics").body.decode()
        lines = [line for line in text.splitlines() if "vcluster" in line and "graph_error" in line]
        return sum(int(line.split()[-1]) for line in lines if line.startswith("envoy_vhost_vcluster_upstream_rq{"))

    before = count()
    break_upstream(graph, "500")
    gateway.post()
    assert count() == before + 1
    assert gateway.ask(gateway.metrics_port, "GET", "/livez").status == 200
    assert gateway.ask(gateway.metrics_port, "GET", "/quitquitquit").status == 404


def test_pre_stop_hook_drains(gateway: Gateway, graph: Upstream, tmp_path: Path) -> None:
    """Not ready any more, still answering, and every client asked to leave."""
    values = {"drainSeconds": 0, "ports": {"admin": gateway.admin_port}}
    deployment = helm_template(values, tmp_path, "gateway-deployment.yaml")
    hook = deployment["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert "connection" not in gateway.post().headers
    try:
        subprocess.run(hook, check=True)
        for _ in range(200):  # with no time to sleep, the hook may be faster than what it asked for
            if gateway.get("/healthz").status == 503:
                break
            time.sleep(0.01)
        assert gateway.get("/healthz").status == 503
        answer = gateway.post()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
    finally:
        gateway.ask(gateway.admin_port, "POST", "/healthcheck/ok")


def test_rate_limit(upstreams: tuple[Upstream, Upstream], graph: Upstream, pools: Upstream, tmp_path: Path) -> None:
    limit = {"enabled": True, "requestsPerSecond": 1, "burst": 3}
    with running(tmp_path, graph.port, pools.port, rateLimit=limit) as gateway:
        answers = [gateway.post(X_Request_Id="r1") for _ in range(8)]
        assert gateway.get("/healthz").status == 200
    refused = [answer for answer in answers if answer.status == 429]
    assert [answer.status for answer in answers[:3]] == [200] * 3
    assert 1 <= len(refused) <= 5
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json["error"] == "more requests than this gateway takes, try again"
    assert not pools.seen


def test_rate_limit_counts_a_request_once(graph: Upstream, pools: Upstream, tmp_path: Path) -> None:
    """The way to the last resort runs through the filters a second time."""
    break_upstream(graph, "500")
    limit = {"enabled": True, "requestsPerSecond": 1, "burst": 4}
    with running(tmp_path, graph.port, pools.port, rateLimit=limit) as gateway:
        assert [gateway.post().status for _ in range(4)] == [200] * 4


def test_real_pool_server_behind_the_real_gateway(graph: Upstream, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "pools.json").write_text(json.dumps({"für dich": {"hot": [["ü1", 1.0]], "fresh": []}}))
    (tmp_path / "scenes.yaml").write_text("scenes: {für dich: {}, home_feed: {}}")
    port = free_ports(1)[0]
    environment = {
        **os.environ,
        "RECGRAPH_CACHES_REDIS": redis_url,
        "RECGRAPH_BUNDLE": str(tmp_path),
        "RECGRAPH_SCENES": str(tmp_path / "scenes.yaml"),
    }
    command = [sys.executable, "-P", "-m", "recgraph.pool_server", "--host", "127.0.0.1", "--port", str(port)]
    break_upstream(graph, "500")
    with running(tmp_path, graph.port, port, pools={**address(port), "timeoutMs": 2000}) as gateway:
        request = {"request_id": "ü-1", "user": {"user_id": "u", "scene": "für dich"}}
        assert gateway.post(request).json["degraded"][0]["action"] == "fixed_pool"
        process = subprocess.Popen(command, env=environment)
        try:
            wait_until_answering(gateway, port, process)
            answer = gateway.post(request)
        finally:
            process.terminate()
            assert process.wait(10) in (0, -15)
    assert answer.json == {
        "request_id": "ü-1",
        "items": [{"item_id": "ü1", "score": 0.0, "source": "hot"}],
        "degraded": [{"stage": "gateway", "reason": "graph_error", "action": "hot_pool"}],
        "bundle": None,
        "arm": {},
    }


def wait_until_answering(gateway: Gateway, port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1000):
        assert process.poll() is None
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0 and gateway.ask(port, "GET", "/readyz").status == 200:
                return
        time.sleep(0.02)
    pytest.fail("the pool server does not answer")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
users = st.fixed_dictionaries({"scene": texts}, optional={"user_id": texts, "x": json_values, "request_id": texts})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    user=users,
    before=st.dictionaries(texts, json_values, max_size=3),
    after=st.dictionaries(texts, json_values, max_size=3),
    escaped=st.booleans(),
)
def test_scene_and_body_survive_any_json(
    user: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
    escaped: bool,
    gateway: Gateway,
    graph: Upstream,
    pools: Upstream,
) -> None:
    body = {**before, "user": user, **after}
    break_upstream(graph, "500")
    gateway.post(json.dumps(body, ensure_ascii=escaped).encode())
    assert json.loads(graph.seen[-1].body) == {"request_id": graph.seen[-1].headers["x-request-id"], **body}
    scene = body["user"].get("scene") if isinstance(body["user"], dict) else None
    usable = (
        isinstance(scene, str) and 1 <= len(scene.encode()) <= 256 and not any(c < " " or c == "\x7f" for c in scene)
    )
    assert unquote(pools.seen[-1].path) == f"/pools/{scene if usable else '-'}"
