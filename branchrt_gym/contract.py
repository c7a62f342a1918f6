"""The state contract: where each piece of an environment's state lives, and the hooks that use it.

An environment declares its state as named fields of four kinds. The runtime works from this
declaration: it stores `shared` fields once per context, copies `branch` rows on a fork and a page
of a `paged` field where a branch first writes, and puts `log` entries into the lineage. It never
expands a shared field to the branches that read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.errors import ContractError
from branchrt_gym.pages import Pages, PageWrites

__all__ = [
    "BranchEnv",
    "Branches",
    "Contract",
    "Field",
    "InitialKernel",
    "ObservationKernel",
    "Transition",
    "TransitionKernel",
    "branch",
    "log",
    "paged",
    "read_shared",
    "shared",
]

KINDS = ("shared", "branch", "paged", "log")
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
# The frontier's own columns and the lineage's: a field of the same name would be ambiguous.
RESERVED = (
    "action",
    "branch_id",
    "context_index",
    "depth",
    "flags",
    "forks",
    "key",
    "last_entry",
    "parent_entry",
    "parent_id",
    "reward",
    "root",
    "status",
    "verdict_score",
)

Kind = Literal["shared", "branch", "paged", "log"]
Observation = Any  # a Tensor, or a tuple or dict of them, as the observation space is built


@dataclass(frozen=True)
class Field:
    """One field of the state.

    Attributes:
        kind: Where the field lives: `"shared"`, `"branch"`, `"paged"` or `"log"`.
        shape: Its shape for one context (`shared`), branch or transition; static.
        dtype: Its torch dtype.
        per_context: For `shared`: stored as `[C, *shape]` (True) or once for all contexts,
            `[*shape]` (False).
        initial: For `paged`: the shared field that a fresh branch reads, None for zeros.
        page_size: For `paged`: entries of a page, None for the choice of
            `page_pool.page_size`.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    per_context: bool = True
    initial: str | None = None
    page_size: int | None = None


def shared(shape: tuple[int, ...], dtype: torch.dtype, *, per_context: bool = True) -> Field:
    """Declares a field that all branches of a context share; written by `initial_shared` only."""
    return Field("shared", shape, dtype, per_context)


def branch(shape: tuple[int, ...], dtype: torch.dtype) -> Field:
    """Declares a small field that each branch has for itself; its row is copied on a fork."""
    return Field("branch", shape, dtype)


def paged(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    initial: str | None = None,
    page_size: int | None = None,
) -> Field:
    """Declares a large field that each branch has for itself and of which it writes a little.

    A page is copied when a branch first writes to it; until then it is shared with the branch's
    relatives, and where none of them wrote it is read from the context. Where most of the field is
    written anyway, `branch` is the better kind.

    Args:
        shape: `(W,)`, entries of the field of one branch.
        dtype: Their dtype.
        initial: A per-context shared field of shape `(W,)` and the same dtype, which a fresh
            branch reads; None for zeros.
        page_size: Entries of a page; None for the choice of `page_pool.page_size`.
    """
    return Field("paged", shape, dtype, initial=initial, page_size=page_size)


def log(shape: tuple[int, ...], dtype: torch.dtype) -> Field:
    """Declares a field with one entry per transition, kept in the lineage, never read back."""
    return Field("log", shape, dtype)


