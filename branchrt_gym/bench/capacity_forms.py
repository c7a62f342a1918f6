"""The forms of the population whose memory `branchrt bench capacity` measures: rows, or pages.

A population is `N` branches over `C` contexts of `W` entries. Each branch has one contiguous run of
the context overwritten, at a random place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache

import torch
from torch import Tensor

from branchrt_gym.bench.capacity_contents import Contents, PopulationSizes, pieces
from branchrt_gym.bench.measure import Threads
from branchrt_gym.contract import Contract, branch, paged, shared
from branchrt_gym.frontier import Frontier
from branchrt_gym.kernels.dispatch import resolve
from branchrt_gym.pages import PageWrites
from branchrt_gym.slots import FREE

__all__ = ["FORMS", "DenseForm", "PagedForm", "PopulationForm"]

FORKS = 64  # by which a population is made, since a fork takes memory beside its children
WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class PopulationForm(ABC):
    """One form of the population.

    Attributes:
        sizes: How large. contents: What it must hold.
        frontier: Its branches: slot `i` is branch `i`, and children of `fork` come after them.
    """

    frontier: Frontier

    def __init__(self, sizes: PopulationSizes, device: str | torch.device) -> None:
        """Computes what it needs; allocates no branch."""
        self.sizes = sizes
        self.device = torch.device(device)
        self.contents = Contents(sizes, self.device)

    def build(self) -> None:
        """Makes contexts, forks the branches of them, and overwrites a run of each."""
        sizes = self.sizes
        self.start()
        for low, high in pieces(sizes.contexts, sizes.branches, -(-sizes.branches // FORKS)):
            parents = torch.arange(low, high, device=self.device) % sizes.contexts
            self.fork(parents, low)
        piece = max(1, sizes.block // max(1, sizes.run * sizes.item))
        for low, high in pieces(0, sizes.branches if sizes.run else 0, piece):
            rows = torch.arange(low, high, device=self.device)
            start = self.contents.start(rows)
            self.make_room(rows, start)
            self.write(rows, start, self.contents.value(rows))

    @abstractmethod
    def start(self) -> None:
        """Allocates, and starts with a branch of each context."""

    @abstractmethod
    def fork(self, parents: Tensor, first: int) -> None:
        """Forks a child of each parent, `[M]`, into the free slots from `first` on."""

    @abstractmethod
    def write(self, rows: Tensor, start: Tensor, value: Tensor) -> None:
        """Overwrites a run of each of the branches `rows`, one after the other, by `[M, L]`."""

    @abstractmethod
    def read(self, rows: Tensor, index: Tensor) -> Tensor:
        """Returns entries of branches, in the shape of `index`, `[M, J]`."""

    @abstractmethod
    def held(self) -> dict[str, int]:
        """Returns the bytes held, by what they hold."""

    @abstractmethod
    def make_room(self, rows: Tensor, start: Tensor) -> None:
        """Makes sure that a run of each of the branches can be written."""

    @abstractmethod
    def reclaim(self) -> None:
        """Takes back what branches that are no more have left."""


class DenseForm(PopulationForm):
    """Each branch has a row of its own: forking copies it, and runs are written in place.

    As strong as we know to make it. The frontier would gather and then scatter rows, which takes
    twice the traffic and a second copy while it runs; here they are copied once, to where they
    stay, by the fastest means of the device, and the contexts lie in the first branches' rows.
    """

    content: Tensor

    def start(self) -> None:
        """See `PopulationForm`."""
        sizes, contents = self.sizes, self.contents
        self.frontier = Frontier(
            sizes.branches + sizes.spare,
            sizes.contexts,
            Contract({"content": branch((sizes.width,), contents.dtype)}),
            device=self.device,
        )
        self.content = self.frontier.state.pop("content")
        self.frontier.start(0, torch.arange(sizes.contexts, device=self.device))
        for low, high in pieces(0, sizes.contexts, sizes.block // (sizes.width * sizes.item)):
            contents.context(low, high, self.content[low:high])
        self._words = self.content.view(
            next(word for word in WORDS if sizes.width * sizes.item % word.itemsize == 0)
        )

    def fork(self, parents: Tensor, first: int) -> None:
        """See `PopulationForm`."""
        self.frontier.fork(parents)
        source, into = self._words[:first], self._words[first : first + parents.shape[0]]
        if self.device.type == "cpu":
            rows, index, target = source.numpy(), parents.numpy(), into.numpy()

            def take(piece: slice) -> None:
                rows.take(index[piece], axis=0, out=target[piece], mode="clip")

            _threads().each(take, index.shape[0])
        elif resolve("auto", source) == "triton":
            from branchrt_gym.bench.rows_triton import take_rows

            take_rows(source, parents, into)
        else:
            into.copy_(source.index_select(0, parents))

    def make_room(self, rows: Tensor, start: Tensor) -> None:
        """There is: rows are written in place."""

    def reclaim(self) -> None:
        """Nothing is left: a row is its slot's."""

    def write(self, rows: Tensor, start: Tensor, value: Tensor) -> None:
        """See `PopulationForm`."""
        length = value.shape[1]
        if self.device.type == "cpu":
            content, values = self.content.numpy(), value.numpy()
            places = list(zip(rows.tolist(), start.tolist(), strict=True))

            def put(piece: slice) -> None:
                for at in range(piece.start, piece.stop):
                    row, begin = places[at]
                    content[row, begin : begin + length] = values[at]

            _threads().each(put, len(places))
        elif resolve("auto", value) == "triton":
            from branchrt_gym.bench.capacity_triton import write_runs

            write_runs(self.content, rows, start, value)
        else:
            place = (rows * self.sizes.width + start)[:, None]
            place = place + torch.arange(length, device=self.device)
            self.content.view(-1)[place] = value

    def read(self, rows: Tensor, index: Tensor) -> Tensor:
        """See `PopulationForm`."""
        return self.content.view(-1)[rows[:, None] * self.sizes.width + index]

    def held(self) -> dict[str, int]:
        """See `PopulationForm`."""
        return {"rows": self.content.nbytes, "frontier": frontier_bytes(self.frontier)}


