"""The tables that the commands print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.deep_tree import Comparison
from branchrt_gym.bench.expand import ExpandTimes
from branchrt_gym.bench.step import StepComparison, StepSizes
from branchrt_gym.bench.step_gpu import DeviceSteps
from branchrt_gym.certify import Certificate
from branchrt_gym.contract import BranchEnv
from branchrt_gym.doctor import OPTIONAL, REQUIRED, Facts, implementations, tiers

__all__ = [
    "certificates_table",
    "contract_table",
    "deep_tree_table",
    "differences",
    "expand_table",
    "facts_table",
    "notes",
    "step_table",
    "tiers_table",
]

NONE = "–"


def deep_tree_table(comparison: Comparison) -> Table:
    """Shows both approaches side by side; no time where their results differ."""
    sizes = comparison.sizes
    table = _table(
        f"DeepTree on {comparison.device}: {sizes.roots:,} roots × {sizes.width:,}, "
        f"beam {sizes.beam}, fan-out {sizes.fanout}, depth {sizes.depth}",
        "shared frontier",
        "general batcher",
        "ratio",
    )
    found = comparison.mismatches
    ran = found is not None
    table.add_row("levels", f"{comparison.levels}", f"{comparison.levels}" if ran else NONE)
    shared, general, ratio = (
        comparison.search_seconds,
        comparison.batcher_seconds,
        comparison.ratio,
    )
    if shared and general and ratio:
        times = _times(ratio.median, bold=True)
        table.add_row("time, median", _ms(shared.median), _ms(general.median), times)
        table.add_row("time, least", _ms(shared.least), _ms(general.least))
    if comparison.whole_seconds:
        table.add_row(f"time of {sizes.depth} levels", _ms(comparison.whole_seconds.median), NONE)
    ours, theirs = comparison.peaks
    more = _times(theirs / ours) if theirs and ours else ""
    table.add_row("peak memory", _bytes(ours), _bytes(theirs), more)
    if shared and general:
        moved = [comparison.transitions / summary.median for summary in (shared, general)]
        table.add_row("transitions per second", *(f"{rate:,.0f}" for rate in moved))
    if comparison.copy_bandwidth and comparison.copy_share:
        bandwidth = f"{comparison.copy_bandwidth.median / 1e9:.1f} GB/s"
        share = f"{comparison.copy_share.median:.0%} of the {bandwidth} measured"
        table.add_row("copy bandwidth used", NONE, share)
    solved = int(comparison.result.solved.sum())
    table.add_row("roots solved", f"{solved} of {sizes.roots}", "the same" if ran else NONE)
    _mismatches(table, found.count if found else None, found.compared if found else 0)
    return table


def step_table(comparison: StepComparison) -> Table:
    """Shows both vector environments side by side; no rate where their results differ."""
    sizes = comparison.sizes
    what, live = f"{sizes.env} stepped, {sizes.steps} steps, restarts included", ""
    if isinstance(sizes, StepSizes):
        what = f"DeepTree stepped, {sizes.steps} steps of an episode, context {sizes.width:,}"
        live = "live "
    table = _table(
        what,
        f"branching, {sizes.slots:,} slots of {sizes.roots:,} roots",
        f"SyncVectorEnv, {sizes.oracles} oracles",
        "ratio",
    )
    ours, theirs, ratio = comparison.branching, comparison.oracles, comparison.ratio
    if ours and theirs and ratio:
        table.add_row(
            f"{live}steps per second, median",
            f"{ours.median:,.0f}",
            f"{theirs.median:,.0f}",
            _times(ratio.median, bold=True),
        )
        table.add_row(f"{live}steps per second, most", f"{ours.most:,.0f}", f"{theirs.most:,.0f}")
    if comparison.oracle:
        table.add_row("one oracle, steps per second", NONE, f"{comparison.oracle.median:,.0f}")
    if comparison.reset_seconds:
        table.add_row(f"reset of {sizes.slots:,} roots", _ms(comparison.reset_seconds.median), NONE)
    _mismatches(table, comparison.mismatches, comparison.compared)
    return table


def device_steps_table(steps: DeviceSteps) -> Table:
    """Shows fused steps of each autoreset mode, and what one costs the host."""
    table = _table(
        f"{steps.sizes.env}: a root in each of {steps.sizes.slots:,} slots",
        "time of a step",
        "live",
        "live steps/s",
    )
    for mode, seconds in (steps.seconds or {}).items():
        live = (steps.live or {})[mode]
        rate = live * steps.sizes.slots / seconds.median
        table.add_row(mode, f"{seconds.median * 1e6:.1f} µs", f"{live:.0%}", f"{rate / 1e9:.1f} G")
    for name, seconds in (steps.host_seconds or {}).items():
        table.add_row(f"host, results {name}", f"{seconds.median * 1e6:.1f} µs", NONE, NONE)
    _mismatches(table, steps.mismatches, steps.compared)
    return table


def expand_table(times: ExpandTimes) -> Table:
    """Shows children per second by form; none where the kernel differs from torch."""
    sizes, bandwidth = times.sizes, times.copy_bandwidth
    table = _table(
        f"DeepTree: {sizes.children:,} children of {sizes.roots:,} roots × {sizes.width:,}, "
        f"{sizes.order}",
        "billion children/s",
        "bytes a child",
        "TB/s",
    )
    forms = {
        "full": "all columns and the lineage",
        "bare": "position and score alone",
        "reads": "random reads of the contexts alone",
        "step": "`branch_step`",
        "torch": "`branch_step` in torch",
    }
    for name, rate in times.rates.items():
        moved = times.bytes_per_child.get(name)
        more = (f"{moved:.0f}", f"{moved * rate / 1e12:.2f}") if moved else ()
        table.add_row(forms[name], f"{rate / 1e9:,.2f}", *more)
    if bandwidth:
        table.add_row("a plain copy", NONE, NONE, f"{bandwidth.interquartile_mean / 1e12:.2f}")
    _mismatches(table, times.mismatches, times.compared)
    return table


def notes(comparison: Comparison) -> list[str]:
    """Returns what the table cannot say: why the batcher ran less, and where results differ."""
    lines = []
    if comparison.shortened:
        lines.append(f"The batcher was cut short: {comparison.shortened}.")
    found = comparison.mismatches
    if found and found.first:
        lines.append(f"The results differ, so no time is given. First: {found.first}.")
    if comparison.ratio:
        low, high = comparison.ratio.low, comparison.ratio.high
        lines.append(f"Ratio of medians, bootstrap 95 % interval: {low:.1f} … {high:.1f}.")
    return lines


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _mismatches(table: Table, count: int | None, compared: int) -> None:
    if count is None:
        table.add_row("mismatches", NONE, "not compared")
        return
    style = "green" if count == 0 else "bold red"
    table.add_row("mismatches", f"[{style}]{count}[/]", f"of {compared:,} compared")


def _times(value: float, bold: bool = False) -> str:
    text = f"{value:.1f}×" if value < 20 else f"{value:.0f}×"
    return f"[bold]{text}[/]" if bold else text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _bytes(count: int | None) -> str:
    if count is None:
        return NONE
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


def certificates_table(certificates: Sequence[Certificate]) -> Table:
    """Shows one line per certificate."""
    table = Table(title="Certificates", title_justify="left", title_style="bold")
    for column in ("environment", "matrix"):
        table.add_column(column)
    for column in ("rows", "values compared", "mismatches", "seconds"):
        table.add_column(column, justify="right")
    for column in ("tiers", "device"):
        table.add_column(column)
    for certificate in certificates:
        style = "green" if certificate.ok else "bold red"
        table.add_row(
            escape(certificate.environment),
            certificate.matrix,
            f"{len(certificate.rows)}",
            f"{certificate.comparisons:,}",
            f"[{style}]{certificate.mismatches}[/]",
            f"{certificate.seconds:.1f}",
            ", ".join(certificate.tiers),
            certificate.device,
        )
    return table


def differences(certificates: Sequence[Certificate]) -> list[str]:
    """Returns the first difference of each certificate that has one, and where it was found."""
    lines = []
    for certificate in certificates:
        name = certificate.environment
        if not certificate.comparisons:
            lines.append(f"Nothing was compared for {name}.")
        for result in certificate.rows:
            if result.difference is not None:
                where = f"{name}, row {result.row.number} ({result.row.title})"
                lines.append(f"First difference of {where}: {result.difference.message}")
                break
    return lines


def contract_table(env: BranchEnv) -> Table:
    """Shows the declared fields of an environment."""
    reward = str(env.reward_dtype).removeprefix("torch.")
    table = Table(caption=f"reward {reward}, contract {env.contract.hash}", caption_justify="left")
    for column in ("field", "kind", "shape", "dtype", "stored once per"):
        table.add_column(column)
    for name, field in env.contract.fields.items():
        once = {"log": "transition", "shared": "context" if field.per_context else "environment"}
        dtype = str(field.dtype).removeprefix("torch.")
        table.add_row(name, field.kind, str(field.shape), dtype, once.get(field.kind, "branch"))
    return table


def facts_table(facts: Facts) -> Table:
    """Shows what a machine and its Python have."""
    table = Table(title=f"branchrt-gym {facts.version}", title_justify="left", title_style="bold")
    for column in ("", "found", ""):
        table.add_column(column)
    table.add_row("python", facts.python, facts.system)
    memory = "" if facts.memory_gib is None else f", {facts.memory_gib:,} GiB of memory"
    table.add_row("processor", f"{facts.cores} cores{memory}", f"torch uses {facts.threads}")
    for name in (*REQUIRED, *OPTIONAL):
        version = facts.packages[name]
        absent = "optional" if name in OPTIONAL else "[bold red]required[/]"
        more = {
            "torch": f"built for CUDA {facts.cuda}" if facts.cuda else "built without CUDA",
            "triton": _triton(facts),
        }.get(name, "")
        table.add_row(name, escape(version or NONE), more if version else absent)
    for device in facts.devices:
        size = f"{device.memory_gib:,} GiB, compute capability {device.capability}"
        table.add_row("device", escape(device.name), size)
    table.add_row("docker engine", facts.engine)
    return table


def _triton(facts: Facts) -> str:
    if facts.kernel is not None:
        return "its kernels do not run"
    if facts.interpreted:
        return "kernels run, interpreted"
    return "kernels compile" if facts.devices else "no device; interpreted with TRITON_INTERPRET=1"


def tiers_table(facts: Facts) -> Table:
    """Shows what of the runtime can run on a machine."""
    table = Table(title="What runs here", title_justify="left", title_style="bold")
    for column in ("", "", "why"):
        table.add_column(column)
    for tier in tiers(facts):
        runs = "[green]yes[/]" if tier.here else "no"
        table.add_row(f"search, {tier.name}", runs, escape(tier.why))
    for device, form in implementations(facts).items():
        runs = "no" if device == "cuda" and not facts.devices else "[green]yes[/]"
        table.add_row(f"kernels, {device}", runs, form)
    return table
