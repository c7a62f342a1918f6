"""What `branchrt bench expand` runs: a frontier of DeepTree branches, expanded in several forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from branchrt_gym.branch_step import branch_step
from branchrt_gym.contract import TransitionKernel
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.expand_fused import LEAST, fused_expansion
from branchrt_gym.frontier import Frontier, check_device
from branchrt_gym.roots import make_roots
from branchrt_gym.slots import FREE

__all__ = ["ExpandForms", "ExpandSizes", "TorchTree"]

SEED = 7
COPIED = 4 << 30  # bytes that a copy reads and writes, together
ORDERS = ("grouped", "mixed")


@dataclass(frozen=True)
class ExpandSizes:
    """The size of the expansion.

    Attributes:
        parents: Live branches, all of them expanded.
        roots: Their roots, a context each; they divide the parents.
        width: Entries of a context.
        fanout: Children of a parent.
        order: `"grouped"`: the branches of a root are together, as `fork` and `branch_step` leave
            them. `"mixed"`: neighbours are of different roots, so that all contexts are read at
            once and have to share the cache.
    """

    parents: int = 1 << 22
    roots: int = 128
    width: int = 262_144
    fanout: int = 4
    order: str = "grouped"

    def __post_init__(self) -> None:
        """Checks that every root has as many branches."""
        if self.order not in ORDERS:
            raise ValueError(f"`order` is {self.order!r}; expected one of {', '.join(ORDERS)}")
        if self.parents % self.roots or self.children >= 2**31:
            raise ValueError(
                f"`parents` is {self.parents}; expected a multiple of the {self.roots} roots, with "
                f"fewer than 2**31 children: there are {self.fanout} of each"
            )

    @property
    def children(self) -> int:
        """Children of all parents."""
        return self.parents * self.fanout


class TorchTree(DeepTree):
    """DeepTree as an author who writes torch alone has it."""

    def transition_kernel(  # type: ignore[override]
        self, device: torch.device
    ) -> TransitionKernel | None:
        """There is none."""
        return None


class ExpandForms:
    """The frontier to expand, and what is timed on it.

    The forms: `full`, all that the frontier and the lineage keep of the children; `bare`, their
    position and score alone; `step`, the whole of `branch_step`, its checks and its look for
    solved roots included; `torch`, the same without a kernel of the environment's; `reads`, as
    many random reads of the contexts and nothing else; and two copies.

    Attributes:
        captured: Forms that do not wait for the device. eager: The others.
        copied: Bytes that the copy reads and writes.
    """

    def __init__(self, sizes: ExpandSizes, device: str) -> None:
        """Makes the frontier and what `restore` goes back to."""
        check_device(device)
        self.sizes = sizes
        self.env = DeepTree(width=sizes.width, fanout=sizes.fanout)
        plain = TorchTree(width=sizes.width, fanout=sizes.fanout)
        self.frontier = frontier = _population(self.env, sizes, device)
        fused = fused_expansion(
            frontier, self.env, "split", parents=sizes.parents, fanout=sizes.fanout
        )
        if fused is None:
            raise ValueError(
                f"`device` is {device!r} and there are {sizes.children} children; expected a CUDA "
                f"device, with Triton installed, and at least {LEAST}: what is measured is a kernel"
            )
        self._saved = [column[: sizes.parents].clone() for column in self._columns]
        self._counters = frontier.next_id.clone(), frontier.lineage.used
        parents = torch.arange(sizes.parents, device=device)
        self.bare = {
            name: torch.empty(sizes.children, dtype=values.dtype, device=device)
            for name, values in frontier.state.items()
        }
        contexts = frontier.shared["context"]
        words = COPIED // 16 if frontier.device.type == "cuda" else 1
        halves = torch.zeros((2, words), dtype=torch.int64, device=device)
        self.copied = halves.nbytes
        self.captured: dict[str, Callable[[], object]] = {
            "full": lambda: fused.write(parents, None),
            "bare": lambda: fused.fields(self.bare),
            "reads": lambda: _read(contexts, frontier.context_index[: sizes.parents], sizes),
            "copy": lambda: halves[1].copy_(halves[0]),
            "inverted copy": lambda: torch.bitwise_not(halves[0], out=halves[1]),
        }
        self.eager: dict[str, Callable[[], object]] = {
            "step": lambda: branch_step(frontier, self.env),
            "torch": lambda: branch_step(frontier, plain),
        }

    @property
    def _columns(self) -> list[Tensor]:
        return [self.frontier.status, *self.frontier.columns]

    def restore(self) -> None:
        """Undoes an expansion."""
        frontier, count = self.frontier, self.sizes.parents
        for column, values in zip(self._columns, self._saved, strict=True):
            column[:count] = values
        frontier.status[count:] = FREE
        frontier.next_id.copy_(self._counters[0])
        frontier.lineage.used = self._counters[1]
        frontier.lineage.count.fill_(self._counters[1])

    def compare(self) -> tuple[int, int, str | None]:
        """Runs every form once; returns values compared, how many differ, and where first."""
        frontier, count = self.frontier, self.sizes.children

        def written() -> dict[str, Tensor]:
            entries = slice(self._counters[1], self._counters[1] + count)
            names = ("status", *frontier.COLUMNS)
            return {
                **{name: getattr(frontier, name) for name in names},
                **frontier.state,
                **{f"entry's {name}": x[entries] for name, x in frontier.lineage.columns.items()},
            }

        forms = {**self.eager, "full": self.captured["full"]}
        ran: dict[str, dict[str, Tensor]] = {}
        for name in ("torch", "step", "full"):
            self.restore()
            outcome = forms[name]()
            ran[name] = {key: values.clone() for key, values in written().items()}
            if isinstance(outcome, tuple):
                ran[name].update(rewards=outcome[1], done=outcome[2])
        self.restore()
        self.captured["bare"]()
        ran["bare"] = self.bare
        compared = mismatches = 0
        first = None
        for form in ("step", "full", "bare"):
            for name, values in ran[form].items():
                wrong = int((values != ran["torch"][name]).sum())
                compared += values.numel()
                mismatches += wrong
                if wrong and first is None:
                    first = f"`{name}` of the form `{form}`"
        return compared, mismatches, first

    @property
    def bytes_per_child(self) -> dict[str, float]:
        """What a child has written and read; of its parent, its share."""
        frontier, fanout = self.frontier, self.sizes.fanout

        def size(tensors: Iterable[Tensor]) -> int:
            return sum(x.element_size() for x in tensors)

        state = size(frontier.state.values())
        placed, entered = size(self._columns), size(frontier.lineage.columns.values())
        unread = (frontier.status, frontier.parent_id, frontier.verdict_score)
        depth_and_context = size((frontier.depth, frontier.context_index))
        return {
            "full": placed + entered + (placed - size(unread)) / fanout,
            "bare": state + (state + depth_and_context) / fanout,
        }


def _population(env: DeepTree, sizes: ExpandSizes, device: str) -> Frontier:
    """As many live branches of each root, in the first slots, at random positions and scores."""
    roots = make_roots(env, sizes.roots, device=device)
    frontier = Frontier(
        sizes.children,
        sizes.roots,
        env.contract,
        reward_dtype=env.reward_dtype,
        # On CUDA torch's path, which reads no numbers, asks for room to prune every slot as well.
        lineage_capacity=sizes.parents + 2 * sizes.children,
        device=device,
    )
    frontier.start(roots.seed, roots.context_index, roots.key, roots.state, roots.shared)
    more = sizes.parents // sizes.roots - 1
    first = torch.arange(sizes.roots, device=device)
    if more and sizes.order == "mixed":
        frontier.fork(first.repeat(more))
    elif more:
        frontier.fork(first, more)
    chance = torch.Generator(device).manual_seed(SEED)
    for name, low, high in (("position", 0, sizes.width), ("score", -1000, 1001)):
        column = frontier.state[name][: sizes.parents]
        column.random_(low, high, generator=chance)
    return frontier


def _read(contexts: Tensor, context_index: Tensor, sizes: ExpandSizes) -> Tensor:
    from branchrt_gym.bench.expand_triton import read_at_random

    return read_at_random(contexts, context_index, sizes.fanout)
