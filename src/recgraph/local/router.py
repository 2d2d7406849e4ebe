"""The local router: the graph's manifest, run by one process on 127.0.0.1 as KServe's router runs it in a pod.

python -P -m recgraph.local.router --graph FILE --port P --service entry=http://127.0.0.1:9001 ...
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from recgraph.errors import DataError
from recgraph.graph.server import Patterns, propagation_patterns, serving
from recgraph.graph.spec import GraphSpec, load_graph

HOST = "127.0.0.1"
log = logging.getLogger(__name__)


async def run(spec: GraphSpec, port: int, patterns: Patterns = ()) -> None:
    """Serves a resolved graph until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(spec, HOST, port, patterns) as bound:
        log.info("the graph answers on http://%s:%d", HOST, bound)
        await stop.wait()
    log.info("stopped")


def parse_services(values: Sequence[str]) -> dict[str, str]:
    """`name=http://host:port` as a mapping. Raises DataError for anything else."""
    services = {}
    for value in values:
        name, _, url = value.partition("=")
        if not name or not url.startswith("http://"):
            raise DataError(f"--service {value!r} is not of the form name=http://host:port")
        services[name] = url.rstrip("/")
    return services


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process; 1 with a message for a graph or an address that cannot be used."""
    parser = argparse.ArgumentParser(prog="recgraph.local.router")
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--service", action="append", default=[], metavar="NAME=URL")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        spec = load_graph(options.graph).spec.resolve(parse_services(options.service))
        uvloop.run(run(spec, options.port, propagation_patterns()))
    except (DataError, OSError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
