"""The demo and the local graph as a user meets them: real Feast, Redis, training, stages and router."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import psutil
import pytest
import redis

from recgraph.ports import free_ports

from .conftest import RECGRAPH, Workspace, run

# The first test waits for the session's demo.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

STEPS = ("world", "sources", "apply", "materialize", "train")
STAGES = ("entry", "recall", "coarse", "fine", "rerank")


def test_the_demo_prints_every_step_and_lists_for_known_and_unknown_users(workspace: Workspace) -> None:
    lines = workspace.demo.stdout.splitlines()
    steps = [line.split()[0] for line in lines if " s  " in line and line.split()[0] in (*STEPS, "up", "bench")]
    assert steps == [*STEPS, "up", "bench"]
    assert sum(line.startswith("request req_") for line in lines) == 2
    assert sum(line.startswith("STAGE") for line in lines) == 2


def test_the_report_has_what_the_issue_names(workspace: Workspace) -> None:
    report = json.loads((workspace.home / "report.json").read_text())
    assert report["data"]["items"] == 1000
    assert set(report["quality"]["ndcg20"]) == {"final", "popular_all", "popular_7d", "popular_3d_live"}
    assert set(report["requests"]) == {"sent", "ok", "degraded", "failed"}
    for stage in ("whole", *STAGES):
        assert report["latency_ms"][stage]["p50"] <= report["latency_ms"][stage]["p99"]
    assert report["requests"]["sent"] == 10
    assert report["requests"]["failed"] == 0


def test_status_shows_every_process_and_the_memory_of_all(workspace: Workspace) -> None:
    workspace.up()
    status = workspace.status()
    assert {one["state"] for one in status["processes"]} == {"up"}
    assert len(status["processes"]) == 12
    assert 100 < status["memory_mib"] <= 4096
    table = workspace.recgraph("local", "status", "--home", str(workspace.home))
    assert table.splitlines()[0].split() == ["NAME", "PID", "PORT", "STATE", "MEMORY", "MiB", "UPTIME", "s"]


def test_ask_gives_a_full_page_and_explain_what_every_stage_did(workspace: Workspace) -> None:
    workspace.up()
    answer = workspace.ask("nobody-knows-me", "--explain")
    assert len({one["item_id"] for one in answer["items"]}) == 20
    assert [entry["stage"] for entry in answer["trace"]] == list(STAGES)
    assert "trace" not in workspace.ask("nobody-knows-me")
    table = workspace.recgraph("ask", "nobody-knows-me", "--explain", "--port", str(workspace.port))
    assert table.startswith("request req_")
    assert "RECEIVED  KEPT  REMOVED" in table


def test_ask_reports_what_the_graph_refuses(workspace: Workspace) -> None:
    workspace.up()
    refused = workspace.recgraph("ask", "u", "--scene", "nowhere", "--port", str(workspace.port), code=1)
    assert "the graph answered 400" in refused
    assert "known are: home_feed" in refused
    nobody = workspace.recgraph("ask", "u", "--port", str(free_ports(1)[0]), code=1)
    assert "is `recgraph local up` done?" in nobody


def test_explain_tells_where_an_item_was_lost(workspace: Workspace) -> None:
    workspace.up()
    answer = workspace.ask("nobody-knows-me", "--explain")
    request, first = answer["request_id"], answer["items"][0]["item_id"]
    home = ["--home", str(workspace.home)]
    assert f"{first} was shown at place 1 of 20" in workspace.recgraph("explain", request, first, *home)
    assert "was never a candidate" in workspace.recgraph("explain", request, "i_none", *home)
    state = json.loads((workspace.home / "run" / "state.json").read_text())
    with redis.Redis.from_url(state["caches_redis"]) as client:
        record = json.loads(client.hget(f"record:{request}", "rerank") or b"{}")
    lost = record["removed"]["below_page"][0]
    verdict = json.loads(workspace.recgraph("explain", request, lost, *home, "-o", "json"))
    assert (verdict["outcome"], verdict["stage"]) == ("removed", "rerank")
    assert "there is no record of request 'nope'" in workspace.recgraph("explain", "nope", first, *home, code=1)


@pytest.mark.parametrize("command", [["bench"], ["bench", "load"]])
def test_bench_drives_the_graph_at_a_constant_rate(workspace: Workspace, command: list[str]) -> None:
    workspace.up()
    options = ["--rate", "10", "--duration", "1", "--warmup", "0.5", "--home", str(workspace.home), "--json"]
    result = json.loads(run(*command, *options).stdout)
    assert result["requests"]["sent"] == 10
    assert result["requests"]["ok"] == 10
    assert set(result["latency_ms"]) == {"whole", *STAGES}
    assert result["memory_mib"] <= 4096


def test_up_is_idempotent_and_refuses_another_port(workspace: Workspace) -> None:
    workspace.up()
    before = workspace.processes()
    assert "the graph answers on" in workspace.up()
    assert workspace.processes() == before
    other = str(free_ports(1)[0])
    refused = workspace.recgraph("local", "up", "--home", str(workspace.home), "--port", other, code=1)
    assert f"is up on port {workspace.port}" in refused


def test_a_port_in_use_is_an_error_before_anything_starts(workspace: Workspace, tmp_path: Path) -> None:
    workspace.up()
    bundle = json.loads((workspace.home / "run" / "state.json").read_text())["bundle"]
    port = str(workspace.port)
    refused = workspace.recgraph("local", "up", "--home", str(tmp_path), "--bundle", bundle, "--port", port, code=1)
    assert f"cannot listen on 127.0.0.1:{port}" in refused
    assert not (tmp_path / "run" / "state.json").exists()
    assert not (tmp_path / "run" / "redis-features").exists()


def test_features_survive_down_and_nothing_else_does(workspace: Workspace) -> None:
    workspace.up()
    processes = workspace.processes()
    size = _features(workspace)
    assert size > 0
    assert "stopped 12 processes" in workspace.recgraph("local", "down", "--home", str(workspace.home))
    assert not any(_runs(process) for process in processes)
    assert "was down" in workspace.recgraph("local", "down", "--home", str(workspace.home))
    assert "is down" in workspace.recgraph("local", "status", "--home", str(workspace.home), code=1)
    workspace.up()
    assert _features(workspace) == size
    assert _answered(workspace) >= 3, "the way between the stages is warm when `up` returns"


def _runs(process: psutil.Process) -> bool:
    """False also for what only waits to be reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _answered(workspace: Workspace) -> float:
    """Pages that the graph has answered since its start."""
    state = json.loads((workspace.home / "run" / "state.json").read_text())
    port = next(one["port"] for one in state["processes"] if one["name"] == "rerank-transformer")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("recgraph_requests_total")
    )


