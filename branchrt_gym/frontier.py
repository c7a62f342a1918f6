"""The frontier: the live population of branches, as a structure of arrays over slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from branchrt_gym.contract import Branches, Contract, Transition
from branchrt_gym.errors import DeviceError
from branchrt_gym.kernels import compact_indices, copy_rows, fold
from branchrt_gym.kernels.rows import write_rows
from branchrt_gym.lineage import NO_ENTRY, PRUNED, SOLVED, Lineage
from branchrt_gym.page_pool import NO_PAGE, PagePool
from branchrt_gym.pages import PageWrites
from branchrt_gym.seeding import Rng, check_rng, check_seeds, episode_key, fork_key, root_key
from branchrt_gym.slots import (
    FREE,
    LIVE,
    NO_BRANCH,
    NO_ROOT,
    NO_SLOT,
    Faults,
    Slots,
    occurrence,
    read_counts,
    read_ids,
    read_mask,
    read_slots,
)
from branchrt_gym.trajectories import Trajectories, trace

__all__ = ["Frontier", "check_device"]


def check_device(device: str | torch.device) -> torch.device:
    """Returns the device if this machine has it, else raises DeviceError."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f'`device` is {device!r}; expected "cpu", "cuda" or "cuda:N"') from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f'`device` is "{device}", but torch {torch.__version__} sees no CUDA device here; '
            'use device="cpu", or see what is missing with torch.cuda.is_available()'
        )
    return found


