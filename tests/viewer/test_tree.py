"""The module tree: all modules in order, what was seen in and below each, and what a name filter leaves of it."""

from __future__ import annotations

import math
from dataclasses import replace

from recorder.schema import ModuleInfo, Role
from tests.builders import ORIGIN_MODULE, batch_frames, frame, module_table, run_info, table_of, tensor
from viewer.columns import Records
from viewer.tree import Node, tree, visible

RECORDS = Records(table_of(batch_frames(0, growth=20.0)))
NODES = tree(RECORDS, run_info(), ORIGIN_MODULE)
BY_NAME = {node.name: node for node in NODES}


def test_every_module_of_the_model_is_there_after_its_parent() -> None:
    assert {node.name for node in NODES} == {one.name for one in module_table()}
    place = {node.name: i for i, node in enumerate(NODES)}
    assert all(node.parent is None or place[node.parent] < place[node.name] for node in NODES)
    assert [node.name for node in NODES if node.parent == "encoder"] == ["encoder.block"]


def test_a_node_counts_what_is_in_it_and_below() -> None:
    assert BY_NAME[""].records == len(RECORDS)
    below = [node for node in NODES if node.parent == "encoder.block"]
    assert BY_NAME["encoder.block"].records == sum(node.records for node in below)
    assert BY_NAME[""].flagged == sum(
        row["flagged"] and not row["expected"] for row in RECORDS.table.select(["flagged", "expected"]).to_pylist()
    )


def test_the_least_headroom_is_that_of_the_tightest_module_below() -> None:
    measured = [node.headroom for node in NODES if not math.isnan(node.headroom)]
    assert BY_NAME[""].headroom == min(measured)


def test_a_module_that_never_ran_is_there_with_nothing() -> None:
    node = BY_NAME["unused_decoder"]
    assert (node.records, node.flagged, node.module_class) == (0, 0, "Decoder")
    assert math.isnan(node.headroom)


def test_the_origin_is_marked_at_its_own_module_only() -> None:
    assert [node.name for node in NODES if node.origin] == [ORIGIN_MODULE]


def test_modules_that_only_the_records_know_hang_below_the_paths_above_them() -> None:
    records = Records(table_of([frame(0, "adapter.lora.down", [tensor(Role.OUTPUT, "", 1.0)])]))
    nodes = tree(records, replace(run_info(), modules=(ModuleInfo("", "Net", None, 0),)))
    assert [(node.name, node.depth) for node in nodes] == [
        ("", 0),
        ("adapter", 1),
        ("adapter.lora", 2),
        ("adapter.lora.down", 3),
    ]
    assert nodes[-1].module_class == "Linear"


def test_a_dump_without_modules_has_a_root() -> None:
    assert [node.name for node in tree(Records(table_of([])), run_info(modules=()))] == [""]


def names(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def test_a_name_filter_leaves_what_matches_and_the_way_to_it() -> None:
    assert names(visible(NODES, "embed")) == ["", "embed"]
    assert "encoder.block.2.ff" in names(visible(NODES, "*.wo"))
    assert visible(NODES, "no such module") == []
    assert visible(NODES, " ") == NODES