@dataclass(frozen=True)
class Contract:
    """The declared fields of an environment, validated.

    Raises:
        ContractError: On construction, naming the first wrong field and what is wrong with it.
    """

    fields: Mapping[str, Field]

    def __post_init__(self) -> None:
        """Checks each field; see the class."""
        for name, field in self.fields.items():
            _check_field(name, field)
            if field.kind == "paged":
                _check_paged(name, field, self.fields)

    def of(self, kind: Kind) -> dict[str, Field]:
        """Returns the fields of one kind, in the order of their declaration."""
        return {name: field for name, field in self.fields.items() if field.kind == kind}

    @property
    def not_in_registers(self) -> str | None:
        """Says which field keeps kernels from holding a whole branch, or is None."""
        for name, field in self.fields.items():
            if field.kind == "branch" and field.shape:
                return f"the `branch` field `{name}` is not a scalar"
            if field.kind == "paged":
                return f"`{name}` is paged, and pages are taken between levels"
        return None

    @property
    def hash(self) -> str:
        """A digest of names, kinds, shapes and dtypes: the contract's version in saved files."""
        rows = [
            [name, field.kind, list(field.shape), str(field.dtype), field.per_context]
            + ([field.initial, field.page_size] if field.kind == "paged" else [])
            for name, field in self.fields.items()
        ]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def _check_field(name: str, field: Field) -> None:
    where = f"field `{name}`"
    if not isinstance(name, str) or not name.isidentifier():
        raise ContractError(f"{where} has no usable name; expected a Python identifier")
    if name in RESERVED:
        raise ContractError(
            f"{where} has the name of a column that the frontier keeps itself; choose another "
            f"(taken: {', '.join(RESERVED)})"
        )
    if not isinstance(field, Field):
        raise ContractError(
            f"{where} is {type(field).__name__}; expected a Field, "
            "made by shared(), branch(), paged() or log()"
        )
    if field.kind not in KINDS:
        raise ContractError(f"{where} has kind {field.kind!r}; expected one of {', '.join(KINDS)}")
    static = isinstance(field.shape, tuple) and all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in field.shape
    )
    if not static:
        raise ContractError(
            f"{where} has shape {field.shape!r}; expected a tuple of non-negative ints, fixed "
            "when the environment is constructed"
        )
    if field.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ContractError(
            f"{where} has dtype {field.dtype!r}; expected a torch dtype of fixed size: {known}"
        )


def _check_paged(name: str, field: Field, fields: Mapping[str, Field]) -> None:
    where = f"field `{name}`"
    if len(field.shape) != 1 or not field.shape[0]:
        raise ContractError(
            f"{where} is `paged` with shape {field.shape}; expected one number of entries, at "
            "least 1: flatten it, since pages are runs of entries"
        )
    size = field.page_size
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ContractError(f"{where} has page_size {size!r}; expected entries, at least 1")
    if field.initial is None:
        return
    base = fields.get(field.initial)
    wanted = Field("shared", field.shape, field.dtype)
    if base != wanted:
        found = "no field" if base is None else f"a {base.kind} field of {base.dtype} {base.shape}"
        raise ContractError(
            f"{where} has initial={field.initial!r}, which is {found}; expected a shared field, "
            f"one row per context, of {field.dtype} and shape {field.shape}"
        )


class Branches(NamedTuple):
    """What an environment's hooks see of `M` branches.

    Attributes:
        context_index: `[M] int64`, which row of the per-context shared fields each one reads.
        depth: `[M] int32`, transitions since the root.
        state: The `branch` fields, each `[M, *shape]`; not to be written in place.
        key: `[M] int64`, the random key of this transition, fresh for each (branch, depth): a
            pure function of the branch's ancestry. None in `observation`, and in `transition` of
            an environment whose `uses_key` is False.
        pages: The `paged` fields; see `Pages.read` and `Pages.write`.
    """

    context_index: Tensor
    depth: Tensor
    state: Mapping[str, Tensor]
    key: Tensor | None = None
    pages: Mapping[str, Pages] = {}


class Transition(NamedTuple):
    """What one environment step returns for `M` branches.

    Attributes:
        state: The new `branch` fields, each `[M, *shape]`.
        reward: `[M]` in the environment's `reward_dtype`.
        terminated: `[M] bool`.
        truncated: `[M] bool`.
        solved: `[M] bool`, the environment's own verdict: this branch solves its root.
        log: The `log` fields' entries of this transition, each `[M, *shape]`.
        pages: For `paged` fields that are written, what `Pages.write` returned.
    """

    state: Mapping[str, Tensor]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    solved: Tensor
    log: Mapping[str, Tensor] = {}
    pages: Mapping[str, PageWrites] = {}


