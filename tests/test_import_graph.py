"""Data flows one way: hooks -> frames -> ring -> dump -> query -> views. An allow-list over the import graph.

Every module belongs to a stage; a stage imports itself and the stages it names here, and nothing else of ours.
A new file must be given a place in `STAGES` (or, in a package of one stage, falls under its `.*`).
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

STAGES = {
    "vocabulary": "recorder recorder.schema recorder.records recorder.errors recorder.clock",
    "rules": "recorder.policy recorder.triggers recorder.silent recorder.silent_gradients",
    "storage": (
        "recorder.names recorder.encoding recorder.processes recorder.inspection recorder.ring_file recorder.bulk "
        "recorder.slot_table recorder.scanning recorder.ring recorder.dump recorder.reading"
    ),
    "diagnosis": "recorder.text recorder.verdict recorder.diagnosis recorder.diagnosis.*",
    "measurement": (
        "recorder.compiled recorder.unwrap recorder.stats recorder.layout recorder.device_rows recorder.meter "
        "recorder.walk recorder.weights recorder.modules recorder.scripting"
    ),
    "capture": (
        "recorder.frames recorder.gradients recorder.backward recorder.passed_masks recorder.judge "
        "recorder.stream recorder.guard "
        "recorder.gradient_capture recorder.capture recorder.hook_objects recorder.hooks recorder.optimizer_steps "
        "recorder.stalled recorder.blind recorder.step_capture recorder.scaling recorder.batch_facts"
    ),
    "control": (
        "recorder.settings recorder.run_directory recorder.process_end recorder.spill recorder.front_end "
        "recorder.response recorder.recorder"
    ),
    "entrances": (
        "recorder.debug_underflow_overflow recorder.demo recorder.__main__ recorder.integrations "
        "recorder.integrations.*"
    ),
    "query": (
        "viewer viewer.runs viewer.columns viewer.filters viewer.query viewer.tree viewer.sources viewer.picture "
        "viewer.diff viewer.tables viewer.strict_json"
    ),
    "reports": (
        "viewer.report viewer.report_hf viewer.report_text viewer.export viewer.listing viewer.facts viewer.state"
    ),
    "drawing": (
        "viewer.chart_style viewer.chart_hover viewer.scale viewer.strips viewer.charts viewer.markup "
        "viewer.report_html viewer.canvas viewer.chart_axes"
    ),
    "app": "viewer.app viewer.serve viewer.server viewer.loaded viewer.pages viewer.pages.*",
    "command": "viewer.arguments viewer.cli",
}

RECORDS = {"vocabulary", "storage", "diagnosis"}
ALLOWED = {
    "vocabulary": set(),
    "rules": {"vocabulary"},
    "storage": {"vocabulary"},
    "diagnosis": {"vocabulary"},
    "measurement": {"vocabulary"},
    "capture": {"vocabulary", "rules", "measurement"},
    "control": {"vocabulary", "rules", "storage", "diagnosis", "measurement", "capture"},
    "entrances": {"vocabulary", "rules", "storage", "diagnosis", "measurement", "control"},
    "query": RECORDS,
    "reports": RECORDS | {"query"},
    "drawing": RECORDS | {"query", "reports"},
    "app": RECORDS | {"query", "reports", "drawing"},
    "command": RECORDS | {"query", "reports", "drawing", "app"},
}

NEEDS_NO_TORCH = ("vocabulary", "rules", "storage", "diagnosis", "query", "reports", "drawing", "app", "command")


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for path in sorted([*ROOT.glob("recorder/**/*.py"), *ROOT.glob("viewer/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(path: Path, *, types_too: bool = False) -> set[str]:
    """What a file imports, wherever in it; imports for type checkers only on request."""
    tree = ast.parse(path.read_text())
    for_types = {id(inner) for node in ast.walk(tree) if _is_for_types(node) for inner in ast.walk(node)}
    nodes = [node for node in ast.walk(tree) if types_too or id(node) not in for_types]
    return {name for node in nodes for name in _names(node)}


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield name if name in MODULES else str(node.module)


def stage_of(module: str) -> str:
    found = [stage for stage, names in STAGES.items() if any(fnmatchcase(module, name) for name in names.split())]
    assert len(found) == 1, f"{module} is in {len(found)} stages: give it one place in STAGES"
    return found[0]


GRAPH = {module: imported(path) for module, path in MODULES.items()}
OURS = {module: {name for name in names if name in MODULES} for module, names in GRAPH.items()}


def reached(module: str) -> set[str]:
    """Every name that importing a module imports, over any number of steps."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in GRAPH.get(waiting.pop(), set()) - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def uses(names: set[str], package: str) -> bool:
    return any(name.split(".")[0] == package for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_stage_may(module: str) -> None:
    stage = stage_of(module)
    may = ALLOWED[stage] | {stage}
    assert {name: stage_of(name) for name in OURS[module] if stage_of(name) not in may} == {}


def test_no_two_modules_import_each_other_over_any_number_of_steps() -> None:
    graphlib.TopologicalSorter(OURS).prepare()


def test_stages_flow_one_way() -> None:
    graphlib.TopologicalSorter(ALLOWED).prepare()


def test_every_entry_of_the_table_is_there() -> None:
    names = {name for names in STAGES.values() for name in names.split() if not name.endswith("*")}
    assert names - set(MODULES) == set()


def test_the_recorder_never_imports_the_viewer() -> None:
    for module, path in MODULES.items():
        if module.startswith("recorder"):
            assert not uses(imported(path, types_too=True), "viewer"), module


def test_the_viewer_never_imports_torch() -> None:
    for module, path in MODULES.items():
        if module.startswith("viewer"):
            assert not uses(imported(path, types_too=True), "torch"), module


def test_what_reads_records_never_reaches_torch() -> None:
    pure = [module for module in MODULES if stage_of(module) in NEEDS_NO_TORCH]
    assert [module for module in pure if uses(reached(module), "torch")] == []


def test_only_the_app_and_its_pages_import_streamlit() -> None:
    importing = {module for module in MODULES if uses(GRAPH[module], "streamlit")}
    assert importing
    assert {module for module in importing if module != "viewer.app" and not module.startswith("viewer.pages")} == set()
