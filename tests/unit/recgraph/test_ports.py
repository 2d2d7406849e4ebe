"""Ports that are asked for together are distinct."""

from __future__ import annotations

from recgraph.ports import free_ports


def test_ports_are_distinct() -> None:
    # One by one the system repeats itself about once in two runs of these.
    assert all(len(set(free_ports(50))) == 50 for _ in range(10))