def _features(workspace: Workspace) -> int:
    state = json.loads((workspace.home / "run" / "state.json").read_text())
    with redis.Redis.from_url(state["features_redis"]) as client:
        return int(client.dbsize())


def test_a_child_that_cannot_start_ends_up_with_its_log_and_nothing_left(workspace: Workspace, tmp_path: Path) -> None:
    workspace.recgraph("local", "down", "--home", str(workspace.home))
    scenes = tmp_path / "scenes.yaml"
    scenes.write_text("scenes: {home_feed: {page_sise: 3}}")
    up = ["local", "up", "--home", str(workspace.home), "--port", str(workspace.port), "--scenes", str(scenes)]
    failed = workspace.recgraph(*up, code=1)
    assert " ended\n" in failed
    assert "page_sise" in failed
    assert not (workspace.home / "run" / "state.json").exists()
    assert [p for p in psutil.process_iter(["cmdline"]) if str(workspace.port) in (p.info["cmdline"] or [])] == []


def test_in_the_foreground_a_dead_process_ends_everything(workspace: Workspace) -> None:
    workspace.recgraph("local", "down", "--home", str(workspace.home))
    command = ["local", "up", "--home", str(workspace.home), "--port", str(workspace.port), "--foreground"]
    with subprocess.Popen([RECGRAPH, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "the graph answers on" in running.stdout.readline()
        processes = workspace.processes()
        victim = next(one for one in workspace.status()["processes"] if one["name"] == "coarse-predictor")
        os.kill(victim["pid"], signal.SIGKILL)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert f"coarse-predictor (pid {victim['pid']}) ended" in errors
    assert not any(_runs(process) for process in processes)


def test_what_is_left_of_a_broken_graph_is_replaced(workspace: Workspace) -> None:
    workspace.up()
    left = workspace.processes()
    os.kill(next(p for p in left if "recgraph_transformers.fine" in p.cmdline()).pid, signal.SIGKILL)
    status = workspace.status(code=1)
    assert [one["name"] for one in status["processes"] if one["state"] == "dead"] == ["fine-transformer"]
    assert "stopping what is left of an earlier start (11 of 12 processes)" in workspace.up()
    assert {one["state"] for one in workspace.status()["processes"]} == {"up"}
    assert not any(_runs(process) for process in left)


def test_a_second_demo_reuses_what_the_first_made(workspace: Workspace) -> None:
    output = workspace.recgraph(*workspace.demo_options())
    reused = [line.split()[0] for line in output.splitlines() if "reused" in line]
    assert reused == list(STEPS)
    assert "is down" in workspace.recgraph("local", "status", "--home", str(workspace.home), code=1)


def test_ratings_and_items_belong_together() -> None:
    done = run("demo", "--ratings", "x")
    assert done.returncode == 2
    assert "belong together" in done.stderr
