"""`branchrt bench deep-tree` on a CUDA device: one search in many forms, equal before it is timed.

The cache is flushed before a repetition, unless it says warm, and forms take turns. The device's
time of a CUDA graph is read from events around its replay; wall time is the host's, from the call
to the end of the device's work, and is what forms that are no graph are compared by.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Mapping

import torch

from branchrt_gym.bench.deep_tree import Progress, Sizes, halves
from branchrt_gym.bench.form import Form, NotRunError, Setting, places
from branchrt_gym.bench.forms import FORMS, LABELS, RNG, STOP_SOLVED
from branchrt_gym.bench.forms_figures import FormFigures, FormsComparison
from branchrt_gym.bench.frontier_share import frontier_share
from branchrt_gym.bench.measure import PeakMemory, clock, copy_methods
from branchrt_gym.bench.mismatches import Mismatches, compare_places
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.roots import Roots, make_roots
from branchrt_gym.search_eager import beam

__all__ = ["compare_forms"]

FLUSHED = 512 << 20  # bytes written to drive everything else out of the cache
SLOW = 5e-3  # seconds; a slower form is timed in one run by both clocks, and warm seldom
SLOW_WARM = 2  # its warm repetitions for each seed
ASIDE = ("batcher", "dense", "eager")  # slow, and no ratio is taken of them: timed less often
ASIDE_SHARE = 4


def compare_forms(
    sizes: Sizes,
    *,
    seeds: int = 3,
    repetitions: int = 20,
    device: str = "cuda",
    names: Collection[str] = tuple(FORMS),
    progress: Progress = lambda stage, done, total: None,
) -> FormsComparison:
    """Makes every form for each set of roots, compares what all found, and only then times them.

    Args:
        sizes: How large.
        seeds: Sets of roots, of seeds that no other set has.
        repetitions: Timed for each set.
        device: Where; on the CPU, for tests, what would be a graph is called as it is.
        names: The forms.
        progress: Told of each stage.
    """
    for name, given in (("seeds", seeds), ("repetitions", repetitions)):
        if given < 1:
            raise ValueError(f"`{name}` is {given}; expected 1 or more")
    env = CheckedEnv(DeepTree(width=sizes.width, fanout=sizes.fanout, depth=sizes.depth))
    chosen = {name: FormFigures() for name in FORMS if name in names}
    kind = torch.device(device).type
    comparison = FormsComparison(sizes, kind, seeds, repetitions, chosen)
    where = f"{sizes.roots:,} roots"
    for seed in range(seeds):
        _release(kind)
        progress(f"{where}, seed {seed + 1} of {seeds}: making", 2 * seed, 2 * seeds)
        first = seed * sizes.roots
        roots = make_roots(env, range(first, first + sizes.roots), device=device)
        made = _make(comparison, Setting(sizes, env, roots))
        if not comparison.equal:
            break
        progress(f"{where}, seed {seed + 1} of {seeds}: timing", 2 * seed + 1, 2 * seeds)
        _time(comparison, made, roots)
        if seed == 0:
            comparison.shares = frontier_share(env, roots, sizes, made)
        del roots, made
    _release(kind)
    if not comparison.equal:
        comparison.copies.clear()
        for form in chosen.values():
            form.samples.clear()
    progress("Done", 2 * seeds, 2 * seeds)
    return comparison


def _make(comparison: FormsComparison, at: Setting) -> dict[str, Form]:
    """Makes the forms that can run, and compares what each found."""
    with torch.inference_mode():
        sizes = comparison.sizes
        reference = beam(at.env, at.roots, sizes.beam, sizes.depth, RNG, STOP_SOLVED)
    wanted = places(reference, sizes.roots)
    made: dict[str, Form] = {}
    for name, figures in comparison.forms.items():
        if figures.not_run is not None:
            continue
        try:
            with PeakMemory(at.device) as memory:
                form = FORMS[name](at, made)
                found = form.found()
        except NotRunError as reason:
            figures.not_run = str(reason)
            continue
        except RuntimeError as error:  # of CUDA: the others can still be compared
            figures.not_run = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        same = compare_places(wanted, found, LABELS[name])
        before = figures.mismatches or Mismatches(0, 0, None)
        if same.compared:
            figures.mismatches = Mismatches(
                before.compared + same.compared,
                before.count + same.count,
                before.first or same.first,
            )
        held = form.peak() if form.peak is not None else memory.bytes
        if held is not None:
            before_held = figures.peak_bytes
            held += form.held
            figures.peak_bytes = held if before_held is None else min(before_held, held)
        figures.note = form.note
        made[name] = form
    return made


def _time(comparison: FormsComparison, made: Mapping[str, Form], roots: Roots) -> None:
    """Times the forms, and plain copies of the batcher's buffers, by turns."""
    device = roots.seed.device
    scratch = torch.empty(FLUSHED if device.type == "cuda" else 0, dtype=torch.int8, device=device)
    slow = {name: _wall(form, device) > SLOW for name, form in made.items()}
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in made}
    copy: Callable[[], object] | None = None
    batcher = made["batcher"].batcher if "batcher" in made else None
    if batcher is not None:
        source, target = halves(*(rows["context"] for rows in batcher.buffers))
        copy = copy_methods(source, target)["torch copy_"]
        comparison.copied = made["batcher"].copied
        comparison.copy_method = batcher.copy_method
        comparison.buffers = batcher.buffer_bytes
    comparison.contexts = roots.shared["context"].nbytes
    copies = []

    def take(name: str, clock_name: str, seconds: float) -> None:
        samples[name].setdefault(clock_name, []).append(seconds)

    for repetition in range(comparison.repetitions):
        for name, form in made.items():
            if name in ASIDE and repetition % ASIDE_SHARE:
                continue
            on_device = form.graph and device.type == "cuda"
            if not slow[name]:
                _run(form)  # so that the host's own caches are not cold from another form
            scratch.zero_()
            if on_device and slow[name]:
                torch.cuda.synchronize(device)
                began = time.perf_counter()
                take(name, "device", _device(form))
                take(name, "wall", time.perf_counter() - began)
            else:
                take(name, "wall", _wall(form, device))
                if on_device:
                    scratch.zero_()
                    take(name, "device", _device(form))
            if not slow[name] or repetition < SLOW_WARM:
                if on_device:
                    form.run()  # while it runs the next is handed over
                take(name, "warm", _device(form) if on_device else _wall(form, device))
        if copy is not None:
            scratch.zero_()
            copies.append(2 * source.nbytes / _copy_seconds(copy, device))
    if copies:
        comparison.copies.append(copies)
    for name, clocks in samples.items():
        for clock_name, values in clocks.items():
            comparison.forms[name].samples.setdefault(clock_name, []).append(values)


def _run(form: Form) -> None:
    given = form.run()
    if form.wait is not None:
        form.wait(given)


def _wall(form: Form, device: torch.device) -> float:
    return clock(lambda: _run(form), device)


def _device(form: Form) -> float:
    """The device's seconds from before a run to after it; the flush before hides the launch."""
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)  # type: ignore[no-untyped-call]
    begin.record()
    form.run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _copy_seconds(copy: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        return clock(copy)
    return _device(Form(copy, dict, graph=True))


def _release(kind: str) -> None:
    """Gives back what forms made before held."""
    gc.collect()
    if kind == "cuda":
        torch.cuda.empty_cache()