class Frontier:
    """`N` slots that hold the branches of `R` roots.

    Any slot may hold any root's branch. Slots do not move except in `compact`; a branch's id is
    never reused and survives moves. Columns of a FREE slot have no meaning (they hold the values
    of some earlier branch, valid to compute on).

    Attributes:
        status: `[N] int8`: FREE, LIVE or DONE.
        root: `[N] int64`.
        context_index: `[N] int64`.
        branch_id: `[N] int64`.
        parent_id: `[N] int64`, `NO_BRANCH` for a root's first branch.
        depth: `[N] int32`, transitions since the root.
        key: `[N] int64`, the branch's random key.
        forks: `[N] int32`, forks the branch took part in as a parent.
        last_entry: `[N] int64`, its newest entry in the lineage.
        verdict_score: `[N] int64`, the score of the verdict that let it stay; see `branch_step`.
        state: The contract's `branch` fields, each `[N, …]`.
        pages: The pools of its `paged` fields.
        payloads: One opaque object per slot for branches without a contract, else empty.
        shared: The contract's `shared` fields.
        seed: `[R] int64`. episode: `[R] int32`, from 0. solved: `[R] bool`, a branch of the
            current episode passed. first_id, oldest_id: `[R] int64`, the first branch id of each
            root's current and previous episode.
        next_id: `[] int64`, the next branch id to give.
    """

    COLUMNS = (
        "root",
        "context_index",
        "branch_id",
        "parent_id",
        "depth",
        "key",
        "forks",
        "last_entry",
        "verdict_score",
    )
    ROOT_COLUMNS = ("seed", "episode", "solved", "first_id", "oldest_id")

    def __init__(
        self,
        num_slots: int,
        num_roots: int,
        contract: Contract | None = None,
        *,
        action_shape: tuple[int, ...] = (),
        action_dtype: torch.dtype = torch.int64,
        reward_dtype: torch.dtype = torch.float32,
        lineage_capacity: int = 0,
        page_capacity: int | None = None,
        device: str | torch.device = "cpu",
        debug: bool = False,
    ) -> None:
        """Allocates the slots, all FREE.

        Args:
            num_slots: `N`.
            num_roots: `R`, at most `N`.
            contract: The fields; None, or `log` fields alone, for branches whose state is an
                opaque payload.
            action_shape: The shape of one action in the lineage.
            action_dtype: Its dtype.
            reward_dtype: The dtype of rewards in the lineage.
            lineage_capacity: Entries of the lineage; 0 records nothing.
            page_capacity: Pages of each `paged` field's pool; None for pools that grow.
            device: Where everything is stored.
            debug: On CUDA, raise errors at once (synchronises); anywhere, check each transition
                for writes into shared fields.
        """
        if not 1 <= num_roots <= num_slots:
            raise ValueError(
                f"`num_roots` is {num_roots} and there are {num_slots} slots; expected at least "
                "one root and a slot for each"
            )
        if 0 < lineage_capacity < num_roots:
            raise ValueError(
                f"`lineage_capacity` is {lineage_capacity} and there are {num_roots} roots; "
                "expected an entry for each root's first branch at least, or 0 to record nothing"
            )
        self.device = check_device(device)
        self.contract = Contract({}) if contract is None else contract
        self.num_slots = num_slots
        self.num_roots = num_roots
        self.debug = debug
        self.page_capacity = page_capacity

        def ints(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=self.device)

        self.status = ints(num_slots, torch.int8)
        self.root = ints(num_slots)
        self.context_index = ints(num_slots)
        self.branch_id = ints(num_slots)
        self.parent_id = ints(num_slots)
        self.depth = ints(num_slots, torch.int32)
        self.key = ints(num_slots)
        self.forks = ints(num_slots, torch.int32)
        self.last_entry = ints(num_slots)
        self.verdict_score = ints(num_slots)
        self.state = {
            name: torch.zeros((num_slots, *field.shape), dtype=field.dtype, device=self.device)
            for name, field in self.contract.of("branch").items()
        }
        self.pages = {
            name: PagePool(field, num_slots, capacity=page_capacity, device=self.device, name=name)
            for name, field in self.contract.of("paged").items()
        }
        stored = self.state or self.pages or self.contract.of("shared")
        self.payloads: list[object] = [] if stored else [None] * num_slots
        self.shared: dict[str, Tensor] = {}
        self.seed = ints(num_roots)
        self.episode = ints(num_roots, torch.int32)
        self.solved = ints(num_roots, torch.bool)
        self.first_id = ints(num_roots)
        self.oldest_id = ints(num_roots)
        self.next_id = torch.zeros((), dtype=torch.int64, device=self.device)
        self.lineage = Lineage(
            lineage_capacity,
            action_shape=action_shape,
            action_dtype=action_dtype,
            reward_dtype=reward_dtype,
            log=self.contract.of("log"),
            device=self.device,
        )
        self.faults = Faults(num_slots, self.device)
        self.elsewhere = ""  # what its branches consist of besides these tensors
        self._keyed: tuple[Tensor, Tensor] | None = None  # seeds, and their keys

    # What is there ------------------------------------------------------------------------

    @property
    def synchronous(self) -> bool:
        """Whether errors are raised before anything changes: on the CPU, or with `debug`."""
        return self.device.type == "cpu" or self.debug

    @property
    def live(self) -> Tensor:
        """`[N] bool`, the slots whose branches can step."""
        return self.status == LIVE

    @property
    def columns(self) -> list[Tensor]:
        """Every per-slot tensor but `status`."""
        tables = [column for pool in self.pages.values() for column in pool.columns]
        return [*(getattr(self, name) for name in self.COLUMNS), *self.state.values(), *tables]

    def branches(self, rows: Tensor | None = None, *, with_key: bool = False) -> Branches:
        """Views the branches in `rows` (all slots if None) as an environment's hooks do."""

        def pick(column: Tensor) -> Tensor:
            return column if rows is None else column.index_select(0, rows)

        depth = pick(self.depth)
        return Branches(
            context_index=pick(self.context_index),
            depth=depth,
            state={name: pick(column) for name, column in self.state.items()},
            key=fold(pick(self.key), depth.to(torch.int64)) if with_key else None,
            pages={
                name: pool.view(self._base(pool), self.context_index, rows)
                for name, pool in self.pages.items()
            },
        )

    def rows_of(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the slots in `mask` in order, `[M] int64`, and which entries are valid.

        On the CPU `M` is their number and the second is None. On a GPU, where reading a number
        would synchronise, `M` is `N` and invalid entries at the end are `NO_SLOT`.
        """
        if self.device.type == "cpu":
            return torch.from_numpy(mask.numpy().nonzero()[0]), None  # a third of torch's time
        rows, _ = compact_indices(mask)
        return rows, rows != NO_SLOT

    def root_keys(self) -> Tensor:
        """Returns the key of each root's seed, `[R] int64`; on the CPU kept while seeds stay."""
        if self.device.type != "cpu":  # where looking whether they do would synchronise
            return root_key(self.seed)
        if self._keyed is None or not torch.equal(self._keyed[0], self.seed):
            self._keyed = self.seed.clone(), root_key(self.seed)
        return self._keyed[1]

    def check(self) -> None:
        """Raises the error of an earlier CUDA call that changed nothing; synchronises."""
        if self.device.type != "cpu":
            self.faults.check()

    # Births -------------------------------------------------------------------------------

    def start(
        self,
        seed: int | Sequence[int] | Tensor,
        context_index: Tensor | None = None,
        key: Tensor | None = None,
        state: Mapping[str, Tensor] | None = None,
        shared: Mapping[str, Tensor] | None = None,
        payloads: Sequence[object] | None = None,
    ) -> None:
        """Starts over: one LIVE branch per root in slots `0 … R - 1`, ids from 0.

        Args:
            seed: An int `s`, for `s, s + 1, …`, or one int per root.
            context_index: `[R] int64`; None for one context.
            key: `[R] int64`, the branches' keys; None for the seeds' first episodes.
            state: The `branch` fields, `[R, …]`.
            shared: The `shared` fields, kept by reference.
            payloads: One object per root, for branches without a contract.

        Raises:
            ValueError: If there is not one payload for each root, or fields are missing.
        """
        seeds = check_seeds(seed, self.num_roots).to(self.device)
        if isinstance(payloads, str):
            raise TypeError("`payloads` is a str; expected a sequence with one object per root")
        if payloads is not None and (len(payloads) != self.num_roots or self.state):
            raise ValueError(
                f"`payloads` has {len(payloads)} entries; expected {self.num_roots}, one for each "
                "root, and a frontier without a contract"
            )
        state = {} if state is None else state
        if set(state) != set(self.state):
            raise ValueError(
                f"`state` has {sorted(state)}; expected the contract's {sorted(self.state)}"
            )
        if context_index is None:
            context_index = torch.zeros_like(seeds)
        if key is None:
            key = episode_key(seeds, torch.zeros_like(seeds))
        for name, given in {"context_index": context_index, "key": key, **state}.items():
            if given.shape[:1] != seeds.shape:
                raise ValueError(
                    f"`{name}` is {given.dtype} of shape {tuple(given.shape)}; expected one row "
                    f"for each of {self.num_roots} roots"
                )
        self.lineage.clear()
        self.next_id.zero_()
        self.status.fill_(FREE)
        self.seed.copy_(seeds)
        self.episode.fill_(-1)
        self.first_id.zero_()
        self.shared = dict(shared or {})
        for pool in self.pages.values():
            pool.clear()
        # Free slots hold valid values, so that a step may compute on all rows.
        row = torch.arange(self.num_slots, device=self.device) % self.num_roots
        for name, column in self.state.items():
            torch.index_select(state[name], 0, row, out=column)
        self.context_index.copy_(context_index[row])
        roots = torch.arange(self.num_roots, device=self.device)
        self.begin(roots, None, roots, context_index, key, state)
        if self.payloads:
            first = [None] * self.num_roots if payloads is None else payloads
            self.payloads[:] = [*first, *[None] * (self.num_slots - self.num_roots)]

    def begin(
        self,
        rows: Tensor,
        valid: Tensor | None,
        root: Tensor,
        context_index: Tensor,
        key: Tensor,
        state: Mapping[str, Tensor],
    ) -> None:
        """Starts the next episode of each `root` in slots `rows`, `[M]` in ascending order."""
        ids = self._new_ids(valid, rows.shape[0])
        write_rows(
            [self.oldest_id, self.first_id, self.episode, self.solved],
            root if valid is None else torch.where(valid, root, NO_ROOT),
            [
                self.first_id.index_select(0, root),
                ids,
                self.episode.index_select(0, root) + 1,
                False,
            ],
        )
        last: Tensor | int = NO_ENTRY
        if self.lineage.recorded:
            parent = torch.full_like(ids, NO_ENTRY)
            last = self.lineage.append(
                valid, {"parent_entry": parent, "branch_id": ids, "root": root}
            )
        self._place(
            rows,
            {
                "root": root,
                "context_index": context_index,
                "branch_id": ids,
                "parent_id": NO_BRANCH,
                "depth": 0,
                "key": key,
                "forks": 0,
                "last_entry": last,
                "verdict_score": 0,
            },
            state,
            LIVE,
        )
        for pool in self.pages.values():
            write_rows(pool.columns, rows, [NO_PAGE, 0])

    def fork(
        self,
        parents: Slots,
        counts: int | Slots = 1,
        rng: Rng = "split",
    ) -> Tensor:
        """Copies branches into free slots; no environment step.

        The lowest free slots are taken in the order of `parents`, a parent's children adjacent;
        the parent stays. A child copies its parent's row and has a new id. All or nothing.

        Args:
            parents: `[P]` slots with live branches; a slot may be named more than once.
            counts: Children of each parent: an int, or `[P]` ints (synchronises on CUDA).
            rng: `"split"`: each child has a future of its own. `"shared"`: its parent's.

        Returns:
            `[sum of counts] int64`, the children's slots.

        Raises:
            SlotError: If a parent is not live.
            FrontierFullError: If there are too few free slots.
            LineageFullError: If the lineage cannot take the births.
            On CUDA without `debug` the first two are noted and raised at the next
            synchronisation; the call itself changes nothing and returns `NO_SLOT`.
        """
        check_rng(rng)
        named = read_slots(parents, "parents", self.num_slots, self.device, self.synchronous)
        each, number = read_counts(counts, named)
        if number == 0:
            return named[:0]
        free, num_free = compact_indices(self.status == FREE)
        if number > self.num_slots:
            raise self.faults.full(number, int(num_free))
        rows = named if isinstance(each, int) and each == 1 else named.repeat_interleave(each)
        slots = free[:number]
        if self.synchronous:
            self.faults.require(rows, slots, num_free, self.status)
        ok = None
        if self.device.type != "cpu":
            ok = self.faults.admit(rows, slots, num_free, self.status)
        self.make_room(number)
        if ok is not None:
            rows = torch.where(ok, rows, 0)
            slots = torch.where(ok, slots, NO_SLOT)
        valid = None if ok is None else ok.expand(number)
        forks = self.forks[rows]
        self.forks[rows] = forks + 1 if ok is None else forks + ok.to(torch.int32)
        ids = self._new_ids(valid, number)
        last: Tensor | int = NO_ENTRY
        if self.lineage.recorded:
            birth = {"parent_entry": self.last_entry[rows], "branch_id": ids}
            last = self.lineage.append(valid, {**birth, "root": self.root[rows]})
        copied = ("root", "context_index", "depth", "verdict_score")
        columns = [*(getattr(self, name) for name in copied), *self.state.values()]
        copy_rows(columns, rows, slots, disjoint=True)
        self._place(
            slots,
            {
                "branch_id": ids,
                "parent_id": self.branch_id[rows],
                "key": fork_key(self.key[rows], forks, occurrence(rows), rng),
                "forks": forks + 1 if rng == "shared" else 0,
                "last_entry": last,
            },
            {},
            LIVE,
        )
        for pool in self.pages.values():
            pool.share(rows, slots)
        if self.payloads:
            for slot, row in zip(slots.tolist(), rows.tolist(), strict=True):
                self.payloads[slot] = self.payloads[row]
        return slots

    # Endings ------------------------------------------------------------------------------

    def prune(self, which: Slots | Sequence[bool]) -> Tensor:
        """Stops branches and frees their slots; no data moves.

        The lineage marks those that were live as pruned; their trajectories stay.

        Args:
            which: Slots, none of them free, or a `[N] bool` mask, in which free slots are
                ignored.

        Returns:
            `[N] bool`, the slots that were freed.
        """
        mask = read_mask(which, self.status, self.synchronous) & (self.status != FREE)
        self.mark_pruned(mask & self.live)
        self.release(mask)
        return mask

    def mark_pruned(self, mask: Tensor) -> None:
        """Writes the end of the live branches in `mask` into the lineage."""
        if not self.lineage.recorded:
            return
        rows, valid = self.rows_of(mask)
        self.make_room(rows.shape[0])
        at = rows.clamp(min=0)
        last = self.last_entry[at]
        verdict = self.lineage.columns["flags"][last.clamp(min=0)] & SOLVED
        self.lineage.append(
            valid,
            {
                "parent_entry": last,
                "branch_id": self.branch_id[at],
                "root": self.root[at],
                "flags": verdict | PRUNED,
            },
        )

    def release(self, mask: Tensor, status: int = FREE) -> None:
        """Sets the status of the slots in `mask` to FREE, or DONE."""
        self.status.masked_fill_(mask, status)
        if self.payloads and status == FREE:
            for slot in mask.nonzero().squeeze(1).tolist():
                self.payloads[slot] = None

    def compact(self, *, keep_done: bool = False) -> Tensor:
        """Moves the live branches to the first slots, keeping their order.

        Storage moves, identity does not: `branch_id` and the lineage are as before. With no live
        branch every slot is free afterwards.

        Args:
            keep_done: Keep DONE branches too; otherwise their slots become free.

        Returns:
            `source: [N] int32`, the slot each branch came from, or `NO_SLOT`.

        Cost: one read and one write of each kept row; shared fields are not touched; no host
        synchronisation.
        """
        keep = self.status != FREE if keep_done else self.live
        source, count = compact_indices(keep)
        place = torch.arange(self.num_slots, device=self.device)
        copy_rows([self.status, *self.columns], source, place)
        self.status.masked_fill_(place >= count, FREE)
        if self.payloads:
            self.payloads[:] = [
                self.payloads[slot] if slot != NO_SLOT else None for slot in source.tolist()
            ]
        return source.to(torch.int32)

    def trajectories(self, branch_ids: Slots) -> Trajectories:
        """Exports branches of the current and previous episodes of their roots.

        Args:
            branch_ids: `[B]` ids, of branches that live or have ended.

        Raises:
            ValueError: If no lineage is recorded, or an id is unknown or too old.
        """
        self.check()
        if not self.lineage.recorded:
            raise ValueError(
                "no lineage is recorded; construct with `record_lineage=True` (or with "
                "`num_roots < num_envs`, or a Frontier with `lineage_capacity`)"
            )
        return trace(self.lineage, read_ids(branch_ids, self.device), self.oldest_id)

    # What the runtime does with transitions -----------------------------------------------

    def make_room(self, extra: int, oldest: Tensor | None = None) -> None:
        """Makes sure the lineage takes `extra` more entries; see `Lineage.room`."""
        moved = self.lineage.room(extra, self.oldest_id if oldest is None else oldest)
        if moved is not None:
            held = self.last_entry.clamp(min=0, max=self.lineage.capacity - 1)
            self.last_entry.copy_(torch.where(self.last_entry == NO_ENTRY, NO_ENTRY, moved[held]))

    def advance(self, mask: Tensor, action: Tensor, step: Transition, flags: Tensor | None) -> None:
        """Commits a transition of all slots for the branches in `mask`; other rows are untouched.

        Args:
            mask: `[N] bool`, live slots.
            action: `[N, …]`.
            step: The transition of all `N` slots.
            flags: `[N] uint8`, the lineage's flags; None where it records nothing.
        """
        fresh = {
            name: torch.where(mask.view(-1, *[1] * (column.ndim - 1)), step.state[name], column)
            for name, column in self.state.items()
            if step.state[name] is not column
        }
        for name, values in fresh.items():  # only now: a new value may be an old column
            self.state[name].copy_(values)
        if step.pages:
            self._write_pages(step.pages, self._own(mask))
        self.depth += mask
        if flags is None or not self.lineage.recorded:
            return
        rows, valid = self.rows_of(mask)
        whole = valid is None and rows.shape[0] == self.num_slots
        at = rows.clamp(min=0)

        def pick(values: Tensor) -> Tensor:
            return values if whole else values.index_select(0, at)

        entry = self.lineage.append(
            valid,
            {
                "parent_entry": pick(self.last_entry),
                "branch_id": pick(self.branch_id),
                "root": pick(self.root),
                "flags": pick(flags),
                "action": pick(action),
                "reward": pick(step.reward),
                **{name: pick(step.log[name]) for name in self.lineage.log_names},
            },
        )
        if whole:
            self.last_entry.copy_(entry)
        else:
            write_rows([self.last_entry], rows, [entry])

    def find_pages(self, pool: PagePool, writes: PageWrites, mask: Tensor) -> None:
        """Makes sure that the branches in `mask` find pages for their writes; for `advance`.

        Args:
            pool: Of the field that is written.
            writes: Of all `N` slots.
            mask: `[N] bool`.

        Raises:
            PagePoolFullError: If there are too few; nothing is changed.
        """
        pool.make_room(writes, self._own(mask), self.status != FREE)

    def reserve_pages(
        self, pages: Mapping[str, PageWrites], parents: Tensor, leaving: Tensor
    ) -> dict[str, Tensor]:
        """Makes sure that children find pages for their writes; for `replace`.

        Args:
            pages: What `M` children write.
            parents: `[M] int64`, their parents' slots.
            leaving: `[N] bool`, slots that will be free.

        Returns:
            The pages that the children begin with, by field, `[M, T] int32`.

        Raises:
            PagePoolFullError: If a pool cannot take them; nothing is changed.
        """
        tables = {name: pool.table[parents] for name, pool in self.pages.items()}
        held = (self.status != FREE) & ~leaving
        for name, writes in pages.items():
            self.pages[name].check_room(writes, tables[name], held)
        return tables

    def replace(
        self,
        leaving: Tensor,
        slots: Tensor,
        parents: Tensor,
        *,
        key: Tensor,
        forks: Tensor | None,
        state: Mapping[str, Tensor],
        status: Tensor,
        score: Tensor,
        entry: Mapping[str, Tensor],
        pages: Mapping[str, PageWrites],
        tables: Mapping[str, Tensor],
        payloads: Sequence[object] = (),
    ) -> None:
        """Commits an expansion: frees `leaving` and writes `M` children with new ids.

        Args:
            leaving: `[N] bool`.
            slots: `[M] int64`, free or leaving.
            parents: `[M] int64`, the children's parents' slots.
            key: `[M] int64`.
            forks: `[M] int32`, or None for zeros.
            state: The children's `branch` fields, `[M, …]`.
            status: `[M] int8`, LIVE or DONE.
            score: `[M] int64`, kept as `verdict_score`.
            entry: `flags`, `action`, `reward` and `log` fields for the lineage, `[M, …]`.
            pages: What they write to `paged` fields.
            tables: What `reserve_pages` returned for that.
            payloads: `M` objects, for branches without a contract.
        """
        root, parent_id = self.root[parents], self.branch_id[parents]
        ids = self._new_ids(None, slots.shape[0])
        last = self.lineage.append(
            None,
            {"parent_entry": self.last_entry[parents], "branch_id": ids, "root": root, **entry},
        )
        columns = {
            "root": root,
            "context_index": self.context_index[parents],
            "branch_id": ids,
            "parent_id": parent_id,
            "depth": self.depth[parents] + 1,
            "key": key,
            "forks": 0 if forks is None else forks,
            "last_entry": last,
            "verdict_score": score,
        }
        self.release(leaving)
        self._place(slots, columns, state, status)
        for name, pool in self.pages.items():
            seal = pool.tick().expand(slots.shape[0]).contiguous()
            write_rows(pool.columns, slots, [tables[name], seal])
        for name, writes in pages.items():
            self.pages[name].make_room(writes, slots, self.status != FREE)
        self._write_pages(pages, slots)
        for slot, payload in zip(slots.tolist() if payloads else (), payloads, strict=True):
            self.payloads[slot] = payload

    def _own(self, mask: Tensor) -> Tensor:
        """Returns each slot's own number in `mask`, else `NO_SLOT`; `[N] int64`."""
        return torch.where(mask, torch.arange(self.num_slots, device=self.device), NO_SLOT)

    def _base(self, pool: PagePool) -> Tensor | None:
        return None if pool.field.initial is None else self.shared[pool.field.initial]

    def _write_pages(self, pages: Mapping[str, PageWrites], slots: Tensor) -> None:
        for name, writes in pages.items():
            pool = self.pages[name]
            pool.write(writes, slots, self._base(pool), self.context_index)

    def _new_ids(self, valid: Tensor | None, number: int) -> Tensor:
        if valid is None:
            ids = self.next_id + torch.arange(number, device=self.device)
            self.next_id += number
            return ids
        ids = self.next_id + valid.cumsum(0) - 1
        self.next_id += valid.sum()
        return torch.where(valid, ids, NO_BRANCH)

    def _place(
        self,
        slots: Tensor,
        columns: Mapping[str, Tensor | int],
        state: Mapping[str, Tensor],
        status: int | Tensor,
    ) -> None:
        """Writes rows into `slots`, `[M]`; entries that are `NO_SLOT` are skipped."""
        fields = [self.status, *(getattr(self, name) for name in columns)]
        fields += [self.state[name] for name in state]
        values = [status, *columns.values(), *state.values()]
        write_rows(fields, slots, [x.contiguous() if isinstance(x, Tensor) else x for x in values])
