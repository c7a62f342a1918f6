"""The command line, `branchrt`. What a command needs is imported inside it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from branchrt_gym.errors import BranchRTError, MissingExtraError

if TYPE_CHECKING:
    from branchrt_gym.certify import Certificate, Row

__all__ = ["app"]

app = typer.Typer(
    help="BranchRT: environments that fork and prune, certified against an oracle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Check for equality, then measure.", no_args_is_help=True)
app.add_typer(bench, name="bench")

FAILED, MISUSED = 1, 2  # exit codes: a difference was found, or the call was wrong

Device = Annotated[str, typer.Option(help="Torch device: cpu, cuda, cuda:1, …")]
Roots = Annotated[int, typer.Option(help="Roots, a context each.", min=1)]
Width = Annotated[int, typer.Option(help="Entries of a context.", min=1)]
BeamWidth = Annotated[int, typer.Option("--beam", help="Branches kept per root.", min=1)]
Fanout = Annotated[int, typer.Option(help="Actions of a branch.", min=1)]
Depth = Annotated[int, typer.Option(help="Levels.", min=1)]
Repetitions = Annotated[int, typer.Option(help="Timed repetitions, by turns.", min=1)]
Evidence = Annotated[Path | None, typer.Option(help="Append a row to this JSON lines file.")]


def _console() -> Console:
    # Made at each call, so that output goes where `sys.stdout` points then. A pipe or a log is
    # given wide lines instead of eighty columns.
    width = None if sys.stdout.isatty() else 130
    return Console(width=width)


@contextmanager
def _errors() -> Iterator[None]:
    """Shows errors that a caller can mend as one line, without a traceback."""
    try:
        yield
    except (BranchRTError, ValueError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(MISUSED) from error


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar; yields what a measurement calls with its stage, the stages done, and all."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No thread of its own: it would take a core from what is being measured.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False
    ) as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=escape(stage[:64]), completed=done, total=total)
            bar.refresh()

        yield show


def _version(wanted: bool) -> None:
    if wanted:
        from branchrt_gym import __version__

        typer.echo(f"branchrt-gym {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """BranchRT: environments that fork and prune, certified against an oracle."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the picture.")] = Path("branchrt-demo"),
    roots: Roots = 128,
    width: Width = 262_144,
    beam: BeamWidth = 8,
    fanout: Fanout = 4,
    depth: Depth = 64,
    device: Device = "cpu",
) -> None:
    """Search DeepTree on the shared frontier and by a general batcher, compare, and draw."""
    from branchrt_gym.bench.deep_tree import Sizes, compare_deep_tree
    from branchrt_gym.bench.report import deep_tree_table, notes
    from branchrt_gym.demo import draw

    console = _console()
    repetitions = 3
    with _errors():
        sizes = Sizes(roots, width, beam, fanout, depth)
        with _progress() as progress:
            # All of the batcher's runs together are to take a minute at most.
            comparison = compare_deep_tree(
                sizes,
                repetitions=repetitions,
                device=device,
                seconds=60 / (repetitions + 1),
                patience=30,
                progress=progress,
            )
        console.print(deep_tree_table(comparison))
        for line in notes(comparison):
            console.print(escape(line))
        if not comparison.equal:
            raise typer.Exit(FAILED)
        picture = out / "deep-tree.png"
        try:
            with console.status("Drawing"):
                root = draw(comparison.result, picture)
        except MissingExtraError as error:
            console.print(f"[yellow]No picture:[/] {escape(str(error))}.")
            raise typer.Exit(FAILED) from error
        console.print(f"Picture of root {root}: [bold]{escape(str(picture))}[/]", soft_wrap=True)


@app.command()
def certify(
    env_id: Annotated[str, typer.Argument(help='A registered id, "module:id", or "all".')],
    matrix: Annotated[str, typer.Option(help="Which rows to run.")] = "quick",
    device: Device = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write: .jsonl appends a row; else the whole certificate."),
    ] = None,
) -> None:
    """Compare an environment and the runtime with the environment's oracle, value by value."""
    import branchrt_gym
    from branchrt_gym import certify as certification
    from branchrt_gym.bench.record import provenance

    command = _command("certify", env_id, matrix=matrix, device=device)
    console = _console()
    with _errors():
        module, _, name = env_id.rpartition(":")
        if module:
            _import(module)
        ids = sorted(branchrt_gym.registrations()) if name == "all" else [name]
        if out is not None and out.suffix != ".jsonl" and len(ids) > 1:
            raise ValueError(
                f"`--out` is {str(out)!r} and {len(ids)} environments are certified; expected a "
                ".jsonl file, which takes a row of each"
            )
        before = provenance(command, device)
        certificates = []
        for name in ids:
            with _progress() as show:

                def report(done: int, total: int, row: Row) -> None:
                    show(row.title, done, total)

                made = certification.certify(name, matrix, device=device, progress=report)
            certificates.append(made)
            if out is not None:
                _keep(made, out, before)
        _show_certificates(console, certificates)
    if not all(made.ok for made in certificates):
        raise typer.Exit(FAILED)


def _import(module: str) -> None:
    try:
        import_module(module)
    except ImportError as error:
        raise ValueError(f"`{module}` cannot be imported: {error}") from error


