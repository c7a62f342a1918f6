"""`BranchingVectorEnv`: a Gymnasium vector environment whose population can fork and prune."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from branchrt_gym.autoreset import begin_masked, begin_next, begin_seeded, restart, settle
from branchrt_gym.branch_step import Policy, Verifier, branch_step
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import BranchEnv
from branchrt_gym.errors import ClosedError, NotResetError, OptionsError, PagePoolFullError
from branchrt_gym.frontier import Frontier, check_device
from branchrt_gym.fused_step import StepTier, plan_step
from branchrt_gym.lineage import entry_flags
from branchrt_gym.page_pool import PagePool
from branchrt_gym.pages import Pages, PageWrites
from branchrt_gym.saving import Snapshot
from branchrt_gym.seeding import Rng, check_seeds
from branchrt_gym.slots import DONE, FREE, NO_ROOT, Slots, read_array, read_mask
from branchrt_gym.structure import (
    action_bounds,
    action_layout,
    map_leaves,
    rest_action,
    rest_observation,
)
from branchrt_gym.trajectories import Trajectories

__all__ = ["BranchingVectorEnv"]

MAX_CONTEXTS = 64  # contexts made by default: many roots may index one


Method = TypeVar("Method", bound=Callable[..., Any])


def _whole_or_nothing(method: Method) -> Method:
    """With `debug`, puts the population back if a hook fails half-way through a call."""

    @wraps(method)
    def guarded(self: BranchingVectorEnv, *args: Any, **kwargs: Any) -> Any:
        if not (self.env.debug and self._ready) or self.closed:
            return method(self, *args, **kwargs)
        before = Snapshot.take(self.frontier)
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            before.put(self.frontier)
            raise

    return cast(Method, guarded)


class BranchingVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` slots over `num_roots` roots over `num_contexts` contexts.

    With the defaults (one root per slot, no forks) this is an ordinary Gymnasium vector
    environment. `num_roots < num_envs` leaves free slots to `fork` into. A slot that is not live
    steps as: a constant observation, reward 0, no flags, state untouched; its action is not
    looked at, and `info["live"]` (the mask after the step) says so.

    Autoreset restarts roots, not branches: a branch that ends while its root lives on frees its
    slot; when a root's last live branch ends, the root is replaced by its next episode, with a
    context drawn by the episode's key, in the lowest slot among those that ended last. In
    `DISABLED` mode ended branches stay readable until pruned, compacted away or reset by mask.

    `reset(seed=…)` makes the contexts and starts every root at episode 0, root `r` in context
    `r % num_contexts`. `reset()` keeps the contexts and starts each root's next episode.
    `reset(options={"reset_mask": mask})` restarts the roots of the masked slots, each in its
    lowest masked slot; it is an error if that would end a live branch outside the mask.

    Gymnasium's vector wrappers do not forward `fork`: call `envs.unwrapped.fork`.

    Args:
        env: The rules.
        num_envs: `N`, slots.
        num_roots: `R`; None for one per slot.
        num_contexts: `C`; None for `min(R, 64)`.
        autoreset_mode: When an ended root starts again: one of Gymnasium's three modes.
        output: `"numpy"` arrays in and out, rewards float64; `"torch"` tensors on `device`,
            rewards in the environment's own dtype, in buffers that a later step may reuse.
        copy: With `output="torch"`: return tensors that no later step writes to (eager steps
            always do). False spares fused steps the copies.
        device: Where the population lives.
        record_lineage: Keep trajectories; None for `num_roots < num_envs`.
        lineage_capacity: Entries of the lineage; None for 256 per slot, at
            least 2**16 and at most 2**24.
        page_capacity: Pages of each `paged` field's pool; None for pools that grow.
        when_full: Called with the frontier when a step finds a pool full: returns the slots or the
            mask of branches to prune, as often as it takes, or none for the error that there is
            without it. What is pruned does not take the step. It must not change the frontier
            itself. `branch_step` does not call it.
        max_episode_steps: Truncate branches at this depth.
        render_mode: One of the environment's `metadata["render_modes"]`.
        debug: Check every hook's output and every write into shared fields, and raise CUDA
            errors at once.
        tier: How steps run; each gives the same result, bit for bit. `"eager"`, plain torch,
            anywhere; `"fused"`, one or two Triton kernels in a CUDA graph, with the environment's
            own `transition_kernel`, `initial_kernel` and `observation_kernel` inlined. Fused steps
            need a root for each slot, torch in and out, and no lineage; after a fork, a compaction
            or an expansion steps are eager until the next full reset. `"auto"` fuses on a CUDA
            device where that fits; `step_tier` says how the last step ran.
    """

    def __init__(
        self,
        env: BranchEnv,
        num_envs: int = 1,
        *,
        num_roots: int | None = None,
        num_contexts: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        output: Literal["numpy", "torch"] = "numpy",
        copy: bool = True,
        device: str | torch.device = "cpu",
        record_lineage: bool | None = None,
        lineage_capacity: int | None = None,
        page_capacity: int | None = None,
        when_full: Callable[[Frontier], Slots | Sequence[bool]] | None = None,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        debug: bool = False,
        tier: StepTier = "auto",
    ) -> None:
        """Allocates the population; see the class for the arguments."""
        if not isinstance(env, BranchEnv):
            raise TypeError(f"`env` is {type(env).__name__}; expected a BranchEnv")
        if num_envs < 1:
            raise ValueError(f"`num_envs` is {num_envs}; expected 1 or more slots")
        roots = num_envs if num_roots is None else num_roots
        if not 1 <= roots <= num_envs:
            raise ValueError(f"`num_roots` is {roots}; expected 1 … {num_envs}, the slots")
        contexts = min(roots, MAX_CONTEXTS) if num_contexts is None else num_contexts
        if not 1 <= contexts <= roots:
            raise ValueError(f"`num_contexts` is {contexts}; expected 1 … {roots}, the roots")
        if output not in ("numpy", "torch"):
            raise ValueError(f'`output` is {output!r}; expected "numpy" or "torch"')
        modes = env.metadata.get("render_modes", [])
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"`render_mode` is {render_mode!r}; expected None or one of {modes}")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"`max_episode_steps` is {max_episode_steps}; expected 1 or more")
        record = roots < num_envs if record_lineage is None else record_lineage
        if lineage_capacity is None:
            lineage_capacity = max(min(256 * num_envs, 1 << 24), 4 * num_envs, 1 << 16)
        if record and lineage_capacity < roots:
            raise ValueError(
                f"`lineage_capacity` is {lineage_capacity}; expected at least {roots}, an entry "
                "for each root"
            )
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError as error:
            expected = ", ".join(repr(mode.value) for mode in AutoresetMode)
            raise ValueError(
                f"`autoreset_mode` is {autoreset_mode!r}; expected an AutoresetMode, or {expected}"
            ) from error
        self.env = CheckedEnv(env, debug=debug)
        self.num_envs = num_envs
        self.num_roots = roots
        self.num_contexts = contexts
        self.output = output
        self.copy = copy
        self.device = check_device(device)
        self.max_episode_steps = max_episode_steps
        if when_full is not None and not callable(when_full):
            raise TypeError(f"`when_full` is {type(when_full).__name__}; expected a callable")
        self.when_full = when_full
        self.render_mode = render_mode
        self.metadata = {**deepcopy(env.metadata), "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space = batch_space(env.single_observation_space, num_envs)
        self.action_space = batch_space(env.single_action_space, num_envs)
        shape, dtype = action_layout(env.single_action_space)
        self.frontier = Frontier(
            num_envs,
            roots,
            env.contract,
            action_shape=shape,
            action_dtype=dtype,
            reward_dtype=env.reward_dtype,
            lineage_capacity=lineage_capacity if record else 0,
            page_capacity=page_capacity,
            device=self.device,
            debug=debug,
        )
        self._ready = False
        self._rest = map_leaves(self._tensor, rest_observation(env.single_observation_space))
        self._rest_action = self._tensor(rest_action(env.single_action_space))
        self._bounds = action_bounds(env.single_action_space, self.device)
        self._range: tuple[float, float] | None = None  # the bounds where they are two numbers
        if self._bounds is not None and self.device.type == "cpu" and self._rest_action.ndim == 0:
            self._range = self._bounds[0].item(), self._bounds[1].item()
        self.step_tier: Literal["eager", "fused"] | None = None
        self._tier: StepTier = tier
        self._fused = plan_step(self, tier, self._rest, self._bounds)

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes kernels, buffers and graph of fused steps for itself."""
        return {**self.__dict__, "_fused": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See `__getstate__`; steps are eager until the copy's first full reset."""
        self.__dict__.update(state)
        self._fused = plan_step(self, self._tier, self._rest, self._bounds)

    # Gymnasium's interface ----------------------------------------------------------------

    @_whole_or_nothing
    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts roots; see the class.

        Args:
            seed: An int `s`, for `s, s + 1, …`, or one int per root.
            options: `{"reset_mask": [N] bool}`, or None; never changed.

        Returns:
            Observations of all slots, and the infos.

        Raises:
            OptionsError: For unknown options or a mask that cannot be.
            ValueError: For negative seeds or a wrong number of them.
        """
        if self.closed:
            raise ClosedError("`reset` after `close`; make a new environment")
        options = {} if options is None else options
        unknown = sorted(map(repr, set(options) - {"reset_mask"}))
        if unknown:
            raise OptionsError(
                f"`options` has {', '.join(unknown)}; expected nothing but `reset_mask`"
            )
        seeds = None if seed is None else check_seeds(seed, self.num_roots).to(self.device)
        begun = None
        if "reset_mask" in options:
            mask = self._reset_mask(options["reset_mask"])
            with self._in_place():
                begun = begin_masked(self.frontier, self.env, mask, seeds, self.num_contexts)
        elif seeds is None and self._ready:
            begin_next(self.frontier, self.env, self.num_contexts)
        else:
            super().reset(seed=seed if isinstance(seed, int) else None)
            if seeds is None:
                first = int(self.np_random.integers(2**62))
                seeds = check_seeds(first, self.num_roots).to(self.device)
            begin_seeded(self.frontier, self.env, seeds, self.num_contexts)
        if begun is None and self._fused is not None:
            self._fused.started()
        self._ready = True
        live = self.frontier.live
        info = self._info(torch.zeros_like(live), live if begun is None else begun)
        return self._give(self._observe(self.frontier.status != FREE)), info

    @_whole_or_nothing
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every live branch; restarts ended roots as the autoreset mode says.

        Args:
            actions: `[N, …]`, one per slot; those of slots that are not live are ignored.

        Returns:
            Observations, rewards, terminated, truncated, and infos: `live` (after the step),
            `solved`, and in SAME_STEP `final_obs` and `final_info`.
        """
        self._require_reset("step")
        if self._fused is not None and self._fused.ready(actions):
            self.step_tier = "fused"
            return self._fused.step(actions)
        self.step_tier = "eager"
        with self._in_place():
            return self._step(actions)

    def _step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The step in plain torch, on any population."""
        frontier, env = self.frontier, self.env
        live = frontier.live
        action = self._actions(actions, live)
        recorded = frontier.lineage.recorded
        if recorded:
            cpu = self.device.type == "cpu"
            frontier.make_room((int(live.sum()) if cpu else self.num_envs) + self.num_roots)
        disabled = self.autoreset_mode == AutoresetMode.DISABLED
        waiting = torch.zeros_like(live) if disabled else frontier.status == DONE

        step = env.transition(frontier.shared, frontier.branches(with_key=env.uses_key), action)
        for name, writes in step.pages.items():
            self._find_pages(frontier.pages[name], writes)
        live = live & frontier.live
        terminated = step.terminated & live
        truncated = step.truncated & live
        if self.max_episode_steps is not None:
            truncated |= live & (frontier.depth >= self.max_episode_steps - 1)
        solved = step.solved & live
        reward = torch.where(live, step.reward, 0)
        flags = None
        if recorded:
            flags = entry_flags(live, terminated, truncated, solved)
        frontier.advance(live, action, step, flags)

        ended = terminated | truncated
        info: dict[str, Any] = {}
        visible = live | waiting
        if self._happens(ended):
            if disabled:
                frontier.release(ended, DONE)
            else:
                reserved = settle(frontier, ended)
                if self.autoreset_mode == AutoresetMode.SAME_STEP:
                    info = self._final(reserved, solved, live)
                    waiting = waiting | reserved
                    solved = solved & ~reserved
        if self._happens(waiting):
            restart(frontier, env, waiting, self.num_contexts)
        info = {**self._info(solved, visible), **info}
        observation = self._give(self._observe(visible))
        return (
            observation,
            self._give(reward.to(torch.float64) if self.output == "numpy" else reward),
            self._give(terminated),
            self._give(truncated),
            info,
        )

    def _find_pages(self, pool: PagePool, writes: PageWrites) -> None:
        """Makes room for what the live branches write, pruning as `when_full` says."""
        frontier, before = self.frontier, self.frontier.live
        while True:
            try:
                frontier.find_pages(pool, writes, frontier.live)
                return
            except PagePoolFullError as error:
                mask = torch.zeros_like(before)
                if self.when_full is not None:
                    which = self.when_full(frontier)
                    try:
                        mask = read_mask(which, frontier.status, check=True)
                    except (TypeError, ValueError) as wrong:
                        kind = TypeError if isinstance(wrong, TypeError) else ValueError
                        raise kind(f"`when_full` failed: {wrong}") from wrong
                pruned = int((before & ~frontier.live).sum())
                if bool((mask & frontier.live).any()):
                    self.prune(mask)
                elif pruned:
                    text = str(error).removesuffix("Nothing was changed")
                    raise PagePoolFullError(
                        f"{text}{pruned} branches that `when_full` named are pruned, and it "
                        "named no more"
                    ) from error
                else:
                    raise

    def render(self) -> tuple[Any, ...] | None:
        """Draws every slot: a tuple of `N` frames (`rgb_array`) or texts (`ansi`)."""
        self._require_reset("render")
        if self.render_mode is None:
            return None
        frontier = self.frontier
        shared = {name: field.cpu().numpy() for name, field in frontier.shared.items()}
        per_context = {
            name for name, field in frontier.contract.of("shared").items() if field.per_context
        }
        state = {name: column.cpu().numpy() for name, column in frontier.state.items()}
        state["depth"] = frontier.depth.cpu().numpy()
        state |= {name: self._whole(pages) for name, pages in frontier.branches().pages.items()}
        context = frontier.context_index.tolist()
        return tuple(
            self.env.render(
                {n: v[context[slot]] if n in per_context else v for n, v in shared.items()},
                {name: column[slot] for name, column in state.items()},
                self.render_mode,
            )
            for slot in range(self.num_envs)
        )

    def _whole(self, pages: Pages) -> np.ndarray:
        every = torch.arange(pages.width, device=self.device).expand(self.num_envs, -1)
        return pages.read(every).cpu().numpy()

    # Branching ----------------------------------------------------------------------------

    def fork(self, parents: Slots, counts: int | Slots = 1, rng: Rng = "split") -> Any:
        """Copies live branches into free slots and returns the children's; `Frontier.fork`.

        A child's observation is its parent's until it steps.
        """
        self._require_reset("fork")
        return self._give(self.frontier.fork(parents, counts, rng))

    def prune(self, which: Slots | Sequence[bool]) -> None:
        """Stops branches and frees their slots; `Frontier.prune`.

        Outside DISABLED mode a root whose last live branch is pruned restarts at the next step,
        in the lowest of the pruned slots.

        Args:
            which: Slots of live branches, or a `[N] bool` mask, in which other slots are ignored.
                In DISABLED mode, ended branches are pruned too.
        """
        self._require_reset("prune")
        frontier = self.frontier
        with self._in_place():
            if self.autoreset_mode == AutoresetMode.DISABLED:
                frontier.prune(which)
                return
            mask = read_mask(which, frontier.status, frontier.synchronous, done_waits=True)
            mask = mask & frontier.live
            frontier.mark_pruned(mask)
            settle(frontier, mask)

    def compact(self) -> Any:
        """Moves the live branches to the first slots, in order; `Frontier.compact`.

        Outside DISABLED mode, slots reserved for a root's restart move along.

        Returns:
            `[N] int32`, the slot each branch came from, or `NO_SLOT`; so
            `observations[source]` are the new observations where a branch is.
        """
        self._require_reset("compact")
        keep_done = self.autoreset_mode != AutoresetMode.DISABLED
        return self._give(self.frontier.compact(keep_done=keep_done))

    @_whole_or_nothing
    def branch_step(
        self, verifier_fn: Verifier | None = None, policy: Policy | None = None, rng: Rng = "split"
    ) -> tuple[Frontier, Tensor, Tensor]:
        """Expands every live branch by every action; see `branchrt_gym.branch_step`.

        Children that end, and roots that end with them, are treated as in `step`: slots are
        freed, roots restart as the autoreset mode says. Slots do not move.

        Returns:
            The frontier, and rewards and done of all children, in order.
        """
        self._require_reset("branch_step")
        frontier, env = self.frontier, self.env
        disabled = self.autoreset_mode == AutoresetMode.DISABLED
        waiting = torch.zeros_like(frontier.live) if disabled else frontier.status == DONE
        held = frontier.status == DONE
        result = branch_step(
            frontier,
            env,
            verifier_fn,
            policy,
            rng=rng,
            max_depth=self.max_episode_steps,
            compete_done=disabled,
            more_entries=0 if disabled else self.num_envs,
            every_root=not disabled,
        )
        if not disabled:
            reserved = settle(frontier, (frontier.status == DONE) & ~held)
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                waiting = waiting | reserved
            if self._happens(waiting):
                restart(frontier, env, waiting, self.num_contexts)
        return result

    @property
    def live(self) -> Any:
        """`[N] bool`, the slots whose branches can step."""
        self.frontier.check()
        return self._give(self.frontier.live)

    @property
    def roots(self) -> Any:
        """`[N] int64`, each slot's root; `NO_ROOT` in a free slot."""
        free = self.frontier.status == FREE
        return self._give(torch.where(free, NO_ROOT, self.frontier.root))

    def observe(self) -> Any:
        """Returns the observations of all slots as they stand, without a step."""
        self._require_reset("observe")
        return self._give(self._observe(self.frontier.status != FREE))

    def trajectories(self, branch_ids: Slots) -> Trajectories:
        """Exports branches by id; see `Frontier.trajectories`."""
        self._require_reset("trajectories")
        return self.frontier.trajectories(branch_ids)

    def snapshot(self) -> Snapshot:
        """Takes the whole population, random keys and lineage; shared fields by reference."""
        self._require_reset("snapshot")
        mode = self.autoreset_mode.value
        return Snapshot.take(self.frontier, autoreset_mode=mode, num_contexts=self.num_contexts)

    def restore(self, snapshot: Snapshot) -> Any:
        """Puts a snapshot back and returns the observations, without a step.

        Raises:
            SaveFormatError: If it was taken of another contract or population size.
        """
        if self.closed:
            raise ClosedError("`restore` after `close`; make a new environment")
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"`snapshot` is {type(snapshot).__name__}; expected a Snapshot")
        snapshot.expect(
            contract=self.frontier.contract.hash,
            num_slots=self.num_envs,
            num_roots=self.num_roots,
            num_contexts=snapshot.header.get("num_contexts") and self.num_contexts,
            autoreset_mode=snapshot.header.get("autoreset_mode") and self.autoreset_mode.value,
        )
        snapshot.put(self.frontier)
        if self._fused is not None:
            self._fused.look()
        self._ready = True
        return self.observe()

    # Details ------------------------------------------------------------------------------

    def _require_reset(self, call: str) -> None:
        if self.closed:
            raise ClosedError(f"`{call}` after `close`; make a new environment")
        if not self._ready:
            raise NotResetError(f"`{call}` before the first reset; call `reset` once first")

    def _in_place(self) -> AbstractContextManager[None]:
        """Around what moves no branch to another slot, after which steps may still be fused."""
        return nullcontext() if self._fused is None else self._fused.kept()

    def _tensor(self, value: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(value)).to(self.device)

    def _happens(self, mask: Tensor) -> bool:
        """Whether any entry holds; on a GPU True, since looking would synchronise."""
        return self.device.type != "cpu" or bool(mask.numpy().any())

    def _give(self, tree: Any) -> Any:
        if self.output == "torch":
            return tree
        return map_leaves(lambda leaf: leaf.cpu().numpy(), tree)

    def _info(self, solved: Tensor, stepped: Tensor) -> dict[str, Any]:
        """Infos as Gymnasium batches them: `_key` says which slots have an entry of `key`."""
        live = self.frontier.live
        info = {
            "live": live,
            "_live": torch.ones_like(live),
            "solved": solved,
            "_solved": stepped,
        }
        return {name: self._give(values) for name, values in info.items()}

    def _final(self, reserved: Tensor, solved: Tensor, live: Tensor) -> dict[str, Any]:
        """The last observations and infos of the slots that restart in this step."""
        observation = self._observe(live)
        info = {"solved": self._give(solved & reserved), "_solved": self._give(reserved)}
        if self.output == "numpy":
            rows = np.full(self.num_envs, None, dtype=object)
            given = self._give(observation)
            for slot in reserved.nonzero().squeeze(1).tolist():
                rows[slot] = map_leaves(lambda leaf, row=slot: leaf[row], given)
            observation = rows
            if not bool(reserved.any()):
                return {}
        mask = self._give(reserved)
        return {
            "final_obs": observation,
            "_final_obs": mask,
            "final_info": info,
            "_final_info": mask,
        }

    def _observe(self, visible: Tensor) -> Any:
        frontier = self.frontier
        seen = self.env.observation(frontier.shared, frontier.branches())
        if self.device.type == "cpu" and bool(visible.numpy().all()):
            # Nothing to hide, but an observation may be a tensor that it was made from, which the
            # next step writes to.
            given = [frontier.context_index, frontier.depth]
            given += [*frontier.state.values(), *frontier.shared.values()]
            held = {tensor.untyped_storage().data_ptr() for tensor in given}

            def apart(leaf: Tensor) -> Tensor:
                return leaf.clone() if leaf.untyped_storage().data_ptr() in held else leaf

            return map_leaves(apart, seen)

        def leaf(values: Tensor, rest: Tensor) -> Tensor:
            return torch.where(visible.view(-1, *[1] * (values.ndim - 1)), values, rest)

        return map_leaves(leaf, seen, self._rest)

    def _actions(self, actions: Any, live: Tensor) -> Tensor:
        rest = self._rest_action
        given = read_array("actions", actions, self.device, "one action for each slot")
        shape = (self.num_envs, *rest.shape)
        whole = not rest.dtype.is_floating_point
        fits = given.shape == shape and (
            not whole or not (given.dtype.is_floating_point or given.dtype == torch.bool)
        )
        if not fits:
            raise ValueError(
                f"`actions` is {given.dtype} of shape {tuple(given.shape)}; expected "
                f"{'integers' if whole else 'numbers'} of shape {shape}, one action per slot"
            )
        rows = live.view(-1, *[1] * rest.ndim)
        action = torch.where(rows, given, rest.to(given.dtype))
        if self._bounds is None:
            return action.to(rest.dtype)
        if self._range is not None:
            least, most = action.aminmax()
            if self._range[0] <= least.item() and most.item() <= self._range[1]:
                return action.to(rest.dtype)
        low, high = self._bounds
        inside = action.clamp(low, high)
        if self.frontier.synchronous and not torch.equal(inside, action):
            slot = int((inside != action).nonzero()[0, 0])
            raise ValueError(
                f"`actions` has {given[slot].tolist()} for slot {slot}; expected "
                f"{low.tolist()} … {high.tolist()}"
            )
        return inside.to(rest.dtype)

    def _reset_mask(self, mask: Any) -> Tensor:
        self._require_reset("reset with a reset_mask")
        right = (
            isinstance(mask, np.ndarray | Tensor)
            and mask.shape == (self.num_envs,)
            and mask.dtype in (np.bool_, torch.bool)
        )
        if not right:
            raise OptionsError(
                f"`reset_mask` is {type(mask).__name__} of {getattr(mask, 'dtype', 'no dtype')} "
                f"and shape {tuple(getattr(mask, 'shape', ()))}; expected a bool array of shape "
                f"({self.num_envs},)"
            )
        given = read_array("reset_mask", mask, self.device, "a bool array")
        if not bool(given.any()):
            raise OptionsError("`reset_mask` has no True entry; expected at least one")
        return given
