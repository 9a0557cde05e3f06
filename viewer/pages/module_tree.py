"""The module tree as a widget: opens and closes in the browser, and tells which module was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from viewer.tables import printable
from viewer.tree import Node

_HERE = Path(__file__).parent
_widget: Any = component(
    "overflight_module_tree",
    html='<div class="tree" role="tree" aria-label="Modules"></div>',
    css=(_HERE / "module_tree.css").read_text(encoding="utf-8"),
    js=(_HERE / "module_tree.js").read_text(encoding="utf-8"),
)


def module_tree(nodes: list[Node], selected: str, expanded: bool, on_select: Callable[[str], None]) -> None:
    """Draw the tree. expanded: whether all of it is open; on_select: is given the module, "" for the whole model."""

    def changed() -> None:
        module = st.session_state["tree"].get("module")
        if module is not None:
            on_select("" if module == selected else module)

    data = {"nodes": [_plain(node) for node in nodes], "selected": selected, "expanded": expanded}
    _widget(data=data, key="tree", on_module_change=changed)


def _plain(node: Node) -> list[Any]:
    """What the browser needs, short, since a model may have thousands."""
    headroom = None if math.isnan(node.headroom) else round(node.headroom, 1)
    label, module_class = printable(node.label), printable(node.module_class)
    return [node.name, label, module_class, node.depth, node.records, node.flagged, headroom, node.origin]
