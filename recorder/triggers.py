"""Which findings become triggers: once per origin, and not for what merely follows from an earlier one."""

from __future__ import annotations

from recorder.schema import Phase, Role, Trigger

_LASTING = frozenset(role.value for role in (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.GRADIENT))
"""What stays bad after the batch in which it went bad."""


class TriggerGate:
    """Admits triggers. With `always`, every finding is admitted: the run is stopped at each."""

    def __init__(self, always: bool) -> None:
        self._always = always
        self._places: set[tuple[str | None, ...]] = set()
        self._tripped_batch: int | None = None
        self._weights_bad = False
        self._weights_bad_before = False

    def begin_batch(self) -> None:
        self._weights_bad_before = self._weights_bad
        self._weights_bad = False

    def admits(self, trigger: Trigger, *, is_origin: bool) -> bool:
        """Whether this is news.

        Bad weights, state and accumulated gradients are none when they were bad in the batch before, or when
        that batch had a trigger: they are its consequence. In a batch with bad weights nothing else is news; in
        one with a trigger, only another origin of the forward phase.
        """
        if self._always:
            return True
        lasting = trigger.role in _LASTING
        known = self._is_known(trigger, is_origin, lasting)
        self._weights_bad |= lasting
        if known:
            if _place(trigger) in self._places:  # it is back, and so is what follows from it
                self._tripped_batch = trigger.batch
            return False
        self._places.add(_place(trigger))
        self._tripped_batch = trigger.batch
        return True

    def _is_known(self, trigger: Trigger, is_origin: bool, lasting: bool) -> bool:
        if _place(trigger) in self._places or self._weights_bad:
            return True
        if lasting and (self._weights_bad_before or self._follows_a_trigger(trigger)):
            return True
        return self._tripped_batch == trigger.batch and not (is_origin and trigger.phase == Phase.FORWARD.value)

    def _follows_a_trigger(self, trigger: Trigger) -> bool:
        return self._tripped_batch is not None and trigger.batch == self._tripped_batch + 1


def _place(trigger: Trigger) -> tuple[str | None, ...]:
    return (trigger.phase, trigger.module, trigger.role, trigger.key)
