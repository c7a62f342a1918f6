"""The command line, `branchrt`. What a command needs is imported inside it."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from branchrt_gym.bench.commands import bench
from branchrt_gym.bench.terminal import (
    FAILED,
    BeamWidth,
    Depth,
    Device,
    Fanout,
    Roots,
    Width,
    command_line,
    console,
    errors,
    progress,
)
from branchrt_gym.errors import MissingExtraError
from branchrt_gym.evaluation.command import evaluation
from branchrt_gym.evaluation.replay_command import replay
from branchrt_gym.snapshot_command import snapshot

if TYPE_CHECKING:
    from branchrt_gym.certify import Certificate, Row

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(bench, name="bench")
app.add_typer(evaluation, name="eval")
app.add_typer(replay, name="replay")
app.command()(snapshot)


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

    screen = console()
    repetitions = 3
    with errors():
        with progress() as show:
            # All of the batcher's runs together are to take a minute at most.
            comparison = compare_deep_tree(
                Sizes(roots, width, beam, fanout, depth),
                repetitions=repetitions,
                device=device,
                seconds=60 / (repetitions + 1),
                patience=30,
                progress=show,
            )
        screen.print(deep_tree_table(comparison))
        for line in notes(comparison):
            screen.print(escape(line))
        if not comparison.equal:
            raise typer.Exit(FAILED)
        picture = out / "deep-tree.png"
        try:
            with screen.status("Drawing"):
                root = draw(comparison.result, picture)
        except MissingExtraError as error:
            screen.print(f"[yellow]No picture:[/] {escape(str(error))}.")
            raise typer.Exit(FAILED) from error
        screen.print(f"Picture of root {root}: [bold]{escape(str(picture))}[/]", soft_wrap=True)


@app.command()
def certify(
    env_id: Annotated[str, typer.Argument(help='A registered id, "module:id", or "all".')],
    matrix: Annotated[str, typer.Option(help="Which rows to run: quick or full.")] = "quick",
    device: Device = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows to run at a time.  [default: for full one a processor, else 1]"
        ),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            help="The tier of searches that fit it: eager, captured, fused.  "
            "[default: on a GPU all, by turns; else eager]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write: a .jsonl gets a row; else the whole certificate."),
    ] = None,
) -> None:
    """Compare an environment and the runtime with the environment's oracle, value by value."""
    from branchrt_gym import registrations
    from branchrt_gym.bench.record import provenance
    from branchrt_gym.bench.report import certificates_table, differences
    from branchrt_gym.certify import certify as run
    from branchrt_gym.frontier import check_device

    if jobs is None:
        jobs = (os.cpu_count() or 1) if matrix == "full" else 1
    given: dict[str, Any] = {"matrix": matrix, "device": device, "jobs": jobs}
    given |= {} if tier is None else {"tier": tier}
    command = command_line("certify", env_id, **given)
    certificates = []
    screen = console()
    with errors():
        module, _, name = env_id.rpartition(":")
        if module:
            _import(module)
        ids = sorted(registrations()) if name == "all" else [name]
        if out is not None and out.suffix != ".jsonl" and len(ids) > 1:
            raise ValueError(
                f"`--out` is {str(out)!r} for {len(ids)} environments; expected a .jsonl file, "
                "which gets a row of each"
            )
        check_device(device)
        _check_out(out)
        before = provenance(command, device)
        for each in ids:
            with progress() as show:

                def report(done: int, total: int, row: Row) -> None:
                    show(f"{each} {row.title}", done, total)  # noqa: B023 - called in this turn

                certificates.append(run(each, **given, progress=report))
            for line in differences(certificates[-1:]):
                screen.print(escape(line), soft_wrap=True)
            if out is not None:
                _keep(certificates[-1], out, before)
    screen.print(certificates_table(certificates))
    if not all(certificate.ok for certificate in certificates):
        raise typer.Exit(FAILED)


def _import(module: str) -> None:
    if "" not in sys.path:  # as `python -m` does: modules beside the caller are found
        sys.path.insert(0, "")
    try:
        import_module(module)
    except ImportError as error:
        raise ValueError(f"`{module}` cannot be imported: {error}") from error


def _check_out(out: Path | None) -> None:
    """Finds out before the work whether its result can be written."""
    if out is None:
        return
    target = Path(os.path.realpath(out))
    if target.exists() and not target.is_file():
        raise ValueError(f"`--out` is {str(out)!r}, which is no regular file")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"`--out` is {str(out)!r}, in a folder that cannot be written to")


def _keep(certificate: Certificate, out: Path, before: dict[str, Any]) -> None:
    from branchrt_gym.bench.record import append_row

    if out.suffix != ".jsonl":
        certificate.save(out)
        return
    row = {
        "environment": certificate.environment,
        "matrix": certificate.matrix,
        "contract_hashes": certificate.contract_hash,
        "rows": len(certificate.rows),
        "compared": certificate.comparisons,
        "mismatches": certificate.mismatches,
        "seconds": certificate.seconds,
        "tiers": certificate.tiers,
    }
    append_row(out, {"bench": "certify", **before, **row})


@app.command()
def envs(
    modules: Annotated[
        list[str] | None, typer.Argument(help="Modules to import first, which register theirs.")
    ] = None,
) -> None:
    """List the registered environments, their spaces and their state contracts."""
    from branchrt_gym import registrations
    from branchrt_gym.bench.report import contract_table

    with errors():
        for module in modules or []:
            _import(module)
    screen = console()
    for name, registration in sorted(registrations().items()):
        env = registration.env_class(**registration.kwargs)
        spaces = f"action {env.single_action_space}\nobservation {env.single_observation_space}"
        screen.print(f"[bold]{escape(name)}[/]\n{escape(spaces)}", soft_wrap=True, highlight=False)
        screen.print(contract_table(env))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what is installed, which tiers can run here, and what is in the way."""
    from dataclasses import asdict

    from branchrt_gym.bench.report import facts_table, tiers_table
    from branchrt_gym.doctor import look, problems, tiers

    facts = look()
    found = problems(facts)
    if as_json:
        told = {
            "facts": asdict(facts),
            "tiers": [asdict(tier) for tier in tiers(facts)],
            "problems": [asdict(problem) for problem in found],
        }
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        screen = console()
        screen.print(facts_table(facts))
        screen.print(tiers_table(facts))
        for problem in found:
            kind = "[bold red]required:[/]" if problem.required else "[yellow]note:[/]"
            screen.print(
                f"{kind} {escape(problem.what)}.\n    {escape(problem.do)}",
                soft_wrap=True,
                highlight=False,
            )
        if not found:
            screen.print("Nothing is in the way.")
    if any(problem.required for problem in found):
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    app()
