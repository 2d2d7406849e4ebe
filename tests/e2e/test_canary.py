"""A canary in four acts on a real cluster, under constant traffic. Runs before test_release.py, which uninstalls."""

from __future__ import annotations

import http.client
import json
import math
import re
import shlex
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from e2e_release import CHART, RECGRAPH, Release, Reply, run

from recgraph.release import arms as arms_of

USERS = [f"u_{number}" for number in range(2000)]
IN_FORCE_S = 2.0


def _recgraph(release: Release, *arguments: str, codes: Iterable[int] = (0,)) -> str:
    """`recgraph canary ...` as a release manager types it."""
    act, *rest = arguments
    command = [RECGRAPH, "canary", act, release.name, *rest, "-n", release.namespace, "--chart", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000.0, check=False)
    sys.stdout.write(f"$ {shlex.join(command)}\n{done.stderr}{done.stdout}\n")  # pytest -rP shows the acts
    assert done.returncode in codes, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _entry_exec(release: Release, *arguments: str) -> str:
    pod = release.pods("recgraph.io/stage=entry")[0]
    return release.kubectl("exec", pod, "-c", "kserve-container", "--", "python", "-P", "-m", *arguments)


def _in_force(release: Release) -> arms_of.Arms:
    return arms_of.parse(_entry_exec(release, "recgraph.release", "show"), "recgraph arms show")


def _assigned(release: Release) -> dict[str, str]:
    """The arm of each of USERS, as a running entry says."""
    pod = release.pods("recgraph.io/stage=entry")[0]
    found = {}
    with release.forward(f"pod/{pod}", 8080) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
        for user in USERS:
            body = json.dumps({"user": {"user_id": user, "scene": "home_feed"}})
            connection.request("POST", "/v1/models/entry:predict", body, {"Content-Type": "application/json"})
            envelope = json.loads(connection.getresponse().read())
            (found[user],) = envelope["arm"]["cascade"]
        connection.close()
    return found


def _share_fits(arms: dict[str, str], weight: float) -> None:
    share = Counter(arms.values())["canary"] / len(arms)
    error = math.sqrt(weight * (100.0 - weight)) / 100.0 / math.sqrt(len(arms))
    assert abs(share - weight / 100.0) <= 3.0 * error, f"{share} at {weight} %"


def _arm(reply: Reply) -> str:
    """The arm of an answer of the graph; empty for the gateway's last resort, which has none."""
    return next(iter(reply.body.get("arm", {}).get("cascade", {})), "")


def _user(reply: Reply) -> str:
    return f"u_{int(reply.body['request_id'].removeprefix('e2e-')) % 400}"


def _answered(replies: list[Reply]) -> list[Reply]:
    """Answers of the graph in the order in which they were asked for; every one of the replies must be a 200.

    On a machine that is too slow the gateway's last resort answers now and then, which names no arm.
    """
    assert [reply for reply in replies if reply.status != 200] == []
    reasons = Counter(reason for reply in replies for reason in reply.reasons)
    assert not [reason for reason in reasons if reason.endswith("other_bundle")], reasons
    found = sorted((reply for reply in replies if _arm(reply)), key=lambda reply: reply.at)
    assert len(found) >= 0.9 * len(replies), reasons
    return found


def _moves(replies: list[Reply]) -> list[tuple[str, ...]]:
    """Per user, the arms in order without repetitions."""
    arms: dict[str, list[str]] = defaultdict(list)
    for reply in replies:
        seen = arms[_user(reply)]
        if seen[-1:] != [_arm(reply)]:
            seen.append(_arm(reply))
    return [tuple(one) for one in arms.values()]


def _pods(release: Release, selector: str = "app.kubernetes.io/component=stage") -> dict[str, int]:
    """Restarts by the name of every pod of a stage."""
    found = json.loads(release.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
    }


def _agree(replies: list[Reply], bundles: dict[str, str]) -> None:
    for reply in replies:
        assert reply.bundle == bundles[_arm(reply)], reply.body


@pytest.fixture(scope="module")
def second(release: Release) -> str:
    """A second bundle, trained by the chart's own job, beside the first."""
    release.kubectl("create", "job", f"--from=cronjob/{release.fullname}-train", "second-bundle")
    release.kubectl("wait", "--for=condition=Complete", "--timeout=10m", "job/second-bundle")
    found = re.search(r"train bundle (\S+)", release.kubectl("logs", "job/second-bundle"))
    assert found
    return found.group(1)


def test_a_plan_shows_what_would_be_and_changes_nothing(release: Release, second: str) -> None:
    before = release.kubectl("get", "isvc", "-o", "name")
    printed = _recgraph(release, "start", "--bundle", second, "--weight", "5", "--dry-run")

    assert f"created InferenceService/{release.fullname}-fine-{second}" in printed
    assert "--set-json" in printed
    assert "removed" not in printed
    assert release.kubectl("get", "isvc", "-o", "name") == before


