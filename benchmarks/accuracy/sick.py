"""A hundred and more sick runs: one fault in one random place of a run that is healthy without it.

usage: python -m benchmarks.accuracy.sick [--runs 105] [--first-seed 0] [--kind PART]

For each seed a kind of fault, an architecture, a precision, a batch and a place are drawn, and it is made sure,
without the recorder, that the fault strikes there. Then the same run is recorded. The trigger has to name the very
batch, phase, module (and call), role and key, and the verdict on the dump alone has to name the same origin.
Every other run goes on after the trigger; the others stop there. Exit code 1 when one was named wrongly.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.draws import KINDS
from benchmarks.accuracy.faults import Draw, Fault, Harm, Moment, Unsuited
from benchmarks.accuracy.models import ARCHITECTURES, Architecture
from benchmarks.accuracy.survey import Place, Survey
from benchmarks.accuracy.training import Precision, Training, quietly, seed_everything
from recorder import OverflowDetected, Recorder
from recorder.dump import read_dump, to_frame
from recorder.schema import Trigger
from recorder.verdict import diagnose

RUNS = 7 * len(KINDS)
BATCHES = 4
DRAWS = 200


@dataclass(frozen=True)
class Case:
    """One sick run, as drawn from its seed."""

    seed: int
    architecture: Architecture
    precision: Precision
    batch: int
    fault: Fault

    @property
    def stops(self) -> bool:
        """Whether the recorder raises at the trigger, or warns and lets the run go on."""
        return self.seed % 2 == 0


@dataclass(frozen=True)
class Answer:
    """What the recorder said: the place its trigger names, and the verdict's origin, each with its batch."""

    trigger: tuple[int | None, Place] | None
    origin: tuple[int | None, Place] | None

    def is_right(self, case: Case) -> bool:
        return _is_one_of(self.trigger, case) and _is_one_of(self.origin, case)


def draw(seed: int, kind: str = "") -> Case:
    """The case of this seed. Raises Unsuited when nothing fits, which does not happen for the kinds there are."""
    source = random.Random(seed)
    kinds = [one for one in KINDS if kind in one.__name__]
    make = kinds[seed % len(kinds)]
    for _ in range(DRAWS):
        architecture, precision = source.choice(ARCHITECTURES), source.choice(list(Precision))
        batch = source.randrange(BATCHES)
        try:
            fault = make(Draw(source, *_healthy(architecture, precision, seed, batch), batch))
            case = Case(seed, architecture, precision, batch, fault)
            if _strikes(case):
                return case
        except Unsuited:
            continue
    raise Unsuited(f"seed {seed}: no model for {make.__name__}")


def _healthy(architecture: Architecture, precision: Precision, seed: int, batch: int) -> tuple[Survey, Training]:
    """The run without the fault up to the batch, and what happens in that batch."""
    training = Training.of(architecture, precision, seed)
    seed_everything(seed)
    for number in range(batch):
        training.step(number)
    survey = Survey(training.model)
    training.optimizer.zero_grad()
    survey.watch(lambda: training.scaled(training.forward(batch)).backward())
    return survey, training


def _strikes(case: Case) -> bool:
    """Whether the fault does its work in its batch, as a run without the recorder shows."""
    training, moment = _prepare(case)
    harm = Harm(training.model)
    try:
        for number in _numbers(case, moment):
            training.step(number, moment.change_loss)
    except Unsuited:
        raise
    except Exception:  # some models refuse what the fault made: that is how such a run ends
        return moment.struck
    return moment.struck and (harm.done or not case.fault.may_be_a_mask)


def _prepare(case: Case) -> tuple[Training, Moment]:
    training = Training.of(case.architecture, case.precision, case.seed)
    moment = Moment(case.batch)
    case.fault.install(training, moment)
    seed_everything(case.seed)
    return training, moment


def _numbers(case: Case, moment: Moment, further: int = 0) -> Iterator[int]:
    for number in range(case.batch + 1 + further):
        moment.begin_batch(number)
        yield number


def answer(case: Case, directory: Path) -> Answer:
    """Record the run and read what was said."""
    training, moment = _prepare(case)
    triggers: list[Trigger] = []
    action: Any = "raise" if case.stops else triggers.append
    with Recorder(
        training.model, directory, optimizer=training.optimizer, scaler=training.scaler, on_overflow=action
    ) as recorder:
        try:
            for number in _numbers(case, moment, further=1):
                training.step(number, moment.change_loss)
        except OverflowDetected as detected:
            triggers.append(detected.trigger)
        except Exception:
            assert moment.struck
    if not triggers:
        return Answer(None, None)
    return Answer(_place_of(triggers[0].__dict__), _origin(recorder.dumps[0]))


def _origin(dump: Path) -> tuple[int | None, Place] | None:
    read = read_dump(dump)
    origin = diagnose(to_frame(read.table), read.info).origin
    return None if origin is None else _place_of(origin)


def _place_of(said: dict[str, Any]) -> tuple[int | None, Place]:
    return said["batch"], Place(said["phase"], said["module"], said["role"], said["key"], said["call"])


def _is_one_of(said: tuple[int | None, Place] | None, case: Case) -> bool:
    if said is None or said[0] != case.batch:
        return False
    return any(said[1] == right or said[1]._replace(call=None) == right for right in case.fault.right)


def text_of(place: Place) -> str:
    call = f" call {place.call}" if place.call else ""
    return f"{place.phase} {place.module or '(root)'} {place.role} {place.key!r}{call}"


def describe(case: Case, said: Answer) -> str:
    """One line of the table, and what was said where that is wrong."""
    verdict = "ok  " if said.is_right(case) else "MISS"
    where = f"{case.seed:4} {case.architecture.name:12} {case.precision.value} batch {case.batch}"
    text = f"{verdict} {where} {case.fault.what}: {text_of(case.fault.right[0])}"
    if len(case.fault.right) > 1:
        text += f" (one tensor under {len(case.fault.right)} names)"
    if said.is_right(case):
        return text
    for name, place in (("trigger", said.trigger), ("origin ", said.origin)):
        text += f"\n       {name}: " + ("none" if place is None else f"batch {place[0]} {text_of(place[1])}")
    return text


def _run(runs: int, first_seed: int, kind: str) -> int:
    right = 0
    for seed in range(first_seed, first_seed + runs):
        case = draw(seed, kind)
        with tempfile.TemporaryDirectory() as directory:
            said = answer(case, Path(directory))
        right += said.is_right(case)
        print(describe(case, said), flush=True)
    print(f"\n{right} of {runs} sick runs named rightly, by the trigger and by the verdict")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kind", default="", help="part of a fault's name in draws.py")
    arguments = parser.parse_args()
    with quietly():
        right = _run(arguments.runs, arguments.first_seed, arguments.kind)
    return int(right < arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