class TransitionKernel(NamedTuple):
    """An environment's transition as a Triton device function, for the fused tier of `search`.

    `function` is decorated with `triton.jit` and takes, for a block of branches,

        transition(shared, context, depth, key, state, action, params: tl.constexpr)

    with `shared` pointers to the shared fields in the contract's order, then to `tables`;
    `context` int64, the row that each branch reads; `depth` int32; `key` int64 (the bits of
    `Branches.key`); `state` the scalar `branch` fields in the contract's order, each in its own
    dtype; `action` int32; and `params` the tuple below, known when it is compiled. It returns

        state, reward, terminated, truncated, solved

    where `state` is a tuple in the same order and the last three are boolean blocks. It must equal
    `BranchEnv.transition` bit for bit, which `branchrt certify` checks on a CUDA device, or with
    `--tier fused` and TRITON_INTERPRET=1; it is also run on places without a branch, with the state
    of another one, and what it returns there is not looked at.

    A shared field of shape `(W,)` has entry `i` of a branch's context at `context * W + i`, one
    that is not per context at `i`. `fold_device`, `bounded_device` and `mix32_device` of
    `branchrt_gym.kernels.keys_triton` are the torch functions of those names; `key` means nothing
    where `uses_key` is False. `examples/own_kernel.py` is one to copy from.

    Attributes:
        function: The device function.
        params: Ints of the environment that it is compiled for.
        tables: Constant tensors beside the shared fields, on the device that was asked for.
    """

    function: Any
    params: tuple[int, ...] = ()
    tables: tuple[Tensor, ...] = ()


class InitialKernel(NamedTuple):
    """An environment's first state as a Triton device function, for fused steps.

    `function` is decorated with `triton.jit` and takes, for a block of roots,

        initial(shared, context, key, params: tl.constexpr)

    with `shared`, `context` and `params` as in `TransitionKernel`, and `key` int64, the episodes'
    random keys. It returns a tuple of the scalar `branch` fields in the contract's order, and must
    equal `BranchEnv.initial` bit for bit; it is also run where nothing restarts.

    Attributes:
        function: The device function.
        params: Ints of the environment that it is compiled for.
        tables: Constant tensors beside the shared fields, on the device that was asked for.
    """

    function: Any
    params: tuple[int, ...] = ()
    tables: tuple[Tensor, ...] = ()


class ObservationKernel(NamedTuple):
    """An environment's observation as a Triton device function, for fused steps.

    `function` is decorated with `triton.jit` and takes, for a block of branches,

        observation(shared, context, depth, state, params: tl.constexpr)

    with everything as in `TransitionKernel`. It returns a tuple with an entry for each leaf of the
    observation space, in its order: a block for a leaf of shape `()`, else a tuple of blocks, the
    leaf's entries in row-major order. It must equal `BranchEnv.observation` bit for bit (`/` of
    float32 does not, `tl.div_rn` does), and is also run on places without a branch.

    Attributes:
        function: The device function.
        params: Ints of the environment that it is compiled for.
        tables: Constant tensors beside the shared fields, on the device that was asked for.
    """

    function: Any
    params: tuple[int, ...] = ()
    tables: tuple[Tensor, ...] = ()


