"""`helm test`: post one request and check the answer. Arguments: URL, stable bundle, canary bundle or "", scene."""

import json
import sys
import urllib.request

url, stable, canary, scene = sys.argv[1:]
request = {"request_id": "helm-test", "user": {"user_id": "helm-test", "scene": scene}, "explain": True}
with urllib.request.urlopen(  # noqa: S310
    urllib.request.Request(url, json.dumps(request).encode(), {"Content-Type": "application/json"}),  # noqa: S310
    timeout=5,
) as response:
    answer = json.load(response)
print(json.dumps(answer))  # noqa: T201
items = [item["item_id"] for item in answer["items"]]
problems = [
    problem
    for problem, wrong in {
        "request_id is not the one that was sent": answer["request_id"] != "helm-test",
        "no items": not items,
        "an item twice": len(set(items)) != len(items),
        f"bundle is neither {stable!r} nor {canary!r}": answer["bundle"]["version"] not in {stable, canary or stable},
        f"degraded: {answer['degraded']}": bool(answer["degraded"]),
    }.items()
    if wrong
]
sys.exit("; ".join(problems) or 0)
