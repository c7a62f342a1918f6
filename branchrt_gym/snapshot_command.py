"""The command `branchrt snapshot`: are an environment's snapshots exact, and what do they cost?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.terminal import FAILED, console, errors, progress

__all__ = ["snapshot"]

# Packages that Gymnasium does not know of until they are imported, and our extras for them.
PACKAGES = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid")}


def snapshot(
    env_id: Annotated[str, typer.Argument(help='An id of Gymnasium, or "module:id".')],
    points: Annotated[int, typer.Option(min=1, help="Points to copy the environment at.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps to follow each copy.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the environment and its actions.")] = 0,
    provider: Annotated[
        str | None,
        typer.Option(help="own, mujoco, atari, structural or replay.  [default: first that fits]"),
    ] = None,
    kwargs: Annotated[
        str, typer.Option(help="The constructor's arguments, in JSON: '{\"frameskip\": 1}'.")
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare copies of an environment with one that nobody touched, and time them."""
    import gymnasium

    from branchrt_gym.wrappers.verify import verify

    with errors():
        options = _options(kwargs)
        _register(env_id)
        try:
            gymnasium.make(env_id, **options).close()
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            raise ValueError(f"`{env_id}` cannot be made: {error}") from error
        with progress() as show:
            result = verify(
                lambda: gymnasium.make(env_id, **options),
                points=points,
                steps=steps,
                seed=seed,
                provider=provider,
                progress=lambda done, total: show(env_id, done, total),
            )
    if as_json:
        typer.echo(json.dumps(asdict(result) | {"exact": result.exact}, indent=2))
    else:
        screen = console()
        screen.print(_table(env_id, result))
        for found in result.differences[:10]:
            screen.print(f"[bold red]difference:[/] {escape(found)}", soft_wrap=True)
        if len(result.differences) > 10:
            screen.print(f"… and at {len(result.differences) - 10} more points")
    if not result.exact:
        raise typer.Exit(FAILED)


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"`--kwargs` is {text!r}, which is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"`--kwargs` is {text!r}; expected an object of arguments by name")
    return options


def _register(env_id: str) -> None:
    """Imports the package that registers an id, where its name tells which."""
    from importlib import import_module

    from branchrt_gym.errors import MissingExtraError

    for prefix, (module, extra) in PACKAGES.items():
        if env_id.startswith(prefix):
            try:
                import_module(module)
            except ImportError as error:
                raise MissingExtraError(extra, module) from error


def _table(env_id: str, result: Any) -> Table:
    exact = len(result.points) - len(result.differences)
    table = Table("", "", show_header=False, title=f"Snapshots of {escape(env_id)}")
    table.add_row("provider", result.provider)
    table.add_row(
        "exact", f"{exact} of {len(result.points)} points, each followed {result.steps} steps"
    )
    table.add_row("a fork", f"{result.fork_us:,.1f} µs")
    table.add_row("a snapshot", f"{result.snapshot_us:,.1f} µs")
    table.add_row("a restore", f"{result.restore_us:,.1f} µs")
    size = "cannot be pickled" if result.snapshot_bytes is None else f"{result.snapshot_bytes:,}"
    table.add_row("bytes, pickled", size)
    table.add_row("a step", f"{result.step_us:,.1f} µs")
    deepcopy = "" if result.deepcopy_us is None else f"{result.deepcopy_us:,.1f} µs, "
    table.add_row("copy.deepcopy", escape(f"{deepcopy}{result.deepcopy}"))
    return table