class BranchEnv:
    """An environment's rules, batched over branches in torch.

    Subclasses set `contract`, the two spaces and `reward_dtype` (in `__init__` where they depend
    on parameters) and write the four hooks. The hooks are pure: they return new tensors on the
    device of their arguments and write nothing in place, `shared` fields least of all. Rows do
    not depend on each other. Decisions rest on integers or fixed point, so that results are
    equal, not close, on every device.

    Attributes:
        contract: The declared state.
        single_observation_space: The space of one branch's observation.
        single_action_space: The space of one action; `search` and expansion need `Discrete`.
        reward_dtype: The dtype of `Transition.reward`.
        score: The scalar `branch` field by which `search` ranks, int32 or int64.
        uses_key: Whether `transition` looks at `branches.key`. An environment without chance
            sets it to False and is spared the keys.
        uses_branch_key: Whether an expansion gives `branches.key` as the children's own keys, the
            same in every transition of a branch; for environments whose luck is part of a state
            that lives elsewhere, see `branchrt_gym.wrappers.ObjectVectorEnv`.
        metadata: As in Gymnasium; `render_modes` and `render_fps`.
    """

    contract: Contract
    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]
    reward_dtype: torch.dtype = torch.float32
    score: str = "score"
    uses_key: bool = True
    uses_branch_key: bool = False
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Makes the `shared` fields of `C` contexts; runs at a reset only.

        Args:
            keys: `[C] int64`, one random key per context.

        Returns:
            Each shared field, `[C, *shape]`, or `[*shape]` if it is not per context.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `initial_shared`")

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Makes the first state of `M` roots' episodes; runs at every restart, so it is cheap.

        Args:
            shared: The shared fields.
            context_index: `[M] int64`.
            keys: `[M] int64`, the episodes' random keys.

        Returns:
            Each `branch` field, `[M, *shape]`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `initial`")

    def begin(
        self,
        shared: Mapping[str, Tensor],
        context_index: Tensor,
        keys: Tensor,
        *,
        roots: Tensor,
        slots: Tensor | None,
        seeds: Tensor | None,
    ) -> dict[str, Tensor]:
        """Makes first states as `initial` does, for environments that must know whose they are.

        Args:
            shared: As in `initial`.
            context_index: As in `initial`.
            keys: As in `initial`.
            roots: `[M] int64`.
            slots: `[M] int64`, where the roots' last branches stood and the next will; None where
                all roots start, in slots `0 … R - 1`.
            seeds: `[M] int64`, of roots that start anew; None for a root's next episode.

        Returns:
            Each `branch` field, `[M, *shape]`.
        """
        return self.initial(shared, context_index, keys)

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Steps `M` branches by one action each.

        Args:
            shared: The shared fields; read them through `read_shared`.
            branches: The branches before the step.
            action: `[M, …]`, as the action space's shape and dtype say.

        Returns:
            The transition, rows in the same order.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `transition`")

    def transition_kernel(self, device: torch.device) -> TransitionKernel | None:
        """Returns `transition` as a Triton device function, or None; see `TransitionKernel`.

        With one, `search` runs as a single kernel. Import Triton inside this method, so that the
        environment works without it.
        """
        return None

    def initial_kernel(self, device: torch.device) -> InitialKernel | None:
        """Returns `initial` as a Triton device function, or None; see `InitialKernel`.

        With this, `transition_kernel` and `observation_kernel`, a vector env's step on a GPU runs
        as one captured kernel.
        """
        return None

    def observation_kernel(self, device: torch.device) -> ObservationKernel | None:
        """Returns `observation` as a Triton device function, or None; see `ObservationKernel`."""
        return None

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> Observation:
        """Observes `M` branches.

        Returns:
            `[M, …]`, or a tuple or dict of such tensors as the observation space is built.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `observation`")

    def render(
        self, shared: Mapping[str, np.ndarray], branch: Mapping[str, np.ndarray], mode: str
    ) -> np.ndarray | str:
        """Draws one branch.

        Args:
            shared: The shared fields of the branch's context, one row each.
            branch: The branch's fields and its `depth`.
            mode: One of `metadata["render_modes"]`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `render`")


def read_shared(field: Tensor, context_index: Tensor, position: Tensor) -> Tensor:
    """Reads `field[context_index, position]` without expanding the field to the branches.

    Args:
        field: `[C, W]`, a shared field.
        context_index: `[M] int64`.
        position: `[M]` or `[M, J] int64`, entries in `0 … W - 1`.

    Returns:
        The entries, in the shape of `position` and the dtype of `field`.
    """
    offset = context_index * field.shape[1]
    if position.ndim == 2:
        offset = offset[:, None]
    index = position + offset
    return field.view(-1).index_select(0, index.view(-1)).view(index.shape)
