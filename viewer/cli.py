"""The `overflight` command.

Exit codes: 0 fine, 2 wrong usage or an output that can't be written, 3 unreadable input, 130 interrupted; with
`--exit-code`, 1 when `report` found an overflow or `diff` a difference. `run` passes its script's code through.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recorder.errors import DumpError, RecorderError
from viewer.arguments import parser
from viewer.runs import Run, open_paths

if TYPE_CHECKING:
    from viewer.report import Report

USAGE, UNREADABLE, INTERRUPTED = 2, 3, 130
_NO_TORCH = "this needs PyTorch: install the torch build that fits your machine, then try again"
_NO_STREAMLIT = 'the viewer is not installed: pip install "overflight[view]"'


class CommandError(Exception):
    """Something that the user can mend, in one sentence; ends the command with exit code 2."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; user errors are one line on standard error."""
    arguments = sys.argv[1:] if argv is None else argv
    _tolerant_output()
    try:
        if arguments[:1] == ["run"]:  # its options belong to the recorder and the script, none to us
            return _run(arguments[1:])
        options = parser().parse_args(arguments)
        return _COMMANDS[options.command](options)
    except DumpError as error:
        return _fail(str(error), UNREADABLE)
    except (CommandError, RecorderError) as error:
        return _fail(str(error), USAGE)
    except BrokenPipeError:
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    _need("torch", _NO_TORCH)
    return _child([sys.executable, "-m", "recorder", "run", *arguments])


def _demo(options: argparse.Namespace) -> int:
    _need("torch", _NO_TORCH)
    if not options.no_view:
        _need("streamlit", _NO_STREAMLIT + ", or use --no-view")
    command = [sys.executable, "-m", "recorder.demo", "--log-dir", str(options.log_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        said = [line for line in child.stdout or () if _said(line)]
    if child.returncode or options.no_view or not said:
        return _exit_code(child.returncode)
    options.paths = [Path(said[-1].strip())]
    return _view(options)


def _view(options: argparse.Namespace) -> int:
    from viewer.serve import serve

    open_paths(options.paths)
    _need("streamlit", _NO_STREAMLIT)
    return _exit_code(serve(options.paths, options.port, browser=not options.no_browser))


def _report(options: argparse.Namespace) -> int:
    from viewer.report import build_report

    run = _newest_run(options.path)
    if options.format == "hf":
        from viewer.report_hf import report_hf

        _put(report_hf(run), options.output)
        return int(options.exit_code and build_report(run).overflowed)
    report = build_report(run)
    _put(_rendered(report, options.format), options.output)
    return int(options.exit_code and report.overflowed)


def _rendered(report: Report, format_name: str) -> str:
    if format_name == "json":
        from viewer.report import report_json
        from viewer.strict_json import dumps

        return dumps(report_json(report), indent=2) + "\n"
    if format_name == "html":
        from viewer.report_html import report_html

        return report_html(report)
    from viewer.report_text import report_text

    return report_text(report)


def _diff(options: argparse.Namespace) -> int:
    from viewer.diff import compare, difference_text
    from viewer.runs import load_run

    a, b = (load_run(_newest_run(path)) for path in (options.a, options.b))
    found = compare(a, b, options.rtol)
    _put(difference_text(found, str(options.a), str(options.b)), None)
    return int(options.exit_code and found.differs)


def _export(options: argparse.Namespace) -> int:
    from viewer.export import export

    run = _newest_run(options.path)
    read = [*(dump.path for dump in run.dumps), *(ring.path for ring in run.rings)]
    if options.output is not None and any(_same_file(options.output, path) for path in read):
        raise CommandError(f"{options.output} is what is being read: choose another name for the export")
    if options.output is None and options.format == "parquet" and sys.stdout.isatty():
        raise CommandError("Parquet is not for a terminal: name a file with -o")
    try:
        export(run, options.format, options.output)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"cannot write {options.output}: {error.strerror or error}") from None
    return 0


def _recover(options: argparse.Namespace) -> int:
    from recorder.reading import recover

    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        dumps = recover(options.path)
    for warning in left:
        print(f"overflight: left as it is: {warning.message}", file=sys.stderr)
    _put("".join(f"{dump}\n" for dump in dumps) or f"{options.path}: no ring that still holds records\n", None)
    return 0


def _ls(options: argparse.Namespace) -> int:
    from viewer.listing import listing

    runs = open_paths(options.paths)
    _put(listing(runs, time.time()), None)
    for run in runs:
        _warn_problems(run)
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo,
    "view": _view,
    "report": _report,
    "diff": _diff,
    "export": _export,
    "recover": _recover,
    "ls": _ls,
}


def _newest_run(path: Path) -> Run:
    """The run at this path; when a directory holds several, the newest, and we say so."""
    runs = [run for run in open_paths([path]) if run.readable]
    if len(runs) > 1:
        print(f"overflight: {len(runs)} runs in {path}; this is the newest, {runs[-1].run_id}", file=sys.stderr)
    _warn_problems(runs[-1])
    return runs[-1]


def _warn_problems(run: Run) -> None:
    for path, sentence in run.problems:
        print(f"overflight: left out {path}: {sentence}", file=sys.stderr)


def _put(text: str, output: Path | None) -> None:
    """Write to a file or standard output; a reader that went away (`| head`) is no error of ours."""
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise CommandError(f"cannot write {output}: {error.strerror or error}") from None
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()


def _said(line: str) -> bool:
    """Pass on a line of a child; True when it says something."""
    _put(line, None)
    return bool(line.strip())


def _child(command: list[str]) -> int:
    """Run a child in our place: on POSIX it becomes this process, so that signals and limits meet it directly."""
    if os.name == "posix":
        os.execv(command[0], command)
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child too, and is its to handle
    try:
        return _exit_code(subprocess.call(command))
    finally:
        signal.signal(signal.SIGINT, previous)


def _exit_code(code: int) -> int:
    """A child's code as a shell gives it: 128 and the signal's number when a signal ended it."""
    return code if code >= 0 else 128 - code


def _need(package: str, sentence: str) -> None:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise CommandError(sentence)


def _same_file(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)


def _tolerant_output() -> None:
    """A terminal that lacks a character shows its escape; it never ends a report."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _drop_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, code: int) -> int:
    print(f"overflight: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