def _keep(made: Certificate, out: Path, before: dict[str, Any]) -> None:
    from branchrt_gym.bench.record import append_row

    if out.suffix != ".jsonl":
        made.save(out)
        return
    row = {
        "bench": "certify",
        **before,
        "environment": made.environment,
        "matrix": made.matrix,
        "contract_hashes": len(made.contract_hash),
        "rows": len(made.rows),
        "compared": made.comparisons,
        "mismatches": made.mismatches,
        "seconds": made.seconds,
        "tiers": made.tiers,
    }
    append_row(out, row)


def _show_certificates(console: Console, certificates: list[Certificate]) -> None:
    from rich.table import Table

    table = Table(title="Certificates", title_justify="left", title_style="bold")
    table.add_column("environment")
    table.add_column("matrix")
    for column in ("rows", "values compared", "mismatches", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("tiers")
    table.add_column("device")
    for made in certificates:
        style = "green" if made.ok else "bold red"
        table.add_row(
            made.environment,
            made.matrix,
            f"{len(made.rows)}",
            f"{made.comparisons:,}",
            f"[{style}]{made.mismatches}[/]",
            f"{made.seconds:.1f}",
            ", ".join(made.tiers),
            made.device,
        )
    console.print(table)
    for made in certificates:
        for result in made.rows:
            if result.difference is not None:
                console.print(
                    f"[bold red]First difference[/] of {escape(made.environment)}, row "
                    f"{result.row.number}: {escape(result.difference.message)}\n"
                    f"  in {escape(result.row.title)}",
                    soft_wrap=True,
                )
                break
        if not made.comparisons:
            console.print(f"[bold red]Nothing was compared[/] for {escape(made.environment)}.")


@app.command()
def envs(
    modules: Annotated[
        list[str] | None, typer.Argument(help="Modules to import first, which register theirs.")
    ] = None,
) -> None:
    """List the registered environments, their spaces and their state contracts."""
    from rich.table import Table

    import branchrt_gym

    with _errors():
        for module in modules or []:
            _import(module)
    console = _console()
    for name, registration in sorted(branchrt_gym.registrations().items()):
        env = registration.env_class(**registration.kwargs)
        console.print(
            f"[bold]{escape(name)}[/]\n"
            f"  action {escape(str(env.single_action_space))}\n"
            f"  observation {escape(str(env.single_observation_space))}\n"
            f"  reward {_dtype(env.reward_dtype)}, contract {env.contract.hash}",
            soft_wrap=True,
            highlight=False,
        )
        table = Table("field", "kind", "shape", "dtype", "stored once per")
        for field_name, field in env.contract.fields.items():
            once = {"shared": "context" if field.per_context else "environment"}
            table.add_row(
                field_name,
                field.kind,
                str(field.shape),
                _dtype(field.dtype),
                once.get(field.kind, "transition" if field.kind == "log" else "branch"),
            )
        console.print(table)


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


@bench.command("deep-tree")
def bench_deep_tree(
    roots: Roots = 128,
    width: Width = 262_144,
    beam: BeamWidth = 8,
    fanout: Fanout = 4,
    depth: Depth = 64,
    repetitions: Repetitions = 7,
    seconds: Annotated[float, typer.Option(help="One run of the batcher, at most.")] = 60.0,
    device: Device = "cpu",
    out: Evidence = None,
) -> None:
    """Search DeepTree on the shared frontier and by a general batcher, by turns."""
    from branchrt_gym.bench.deep_tree import Sizes, compare_deep_tree
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import deep_tree_table, notes

    given = {"roots": roots, "width": width, "beam": beam, "fanout": fanout, "depth": depth}
    command = _command("bench deep-tree", **given, repetitions=repetitions, device=device)
    with _errors():
        before = provenance(command, device)
        with _progress() as progress:
            comparison = compare_deep_tree(
                Sizes(**given),
                repetitions=repetitions,
                device=device,
                seconds=seconds,
                progress=progress,
            )
        if out is not None:
            append_row(out, {**before, **comparison.row()})
    console = _console()
    console.print(deep_tree_table(comparison))
    for line in notes(comparison):
        console.print(escape(line))
    if not comparison.equal:
        raise typer.Exit(FAILED)


@bench.command("step")
def bench_step(
    slots: Annotated[int, typer.Option(help="Slots, forked full.", min=1)] = 4096,
    roots: Annotated[int, typer.Option(help="Roots, and oracles.", min=1)] = 16,
    width: Width = 262_144,
    depth: Annotated[int, typer.Option(help="Steps of an episode.", min=2)] = 64,
    repetitions: Repetitions = 11,
    out: Evidence = None,
) -> None:
    """Step a frontier forked full, and Gymnasium's SyncVectorEnv of oracles, by turns."""
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import step_table
    from branchrt_gym.bench.step import StepSizes, compare_step

    given = {"slots": slots, "roots": roots, "width": width, "depth": depth}
    command = _command("bench step", **given, repetitions=repetitions)
    with _errors():
        before = provenance(command)
        with _progress() as progress:
            comparison = compare_step(
                StepSizes(**given), repetitions=repetitions, progress=progress
            )
        if out is not None:
            append_row(out, {**before, **comparison.row()})
    console = _console()
    console.print(step_table(comparison))
    if comparison.first:
        console.print(f"The results differ, so no rate is given. First: {comparison.first}.")
    if not comparison.equal:
        raise typer.Exit(FAILED)


def _command(name: str, *arguments: object, **options: object) -> str:
    """Writes the command as it could be typed again, in full."""
    words = [f"branchrt {name}", *map(str, arguments)]
    words += [f"--{re.sub('_', '-', option)} {value}" for option, value in options.items()]
    return " ".join(words)


if __name__ == "__main__":
    app()
