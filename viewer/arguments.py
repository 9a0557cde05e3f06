"""The arguments of the `overflight` command."""

from __future__ import annotations

import argparse
from pathlib import Path

from recorder import __version__


def parser() -> argparse.ArgumentParser:
    """The parser; which command it was is in `command`."""
    top = argparse.ArgumentParser(prog="overflight", description="A flight recorder for PyTorch numerics.")
    top.add_argument("--version", action="version", version=f"overflight {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_demo(commands)
    commands.add_parser("run", help="record a script that was not changed: run SCRIPT [ARGS]", add_help=False)
    _add_view(commands)
    _add_report(commands)
    _add_diff(commands)
    _add_export(commands)
    recover = commands.add_parser("recover", help="make dumps of the rings that a killed run left behind")
    recover.add_argument("path", type=Path, help="a ring or a run directory")
    listing = commands.add_parser("ls", help="list runs and dumps, the newest last")
    listing.add_argument("paths", type=Path, nargs="*", default=[Path("runs")], help="default: runs")
    return top


_Commands = argparse._SubParsersAction  # the type of add_subparsers(); argparse gives it no public name


def _add_demo(commands: _Commands[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="train a small fp16 transformer into an overflow, then show it")
    demo.add_argument("--no-view", action="store_true", help="stop after the verdict")
    demo.add_argument("--log-dir", type=Path, default=Path("runs"), help="where the dump goes (default: runs)")
    _add_server_options(demo)


def _add_view(commands: _Commands[argparse.ArgumentParser]) -> None:
    view = commands.add_parser("view", help="open dumps or runs in the browser")
    view.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a dump, a run or a directory of runs")
    _add_server_options(view)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=8501, help="default 8501; a free one when 0 or taken")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")


def _add_report(commands: _Commands[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="say in plain words what went wrong, and where")
    report.add_argument("path", type=Path, help="a dump, a ring or a run directory")
    report.add_argument("--format", choices=("text", "hf", "json", "html"), default="text")
    report.add_argument("--exit-code", action="store_true", help="exit with 1 when an overflow was found")
    report.add_argument("-o", "--output", type=Path, metavar="FILE")


def _add_diff(commands: _Commands[argparse.ArgumentParser]) -> None:
    diff = commands.add_parser("diff", help="compare two dumps or runs, record by record")
    diff.add_argument("a", type=Path, metavar="A")
    diff.add_argument("b", type=Path, metavar="B")
    diff.add_argument("--rtol", type=float, default=0.0, help="relative difference that counts as equal (default 0)")
    diff.add_argument("--exit-code", action="store_true", help="exit with 1 when they differ")


def _add_export(commands: _Commands[argparse.ArgumentParser]) -> None:
    export = commands.add_parser("export", help="write the records for other tools")
    export.add_argument("path", type=Path, help="a dump, a ring or a run directory")
    export.add_argument("--format", choices=("csv", "json", "parquet"), required=True)
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: standard output")