class PagedForm(PopulationForm):
    """Contexts are stored once, and a branch has pages where it wrote.

    The pool has as many pages as the runs of all branches touch, which is known beforehand.
    """

    def start(self) -> None:
        """See `PopulationForm`."""
        sizes, contents = self.sizes, self.contents
        contract = Contract(
            {
                "context": shared((sizes.width,), contents.dtype),
                "content": paged(
                    (sizes.width,), contents.dtype, initial="context", page_size=sizes.page_size
                ),
            }
        )
        each = -(-max(sizes.run - 1, 0) // sizes.page_entries) + 1
        spare = sizes.spare_runs * each if sizes.run else 0
        self.frontier = Frontier(
            sizes.branches + sizes.spare,
            sizes.contexts,
            contract,
            page_capacity=contents.pages(sizes.page_entries) + spare,
            device=self.device,
        )
        context = torch.empty(
            (sizes.contexts, sizes.width), dtype=contents.dtype, device=self.device
        )
        for low, high in pieces(0, sizes.contexts, sizes.block // (sizes.width * sizes.item)):
            contents.context(low, high, context[low:high])
        index = torch.arange(sizes.contexts, device=self.device)
        self.frontier.start(0, index, shared={"context": context})
        self.pool = self.frontier.pages["content"]

    def fork(self, parents: Tensor, first: int) -> None:
        """See `PopulationForm`."""
        self.frontier.fork(parents)

    def make_room(self, rows: Tensor, start: Tensor) -> None:
        """See `PopulationForm`."""
        value = torch.empty((), dtype=self.contents.dtype, device=self.device)
        runs = value.expand(rows.shape[0], 1, self.sizes.run)
        self.pool.make_room(self._writes(rows, start[:, None], runs), rows, self._held())

    def write(self, rows: Tensor, start: Tensor, value: Tensor) -> None:
        """See `PopulationForm`."""
        frontier = self.frontier
        writes = self._writes(rows, start, value)
        self.pool.write(writes, rows, frontier.shared["context"], frontier.context_index)

    def read(self, rows: Tensor, index: Tensor) -> Tensor:
        """See `PopulationForm`."""
        return self.frontier.branches(rows).pages["content"].read(index)

    def reclaim(self) -> None:
        """See `PopulationForm`."""
        self.pool.reclaim(self._held())

    def _held(self) -> Tensor:
        return self.frontier.status != FREE

    def _writes(self, rows: Tensor, start: Tensor, value: Tensor) -> PageWrites:
        return self.frontier.branches(rows).pages["content"].write(start, value)

    def held(self) -> dict[str, int]:
        """See `PopulationForm`."""
        pool = self.pool
        return {
            "contexts": self.frontier.shared["context"].nbytes,
            "pages": pool.pool.nbytes,
            "page_marks": pool.stamp.nbytes + pool.free.nbytes,
            "table": pool.table.nbytes,
            "frontier": frontier_bytes(self.frontier) + pool.sealed.nbytes,
        }


FORMS: dict[str, type[PopulationForm]] = {"dense": DenseForm, "paged": PagedForm}


@cache
def _threads() -> Threads:
    """The same for every population: their stacks are memory too."""
    return Threads()


def frontier_bytes(frontier: Frontier) -> int:
    """Returns the bytes of a frontier's own columns: bookkeeping."""
    names = ("status", *frontier.COLUMNS, *frontier.ROOT_COLUMNS)
    return sum(getattr(frontier, name).nbytes for name in names)
