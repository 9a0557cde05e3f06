"""The Recorder: all wiring, batch and step counting, and what happens when something is found."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from recorder import process_end
from recorder.backward import BackwardAssembly
from recorder.batch_facts import BatchFacts, learning_rate_of, requires_grad
from recorder.blind import BlindSpots
from recorder.capture import Capture
from recorder.clock import Clock
from recorder.compiled import is_compiled, recompile
from recorder.errors import BatchLimitReached, RecorderError
from recorder.frames import OpenFrame
from recorder.front_end import FrontEnd
from recorder.gradient_capture import GradientCapture
from recorder.guard import Guard
from recorder.hooks import HookedModel, Scope
from recorder.judge import Judge
from recorder.meter import Meter
from recorder.modules import unwrapped
from recorder.policy import Policy
from recorder.records import Frame, TensorRecord
from recorder.response import Response
from recorder.ring import Ring
from recorder.run_directory import (
    RUN_INFO_FILE,
    make_run_directory,
    rank_and_world_size,
    utc_now,
    versions,
    write_atomically,
)
from recorder.scaling import LossScaling
from recorder.schema import Overhead, Phase, RunInfo, Trigger, TriggerKind
from recorder.settings import (
    DEFAULT_RING_RECORDS,
    BatchChoice,
    OverflowAction,
    Settings,
    check_model,
    check_optimizer,
    check_scaler,
    checked_settings,
    warn_of_unmatched,
)
from recorder.silent import SilentRules
from recorder.spill import Spiller, place_of
from recorder.step_capture import StepCapture
from recorder.stream import FrameStream


class Recorder:
    """Records the numerics of a model's forward calls, from construction until `close`.

    Args:
        model: the module to watch; wrappers (DDP, FSDP, compile) are looked through.
        log_dir: where the run's directory is made.
        optimizer: one optimizer or several; found by itself when it holds the model's parameters.
        scaler: the gradient scaler of the run, if there is one.
        run_id: name of the run's directory; made up when None.
        trace_batches: batch numbers, a range or a predicate; each such batch gets a dump of its own.
        abort_after_batch: raise BatchLimitReached when the forward of this batch returns.
        on_overflow: "raise" (dump, then OverflowDetected), "warn" (dump once per origin), "ignore", or a
            callable that is given the Trigger after the dump.
        phases: which of "forward", "backward", "optimizer" are recorded.
        stats: "minmax", or "full" for mean, rms, zeros and subnormals too.
        include, exclude: shell wildcards over module paths.
        expected: legitimate non-finite values, as MODULE[:ROLE[:KEY[:KIND]]].
        check: "frame" judges each frame as it ends; "batch" reads an accelerator once per batch; "auto" is
            frame on the CPU and batch on an accelerator.
        ring_records: capacity of the ring.

    Attributes:
        run_dir: the run's directory. dumps: paths of the dumps written so far. batch, step: where the run is.

    Raises:
        ConfigurationError: an argument is wrong; the message begins with its name.
    """

    def __init__(
        self,
        model: nn.Module,
        log_dir: str | os.PathLike[str] = "runs",
        *,
        optimizer: Any = None,
        scaler: Any = None,
        run_id: str | None = None,
        trace_batches: BatchChoice = (),
        abort_after_batch: int | None = None,
        on_overflow: OverflowAction = "raise",
        phases: Sequence[str] = ("forward", "backward", "optimizer"),
        stats: str = "minmax",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        expected: Sequence[str] = (),
        check: str = "auto",
        ring_records: int = DEFAULT_RING_RECORDS,
    ) -> None:
        check_model(model)
        check_optimizer(optimizer, model)
        check_scaler(scaler)
        settings = checked_settings(
            log_dir, run_id, trace_batches, abort_after_batch, on_overflow, phases, stats, include, exclude,
            expected, check, ring_records,
        )  # fmt: skip
        self._start(model, settings, FrontEnd(), optimizer, scaler)

    @classmethod
    def with_settings(cls, model: nn.Module, settings: Settings, front_end: FrontEnd) -> Recorder:
        """A recorder that speaks through another front end, such as the drop-in's."""
        recorder = cls.__new__(cls)
        recorder._start(check_model(model), settings, front_end, None, None)
        return recorder

    def _start(self, model: nn.Module, settings: Settings, front_end: FrontEnd, optimizer: Any, scaler: Any) -> None:
        self._settings = settings
        self._front_end = front_end
        self._closed = False
        self._start_time = utc_now()
        self._rank, self._world_size = rank_and_world_size()
        self.run_dir, self._run_id = make_run_directory(settings.log_dir, settings.run_id)
        self._clock = Clock()
        self._clock.recording = not settings.only_traced_batches
        self._hooked = HookedModel(unwrapped(model), Scope(settings.include, settings.exclude))
        self._meter = Meter(full=settings.full, defer=settings.check == "batch")
        self._policy = Policy(settings.expected, self._meter.layouts.finfo)
        self._judge = Judge(self._policy)
        self._facts = BatchFacts(optimizer)
        self._ring = Ring.create(self.run_dir, run_id=self._run_id, rank=self._rank, capacity=settings.ring_records)
        self._spiller = Spiller(self.run_dir, self._rank, self._ring, self._info)
        self._guard = Guard(self._clock, self.failed)
        self._scaling = LossScaling(scaler)
        assembly = BackwardAssembly(self._clock, self._excuse_gradient)
        self._silent = SilentRules(self._meter.layouts.finfo)
        self._stream = FrameStream(self._meter, self._judge, assembly, self._write)
        self._blind = BlindSpots(self._hooked, self._silent.add)
        self._response = Response(
            settings.on_overflow, self._guard, self._stream, self._spiller, self._scaling, front_end,
            lambda: self._capture,
        )  # fmt: skip
        self._gradients = self._gradient_capture(assembly) if Phase.BACKWARD in settings.phases else None
        self._capture = Capture(
            self._clock, self._guard, self._meter, self._stream, self, self._gradients, settings.check
        )
        self._compiled = is_compiled(model)
        self._hooked.attach(self._capture)
        warn_of_unmatched(settings, [path for path, _, _ in self._hooked.items()])
        if self._compiled:
            self._prepare_compiled()
        self._steps = StepCapture(
            self._clock, self._guard, self._meter, self._stream, self._hooked, self._silent,
            self._stepping, self._stepped,
            Phase.OPTIMIZER in settings.phases,
        )  # fmt: skip
        self._write_info()
        process_end.watch(self)

    def _gradient_capture(self, assembly: BackwardAssembly) -> GradientCapture:
        act, uncalled = self.act_on_findings, self._blind.got_gradient
        return GradientCapture(self._clock, self._guard, self._meter, self._stream, assembly, act, uncalled)

    # what a user calls

    @property
    def dumps(self) -> list[Path]:
        """Paths of the dumps written so far."""
        return list(self._spiller.dumps)

    @property
    def batch(self) -> int:
        """Number of the current batch; 0 before the first."""
        return self._clock.current_batch

    @property
    def step(self) -> int:
        """Optimizer steps completed."""
        return self._clock.step

    def spill(self) -> Path:
        """Write what the ring holds as a dump now; its path."""
        self._refuse_if_closed()
        with self._clock.lock:
            self._stream.flush()
            dump = self._spiller.spill(Trigger(TriggerKind.MANUAL.value, self.batch, self.step))
        if dump is None:
            raise RecorderError(f"{self.run_dir}: the dump could not be written; see the warning before this")
        return dump

    def close(self) -> None:
        """Detach from the model, finish what is under way and close the ring. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._guard.run(self._finish_batch)
        finally:
            self._guard.live = False
            self._detach()
            self._let_go()

    def __enter__(self) -> Recorder:
        self._refuse_if_closed()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.spill_for_exception(error)
        except Exception as own:
            self.failed(own)
        try:
            self.close()
        except Exception as own:  # a finding that was still waiting: it must not take the place of the user's error
            warnings.warn(str(own), RuntimeWarning, stacklevel=2)

    # what the end of the process calls

    def spill_for_exception(self, error: BaseException) -> None:
        """Dump for an exception that is not the recorder's own; the innermost open frame is where it was raised."""
        if self._closed or isinstance(error, (RecorderError, SystemExit, GeneratorExit)):
            return
        with self._clock.lock:
            self._stream.flush()
            frames = self._capture.emit_open_frames()
            self._response.end_forward()
            trigger = Trigger(TriggerKind.EXCEPTION.value, self.batch, self.step)
            if frames:
                trigger = place_of(TriggerKind.EXCEPTION, list(frames.values())[-1])
            self._spiller.spill(trigger)

    def spill_for_signal(self) -> None:
        """Dump before the process dies of a signal. What waits on a device is read unless that is under way already."""
        if not self._guard.is_inside() and self._clock.lock.acquire(blocking=False):
            with contextlib.suppress(Exception):
                self._stream.flush()
        self._spiller.spill(Trigger(TriggerKind.SIGNAL.value, self.batch, self.step))

    def abandon(self) -> None:
        """Record nothing more: this is a forked child, and the run is its parent's."""
        self._guard.live = False
        self._closed = True

    # what the hooks call

    def begin_batch(self, training: bool) -> None:
        """A forward call of the root begins."""
        clock, settings = self._clock, self._settings
        self._finish_batch()
        clock.batch += 1
        self._scaling.begin_batch()
        self._facts.begin_batch(clock.batch, clock.step, training, self._scaling.scale)
        traced = self._guard.call_user(lambda: settings.is_traced(clock.batch))
        clock.recording = traced or not settings.only_traced_batches
        changed = self._hooked.refresh()
        if changed:
            self._ring.set_info(self._info())
        self._hooked.begin_batch()
        self._blind.begin_batch()
        if self._gradients is not None:
            self._gradients.watch_parameters(self._hooked.items(), afresh=changed)
        self._meter.forget()
        self._judge.begin_batch()
        self._response.begin_batch(detecting=settings.detect_in_traced_batches or not traced)
        if traced:
            self._spiller.begin_trace(Trigger(TriggerKind.TRACED_BATCH.value, clock.batch, clock.step))
        if clock.recording and settings.scan_weights:
            self._capture.scan_weights(self._hooked.items(), training)
            self.act_on_findings()

    def entered(self, owner: OpenFrame) -> None:
        """A module was called in one of the first batches."""
        self._blind.entered(owner)

    def end_forward(self, owner: OpenFrame, output: Any) -> None:
        """A forward call of the root has returned."""
        self._blind.end_forward(self._clock.batch)
        if self._gradients is not None:
            self._gradients.end_forward(self._hooked.items())
        if self._clock.recording and self._settings.scan_weights:
            self._capture.emit_uncalled(self._hooked.items(), owner)
        self._stream.flush()
        self.act_on_findings()
        self._facts.end_forward(output)
        self._response.end_forward()
        if self._settings.phases == (Phase.FORWARD,) or not requires_grad(output):
            self._end_trace()
        limit = self._settings.abort_after_batch
        if limit is not None and self._clock.batch >= limit:
            self._end_trace()
            raise BatchLimitReached(self._front_end.batch_limit(self._clock.batch + 1, limit, self.run_dir))

    def act_on_findings(self) -> None:
        """Answer what the judge has found."""
        self._response.act()

    def failed(self, error: Exception) -> None:
        """A hook of ours went wrong: stop watching, say so once, and let the run go on."""
        warnings.warn(
            f"Overflight stopped recording in batch {self.batch}: {type(error).__name__}: {error}. "
            "The training goes on; please report this.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _end_trace(self) -> None:
        dump = self._spiller.end_trace()
        if dump is not None:
            self._front_end.traced(dump)

    def _finish_batch(self) -> None:
        """All of a batch is over: its forward, its backward and its step."""
        self._stream.flush()
        self.act_on_findings()
        if self._gradients is not None:
            self._gradients.begin_batch()
        skipped, endless = self._scaling.end_batch()
        if skipped:
            self._facts.note(skipped=True, loss_scale=self._scaling.scale)
        self._silent.end_batch()
        self._end_trace()
        self._facts.end_batch()
        if endless is not None:
            self._response.trip(endless)

    def _excuse_gradient(self, module: str, record: TensorRecord) -> bool:
        """A bad gradient is expected while a gradient scaler guards the steps, or where the user lists it."""
        rule = self._policy.listed(module, record)
        if rule is None and self._scaling.is_active():
            rule = "scaled gradient"
        if rule is not None:
            self._judge.count_suppressed(rule, module, record)
        return rule is not None

    def _write(self, frames: list[Frame]) -> None:
        self._spiller.append(frames)
        for frame in frames:
            self._silent.see(frame)
            if self._settings.full:
                self._facts.see(frame)

    def _stepping(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step begins; whether it will do nothing."""
        self._blind.stepped(self._clock.batch)
        unguarded = self._scaling.begin_step(optimizer)
        if unguarded is not None:
            self._response.trip(unguarded)
        return self._scaling.skips_inside(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._facts.note(skipped=False, learning_rate=learning_rate_of(optimizer))
        if self._stream.has_findings:
            self.act_on_findings()

    def _prepare_compiled(self) -> None:
        recompile()
        if self._gradients is not None:
            warnings.warn(
                "Overflight sees no gradients at the inputs and outputs of modules inside compiled code, only those "
                "of parameters. To see them, record a few batches without torch.compile.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _detach(self) -> None:
        self._hooked.detach()
        self._blind.detach()
        if self._compiled:
            recompile()
        self._scaling.forget()
        self._meter.forget()
        self._steps.detach()
        if self._gradients is not None:
            self._gradients.detach()
        process_end.unwatch(self)

    def _let_go(self) -> None:
        """Write the last words. A directory that is gone or full is no reason to fail a run that has ended."""
        ring = self._ring
        for write in (self._spiller.end_trace, self._write_info, lambda: ring.close(clean=True), ring.unlink):
            try:
                write()
            except (OSError, RecorderError) as error:
                warnings.warn(f"Overflight could not finish its run: {error}", RuntimeWarning, stacklevel=3)

    def _write_info(self) -> None:
        info = self._info()
        self._ring.set_info(info)
        write_atomically(self.run_dir / RUN_INFO_FILE, info.to_json())

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RecorderError("this recorder is closed; make a new one to go on recording")

    def _info(self) -> RunInfo:
        """The run's metadata as it is now."""
        seconds, total = self._guard.seconds, max(time.perf_counter() - self._facts.begun, 1e-9)
        return RunInfo(
            run_id=self._run_id,
            rank=self._rank,
            world_size=self._world_size,
            start_time=self._start_time,
            warnings=self._silent.warnings,
            settings=self._settings.as_json(),
            overhead=Overhead(seconds, total, seconds / total),
            versions=versions(),
            modules=self._hooked.table(),
            finfo=dict(self._meter.layouts.finfo),
            batches=self._facts.batches,
            suppressed=self._judge.suppressed,
            evicted=self._ring.evicted,
        )
