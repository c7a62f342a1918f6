"""Going on with the run that a journal holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from branchrt_gym.evaluation.drive import AttemptRun
from branchrt_gym.evaluation.journal import Journal, JournalError

__all__ = ["go_on"]


def go_on(
    journal: Journal,
    settings: dict[str, Any],
    run: AttemptRun,
    digest: Callable[[int, int], str],
) -> None:
    """Brings a run to where the journal's last one stands if they are the same, or begins it.

    Args:
        journal: The journal, of runs with the same tasks and candidates.
        settings: What makes two runs the same.
        run: The run, which has not begun.
        digest: What attempts are by content.

    Raises:
        JournalError: If the journal is of other tasks or candidates.
    """
    last = journal.settings()
    for name in ("tasks", "candidates"):
        if last and last[name] != settings[name]:
            raise JournalError(
                f"`{journal.path}` is the journal of another run: its {name}, {last[f'num_{name}']}"
                f" of them, are not these {settings[f'num_{name}']}; give another file"
            )
    if last and all(last[name] == settings[name] for name in settings):
        events = list(journal.events())
        if all(event.attempt.digest == digest(*event.attempt[:2]) for event in events):
            run.replay(events)
            return
    run.flight.known = journal.verdicts()
    journal.begin({**settings, "command": sys.orig_argv, "folder": os.getcwd()})
