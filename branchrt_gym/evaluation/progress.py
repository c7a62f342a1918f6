"""How a run is shown while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Show", "live"]

Show = Callable[[int, int, float], None]


@contextmanager
def live(shown: bool, roots: int, target: int | None) -> Iterator[Show]:
    """Yields what is called with the attempts so far, the roots solved and the cost.

    Args:
        shown: Whether to show them, on the standard error stream, or nothing.
        roots: Roots.
        target: Roots to solve, or None.
    """
    if not shown:
        yield lambda attempts, solved, cost: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("solved"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[spent]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("", total=target or roots, spent="")

        def show(attempts: int, solved: int, cost: float) -> None:
            spent = f"{attempts:,} attempts" + (f", cost {cost:,.2f}" if cost else "")
            bar.update(task, completed=solved, spent=spent)

        yield show
