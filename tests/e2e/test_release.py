"""The life of a release, in order: install, ask, materialize, explain, upgrade, failures, uninstall."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from e2e_release import CHART, RECGRAPH, ROOT, Release, Reply, failures, run

STAGES = ("recall", "coarse", "fine", "rerank")
USER = "u_007"
"""One of the synthetic world's users; others are cold, and answered too."""
FIRST_ANSWER_S = 240.0
BACK_S = 60.0


def test_install_answers_with_a_full_page_of_its_bundle(release: Release) -> None:
    reply = release.ask(USER, request_id="e2e-first", explain=True)

    assert reply.status == 200
    assert reply.body["request_id"] == "e2e-first"
    assert reply.bundle == "first"
    assert reply.body["degraded"] == []
    items = [item["item_id"] for item in reply.body["items"]]
    assert len(items) == len(set(items)) == 20
    assert [entry["stage"] for entry in reply.body["trace"]] == ["entry", *STAGES]


def test_the_first_answer_came_within_four_minutes(release: Release) -> None:
    if release.installed_s is None:
        pytest.skip("the release was there already")
    assert release.installed_s < FIRST_ANSWER_S


def test_the_server_takes_the_plain_manifests(release: Release) -> None:
    printed = release.kubectl("apply", "--dry-run=server", "-f", str(ROOT / "inferencegraph" / "cluster"))

    assert "inferencegraph.serving.kserve.io/recgraph created (server dry run)" in printed


def test_bad_input_is_a_400_with_its_path(release: Release) -> None:
    reply = release.ask(user=17)  # type: ignore[arg-type]

    assert reply.status == 400
    assert reply.body["path"] == "$.user.user_id"


def test_helm_test_passes(release: Release) -> None:
    printed = run("helm", "test", release.name, "-n", release.namespace, "--timeout", "2m", "--logs", check=False)

    assert re.search(r"Phase:\s+Succeeded", printed), printed
    assert release.pods("app.kubernetes.io/component=test") == []


def test_pods_of_one_arm_fit_into_what_is_promised(release: Release) -> None:
    cpu, memory = 0.0, 0.0
    for pod in release.get("pods")["items"]:
        if pod["status"]["phase"] != "Running" or "deletionTimestamp" in pod["metadata"]:
            continue
        for container in pod["spec"]["containers"]:
            requests = container["resources"]["requests"]
            cpu += _cpu(requests["cpu"])
            memory += _mebibytes(requests["memory"])

    assert cpu <= 0.6
    assert memory <= 3072