def test_start_5_and_50_under_traffic(release: Release, second: str) -> None:
    bundles = {"stable": "first", "canary": second}
    with release.traffic("canary 0, 5, 50") as replies:
        serving = _pods(release)
        _recgraph(release, "start", "--bundle", second)
        assert serving.items() <= _pods(release).items(), "starting a canary restarts nothing"
        arms_at_0 = _assigned(release)
        both = _pods(release)
        _recgraph(release, "set", "5")
        arms_at_5 = _assigned(release)
        _recgraph(release, "set", "50")
        arms_at_50 = _assigned(release)
        held = _in_force(release)
        assert _pods(release) == both, "a weight restarts nothing"
        time.sleep(15.0)
    answered = _answered(replies)
    _agree(answered, bundles)

    assert set(arms_at_0.values()) == {"stable"}
    _share_fits(arms_at_5, 5.0)
    _share_fits(arms_at_50, 50.0)
    assert {user for user, arm in arms_at_5.items() if arm == "canary"} < {
        user for user, arm in arms_at_50.items() if arm == "canary"
    }
    assert set(_moves(answered)) <= {("stable",), ("canary",), ("stable", "canary")}
    assert arms_at_50 == {user: arms_of.arm_of(held, "cascade", user) for user in USERS}

    told = json.loads(_recgraph(release, "status", "--min-samples", "5", "-o", "json", codes=(0, 1)))
    canary = next(arm for arm in told["comparison"]["arms"] if arm["arm"] == "canary")
    assert canary["bundles"] == [second]
    assert canary["requests"] >= 5
    assert canary["p50"] <= canary["p99"]
    assert _recgraph(release, "status", "--min-samples", "1000000", codes=(2,)).endswith("too few requests\n")


def test_helm_rollback_brings_back_the_weight_before(release: Release, second: str) -> None:
    run("helm", "rollback", release.name, "-n", release.namespace, "--wait", "--timeout", "5m")
    time.sleep(IN_FORCE_S)
    assert _in_force(release).layers["cascade"].weight == 5.0
    _share_fits(_assigned(release), 5.0)
    _recgraph(release, "set", "50")


def test_abort_under_traffic(release: Release, second: str) -> None:
    bundles = {"stable": "first", "canary": second}
    stable = _pods(release, "recgraph.io/bundle=first") | _pods(release, "recgraph.io/stage=entry")
    with release.traffic("canary abort") as replies:
        time.sleep(5.0)
        begun = time.time()
        _recgraph(release, "abort")
        ended = time.time()
        time.sleep(5.0)
    answered = _answered(replies)
    _agree(answered, bundles)
    assert set(_moves(answered)) <= {("stable",), ("canary", "stable"), ("canary",)}
    assert {_arm(reply) for reply in answered if reply.at < begun} == {"stable", "canary"}
    assert {_arm(reply) for reply in answered if reply.at > ended} == {"stable"}
    assert second not in release.kubectl("get", "isvc", "-o", "name")
    assert _pods(release) == stable


def test_a_weight_is_in_force_within_two_seconds_and_promote_under_traffic(release: Release, second: str) -> None:
    with release.traffic("canary 5, 50, promote") as replies:
        _recgraph(release, "start", "--bundle", second, "--weight", "5")
        _entry_exec(release, "recgraph.release", "weight", "50")
        published = time.time()
        time.sleep(15.0)
        held, changed = _in_force(release), time.time()
        serving = _pods(release, f"recgraph.io/bundle={second}") | _pods(release, "recgraph.io/stage=entry")
        _recgraph(release, "promote")
        promoted = time.time()
        time.sleep(10.0)
    answered = _answered(replies)
    assert held.layers["cascade"].weight == 50.0
    window = [reply for reply in answered if published + IN_FORCE_S <= reply.at < changed]
    assert len(window) >= 30
    for reply in window:
        assert _arm(reply) == arms_of.arm_of(held, "cascade", _user(reply)), reply.body
    # What is the canary before is the stable arm afterwards: the bundle tells who moved, and nobody moves back.
    for user in {_user(reply) for reply in answered}:
        mine = [reply.bundle for reply in answered if _user(reply) == user]
        assert mine == sorted(mine, key=("first", second).index), user
    assert {(_arm(reply), reply.bundle) for reply in answered if reply.at > promoted} == {("stable", second)}
    assert release.ask("u_1").bundle == second
    assert serving.items() <= _pods(release).items(), "promoting restarts nothing that serves"
    assert "-first" not in release.kubectl("get", "isvc", "-o", "name")


def test_the_bundle_before_comes_back_as_a_canary_of_one_stage_and_then_of_all(release: Release, second: str) -> None:
    _recgraph(release, "start", "--bundle", "first", "--weight", "100", "--layer", "fine")
    reply = release.ask("u_1", explain=True)
    assert reply.body["bundle"] == {"version": second, "stages": {"fine": "first"}}
    assert reply.body["arm"] == {"cascade": {"stable": True}, "fine": {"canary": True}}
    assert reply.reasons == []
    refused: Any = _recgraph(release, "promote", codes=(2,))
    assert refused == ""

    _recgraph(release, "start", "--bundle", "first")
    _recgraph(release, "promote", "--settle", "5")
    assert release.ask("u_1").bundle == "first"
