"""`overflight run SCRIPT`: runs a training script unchanged, with a recorder on the first model that it trains."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from recorder.errors import ConfigurationError, OverflowDetected
from recorder.recorder import Recorder

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; its exit code, or 1 when it raised, 2 for wrong usage."""
    options = _parser().parse_args(argv)
    script = Path(options.script)
    if not script.is_file():
        return _refuse(f"{script}: there is no such script")
    if not os.access(script, os.R_OK):
        return _refuse(f"{script}: the script can't be read")
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(script.resolve().parent)
    return run_recorded(script, FirstTrainedModule(lambda model: _recorder(model, options)))


def run_recorded(script: Path, watch: FirstTrainedModule) -> int:
    """Run a script as `__main__` under `watch`, turn how it ended into an exit code, and say where the run is."""
    try:
        code = _code_of(script, watch)
    except OverflowDetected as overflow:  # its message says where the dump is
        print(overflow, file=sys.stderr)
        return FAILED
    watch.say_what_was_recorded()
    return code


def _code_of(script: Path, watch: FirstTrainedModule) -> int:
    try:
        with watch:
            runpy.run_path(str(script), run_name="__main__")
    except OverflowDetected:
        raise
    except SystemExit as stop:
        return _exit_code(stop.code)
    except ConfigurationError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:
        traceback.print_exception(type(error), error, _from_script_on(error.__traceback__, script))
        return FAILED
    return 0


class FirstTrainedModule:
    """While entered, waits for the first outermost call of a module that is being trained, and records that module.

    It stands in for `nn.Module.__call__`, not in a global hook: the hooks of a call are chosen before they run, so
    a recorder that is attached by a hook would miss the very call that brought it.
    """

    def __init__(self, record: Callable[[nn.Module], Recorder]) -> None:
        self.recorder: Recorder | None = None
        self._record = record
        self._call: Any = nn.Module.__call__

    def __enter__(self) -> FirstTrainedModule:
        original = self._call

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_trained(module) and not torch.compiler.is_compiling():
                self._restore()
                self.recorder = self._record(module)
            return original(module, *args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if self.recorder is not None:
            self.recorder.__exit__(kind, error, trace)

    def say_what_was_recorded(self) -> None:
        if self.recorder is None:
            said = "nothing was recorded: the script called no module with trainable parameters"
        else:
            said = f"the run is in {self.recorder.run_dir}; see it with: overflight view {self.recorder.run_dir}"
        print(f"overflight: {said}", file=sys.stderr)

    def _restore(self) -> None:
        nn.Module.__call__ = self._call  # type: ignore[method-assign]


def batch_numbers(text: str) -> set[int] | range:
    """ "1,3" or "START:STOP[:STEP]" as batch numbers, for argparse."""
    try:
        if ":" in text:
            return range(*(int(part) for part in text.split(":")))
        return {int(part) for part in text.split(",")}
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1,3,5 nor START:STOP[:STEP]") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="overflight", description="Record a script that was not changed.")
    commands = parser.add_subparsers(required=True, metavar="run")
    run = commands.add_parser("run", help="run SCRIPT [ARGS]", description=parser.description)
    run.add_argument("--log-dir", type=Path, default=Path("runs"), help="where the run goes (default: runs)")
    run.add_argument("--on-overflow", choices=("raise", "warn", "ignore"), default="raise", help="default: raise")
    run.add_argument("--trace-batches", type=batch_numbers, default=(), metavar="LIST", help="1,3 or START:STOP[:STEP]")
    run.add_argument("script", metavar="SCRIPT", help="the Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="given to the script as they are")
    return parser


def _recorder(model: nn.Module, options: argparse.Namespace) -> Recorder:
    return Recorder(model, options.log_dir, on_overflow=options.on_overflow, trace_batches=options.trace_batches)


def _is_trained(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())


def _exit_code(code: object) -> int:
    """What Python makes of the argument of `sys.exit`."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return FAILED


def _from_script_on(trace: TracebackType | None, script: Path) -> TracebackType | None:
    """The traceback without the frames that are ours; None when the script has not begun."""
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename != str(script):
        step = step.tb_next
    return step


def _refuse(problem: str) -> int:
    print(f"overflight: {problem}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