def _cpu(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def _mebibytes(quantity: str) -> float:
    return float(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_no_pod_has_a_token_or_a_writable_root(release: Release) -> None:
    for pod in release.get("pods")["items"]:
        if "serving.kserve.io/inferencegraph" in pod["metadata"].get("labels", {}):
            continue  # KServe's own
        assert pod["spec"]["automountServiceAccountToken"] is False, pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, pod["metadata"]["name"]


def test_network_policies_keep_strangers_from_redis_and_the_stages(release: Release) -> None:
    script = (
        "import socket,sys\n"
        "def reached(host, port):\n"
        "    try: socket.create_connection((host, port), 3).close(); return True\n"
        "    except OSError: return False\n"
        f"print([reached(h, p) for h, p in (('{release.name}-redis-features', 6379), "
        f"('{release.fullname}-fine-stable', 80), ('{release.fullname}', 80), ('{release.fullname}-gateway', 80))])"
    )
    overrides = {"spec": {"securityContext": {"runAsUser": 10001}, "automountServiceAccountToken": False}}
    image = release.get("inferenceservice", f"{release.fullname}-entry")["spec"]["predictor"]["containers"][0]["image"]
    printed = release.kubectl(
        "run", "stranger", "--rm", "-i", "--quiet", "--restart=Never", f"--image={image}",
        "--image-pull-policy=IfNotPresent",
        f"--overrides={json.dumps(overrides)}", "--command", "--", "python", "-c", script,
    )  # fmt: skip

    assert "[False, False, False, True]" in printed


def test_every_stage_reads_the_features_that_materialize_wrote(release: Release) -> None:
    before = {stage: _features(release, stage) for stage in STAGES}
    reply = release.ask(USER, request_id="e2e-features")
    assert reply.reasons == []

    for stage in STAGES:
        after = _features(release, stage)
        read = {key: after[key] - before[stage].get(key, 0.0) for key in after}
        views = {view for view, _ in read}
        assert views, stage
        for view in views:
            # A few items were never shown to anyone: they have no statistics yet.
            assert read[view, "missing"] <= (0.2 * read[view, "ok"] if view == "item_stats" else 0), (stage, view)
            assert read[view, "ok"] > 0, (stage, view)
            assert read[view, "stale"] == 0, (stage, view)


def _features(release: Release, stage: str) -> dict[tuple[str, str], float]:
    """Entities that the stage's transformer has read, by view and state."""
    pod = release.pods(f"recgraph.io/stage={stage},recgraph.io/role=transformer")[0]
    found = re.findall(
        r'^recgraph_features_total\{.*state="(\w+)",view="(\w+)"\} (\S+)$', release.metrics(pod), flags=re.MULTILINE
    )
    return {(view, state): float(count) for state, view, count in found}


WITHDRAW = """
import sys, datetime, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
path = "/workspace/offline/item_profile.parquet"
table = pq.read_table(path)
row = table.filter(pc.equal(table["item_id"], sys.argv[1])).slice(0, 1).to_pylist()[0]
now = datetime.datetime.now(datetime.timezone.utc)
row |= {"available": 0, "event_timestamp": now, "created": now}
pq.write_table(pa.concat_tables([table, pa.Table.from_pylist([row], table.schema)]), path)
"""


def test_materialize_by_hand_brings_new_values_into_answers(release: Release) -> None:
    withdrawn = release.ask(USER).body["items"][0]["item_id"]
    _job(
        release,
        f"cronjob/{release.fullname}-train",
        f"withdraw-{int(time.time())}",
        ["python", "-P", "-c", WITHDRAW, withdrawn],
    )
    assert withdrawn in _items(release)

    job = f"by-hand-{int(time.time())}"
    release.kubectl("create", "job", f"--from=cronjob/{release.name}-feast-materialize", job)
    release.kubectl("wait", "--for=condition=Complete", "--timeout=5m", f"job/{job}")

    assert re.search(r"materialize \S+ to \S+ UTC", release.kubectl("logs", f"job/{job}"))
    assert withdrawn not in _items(release)


def _items(release: Release) -> list[str]:
    reply = release.ask(USER)
    assert reply.reasons == []
    return [item["item_id"] for item in reply.body["items"]]


def _job(release: Release, source: str, name: str, command: list[str]) -> None:
    """Runs another command in the pod of a CronJob."""
    made = json.loads(release.kubectl("create", "job", f"--from={source}", name, "--dry-run=client", "-o", "json"))
    made["spec"]["template"]["spec"]["containers"][0]["command"] = command
    made["spec"]["backoffLimit"] = 0
    release.apply(made)
    release.kubectl("wait", "--for=condition=Complete", "--timeout=3m", f"job/{name}")


def test_explain_works_through_the_real_graph(release: Release) -> None:
    reply = release.ask(USER, request_id="e2e-explain", explain=True)
    shown = reply.body["items"][0]["item_id"]

    verdict = _explain(release, "e2e-explain", shown)

    assert verdict["outcome"] == "shown"
    assert {step["stage"] for step in verdict["path"]} >= set(STAGES)


def _explain(release: Release, request: str, item: str) -> dict[str, Any]:
    password = release.kubectl(
        "get", "secret", f"{release.name}-redis-caches", "-o", "go-template={{.data.password | base64decode}}"
    )
    with release.forward(f"service/{release.name}-redis-caches", 6379) as port:
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        release.eventually(
            lambda: "error" not in run(RECGRAPH, "explain", request, item, "--redis", url, check=False).lower(),
            "the record",
            5,
        )
        found: dict[str, Any] = json.loads(run(RECGRAPH, "explain", request, item, "--redis", url, "-o", "json"))
    return found


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["--set", "canaryTrafficPercent=10"], "canaryTrafficPercent"),
        (["--set", "canary.weight=5"], "canary.weight"),
        (["--set", "redis-features.maxmemoryPolicy=allkeys-lru"], "redis-features.maxmemoryPolicy"),
        (["--set", "feast.materialize.schedule=daily"], "schedule"),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(release: Release, arguments: list[str], path: str) -> None:
    before = release.kubectl("get", "isvc,ig", "-o", "jsonpath={.items[*].metadata.resourceVersion}")
    values = str(Path(CHART) / "ci" / "test-values.yaml")

    printed = run(
        "helm", "upgrade", release.name, str(CHART), "-n", release.namespace, "-f", values, *arguments, check=False
    )

    assert path in printed
    assert "Error" in printed
    assert before == release.kubectl("get", "isvc,ig", "-o", "jsonpath={.items[*].metadata.resourceVersion}")


def test_rolling_upgrade_of_every_stage_under_traffic_fails_no_request(release: Release) -> None:
    """Image (where there is a second one), resources and configuration, of every stage at once."""
    before = set(release.pods("app.kubernetes.io/component=stage"))
    tag = os.environ.get("RECGRAPH_E2E_SECOND_TAG")
    image = {"image__tag": tag} if tag else {}
    with release.traffic("rolling upgrade of every stage") as replies:
        time.sleep(3)
        release.upgrade(stageDefaults__resources__limits__memory="1100Mi", settings__logLevel="DEBUG", **image)
        _whole_again(release, replies)

    assert not before & set(release.pods("app.kubernetes.io/component=stage"))
    assert failures(replies) == []
    _degraded_say_why(replies)


@pytest.mark.parametrize("role", ["predictor", "transformer"])
def test_a_killed_pod_of_two_costs_no_answer(release: Release, role: str) -> None:
    stages = [{"name": "entry"}, *({"name": name} for name in STAGES)]
    stages[3] |= {"transformer": {"replicas": 2}, "predictor": {"replicas": 2}}  # type: ignore[dict-item]
    release.upgrade(stages=stages)
    selector = f"recgraph.io/stage=fine,recgraph.io/role={role}"
    victim = release.pods(selector)[0]

    with release.traffic(f"{role} killed") as replies:
        time.sleep(2)
        release.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        release.eventually(lambda: len(release.pods(selector)) == 2, "another pod", 60)
        _whole_again(release, replies)

    assert failures(replies) == []
    _degraded_say_why(replies)


@pytest.mark.parametrize("which", ["features", "caches"])
def test_redis_restarted_costs_no_answer(release: Release, which: str) -> None:
    with release.traffic(f"redis-{which} restarted") as replies:
        time.sleep(2)
        release.kubectl("delete", "pod", f"{release.name}-redis-{which}-0")
        release.kubectl("rollout", "status", f"statefulset/{release.name}-redis-{which}", "--timeout=2m")
        _whole_again(release, replies)

    assert failures(replies) == []
    _degraded_say_why(replies)


def _whole_again(release: Release, replies: list[Reply]) -> None:
    """Full answers come back, under traffic: ten in a row of those that were asked for from now on."""
    begun = time.time()

    def ten_in_a_row() -> bool:
        since = sorted((reply for reply in list(replies) if reply.at > begun), key=lambda reply: reply.at)
        return len(since) >= 10 and not any(reply.reasons or not reply.ok for reply in since[-10:])

    release.eventually(ten_in_a_row, "ten full answers in a row", BACK_S)


def _degraded_say_why(replies: list[Reply]) -> None:
    """Every degraded answer has a stage and a reason."""
    reasons = {reason for reply in replies for reason in reply.reasons}
    assert all(stage and reason for stage, reason in (name.split("/", 1) for name in reasons))


def test_uninstall_leaves_nothing_but_volumes(release: Release) -> None:
    run("helm", "uninstall", release.name, "-n", release.namespace, "--wait")

    kinds = "isvc,ig,deploy,sts,job,cronjob,svc,cm,secret,sa,pdb,netpol,hpa,pod"
    release.eventually(lambda: _left(release, kinds) == [], "everything to go", 120)
    assert _left(release, "pvc")


def _left(release: Release, kinds: str) -> list[str]:
    names = release.kubectl("get", kinds, "-o", "name", "--ignore-not-found").split()
    return [name for name in names if name not in {"configmap/kube-root-ca.crt", "serviceaccount/default"}]
