"""The two stores of `branchrt bench transcripts`: a frontier with its lineage, and plain copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from branchrt_gym.branch_step import Batch, Expansion, Verdicts, branch_step
from branchrt_gym.contract import Contract, log
from branchrt_gym.frontier import Frontier

__all__ = ["Batches", "Copies", "TranscriptSizes", "Turn", "branched", "exported", "spoken"]

VOCABULARY = 1 << 17

Batches = dict[str, Tensor]
"""Padded batches of `B` trajectories, by name.

`tokens: [B, L] int32`, `mask: [B, L] bool`, `step: [B, L] int64` (the turn of each token),
`length: [B, T] int32` (tokens of each turn), `reward: [B, T] float32` and `turns: [B] int64`.
"""


@dataclass(frozen=True)
class TranscriptSizes:
    """The size of the comparison.

    Attributes:
        trajectories: In all.
        roots: Tasks; each has as many of the trajectories, or one more.
        shared_turns: First turns, which the trajectories of a root share.
        own_turns: Turns of each trajectory after them.
        tokens: Room for the tokens of a turn.
        least: Tokens of a turn at least; from there to `tokens` all are equally likely.
    """

    trajectories: int = 1000
    roots: int = 1
    shared_turns: int = 12
    own_turns: int = 4
    tokens: int = 256
    least: int = 1

    def __post_init__(self) -> None:
        """Checks the sizes against each other."""
        for name, low, high, of in (
            ("roots", 1, self.trajectories, "the trajectories"),
            ("least", 0, self.tokens, "the tokens of a turn"),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(
                    f"`{name}` is {getattr(self, name)}; expected {low} … {high}, {of}"
                )
        for name, low in (("shared_turns", 0), ("own_turns", 1), ("tokens", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"`{name}` is {getattr(self, name)}; expected {low} or more")

    @property
    def turns(self) -> int:
        """Turns of a trajectory."""
        return self.shared_turns + self.own_turns

    @property
    def roots_named(self) -> str:
        """The number of roots, in words."""
        return f"{self.roots:,} root{'s' * (self.roots > 1)}"

    @property
    def root_of(self) -> NDArray[np.int64]:
        """The root of each trajectory, ascending."""
        return np.arange(self.trajectories) * self.roots // self.trajectories

    @property
    def stored_once(self) -> int:
        """Turns there are, a shared one counted once."""
        return self.roots * self.shared_turns + self.trajectories * self.own_turns


@dataclass(frozen=True)
class Turn:
    """What is said in one turn: by each root where the turn is shared, else by each trajectory.

    Attributes:
        tokens: `[M, W] int32`; behind `length` they mean nothing, and no batch may show them.
        length: `[M] int32`.
        reward: `[M] float32`.
    """

    tokens: NDArray[np.int32]
    length: NDArray[np.int32]
    reward: NDArray[np.float32]


def spoken(sizes: TranscriptSizes, seed: int) -> list[Turn]:
    """Draws all turns; both stores are given these."""
    chance = np.random.default_rng(seed)
    turns = []
    for number in range(sizes.turns):
        rows = sizes.roots if number < sizes.shared_turns else sizes.trajectories
        turns.append(
            Turn(
                chance.integers(1, VOCABULARY, (rows, sizes.tokens), dtype=np.int32),
                chance.integers(sizes.least, sizes.tokens + 1, rows, dtype=np.int32),
                chance.random(rows, dtype=np.float32),
            )
        )
    return turns


def branched(sizes: TranscriptSizes, turns: list[Turn]) -> tuple[Frontier, Tensor]:
    """Plays the turns on a frontier; returns it and the branch id of each trajectory.

    A payload is the row of a branch in the turn: its root, and once it has branched its trajectory.
    """
    frontier = Frontier(
        sizes.trajectories,
        sizes.roots,
        Contract({"tokens": log((sizes.tokens,), torch.int32), "length": log((), torch.int32)}),
        lineage_capacity=sizes.roots + sizes.stored_once,  # a root's birth is an entry too
    )
    frontier.start(seed=0, payloads=range(sizes.roots))

    def play(number: int, batch: Batch) -> Expansion:
        rows, parents = np.array(batch.payloads, dtype=np.int64), np.arange(len(batch))
        if number == sizes.shared_turns:
            rows, parents = np.arange(sizes.trajectories), sizes.root_of
        turn = turns[number]
        return Expansion(
            parents=parents,
            payloads=rows.tolist(),
            rewards=turn.reward[rows],
            done=np.zeros(len(rows), dtype=bool),
            log={"tokens": turn.tokens[rows], "length": turn.length[rows]},
        )

    def verify(batch: Batch) -> Verdicts:
        return Verdicts(passed=[False] * len(batch), score=[0] * len(batch))

    for number in range(sizes.turns):
        branch_step(frontier, partial(play, number), verify)
    slots = torch.tensor(frontier.payloads).argsort()
    return frontier, frontier.branch_id[slots]


def exported(frontier: Frontier, branch_ids: Tensor) -> Batches:
    """Exports trajectories of the lineage."""
    paths = frontier.trajectories(branch_ids)
    tokens, mask, step = paths.packed("tokens", paths.log["length"])
    return {
        "tokens": tokens,
        "mask": mask,
        "step": step,
        "length": paths.log["length"],
        "reward": paths.reward,
        "turns": paths.length,
    }


class Copies:
    """The naive store: every trajectory holds a copy of all its turns.

    Attributes:
        tokens: `[sum of length] int32`, of all trajectories' turns, one behind the other.
        length: `[B, T] int32`.
        reward: `[B, T] float32`.
    """

    def __init__(self, sizes: TranscriptSizes, turns: list[Turn]) -> None:
        """Copies the turns into each trajectory."""
        everyone = np.arange(sizes.trajectories)
        rows = [sizes.root_of] * sizes.shared_turns + [everyone] * sizes.own_turns
        said = list(zip(turns, rows, strict=True))
        self.length = np.stack([turn.length[row] for turn, row in said], axis=1)
        self.reward = np.stack([turn.reward[row] for turn, row in said], axis=1)
        meant = np.arange(sizes.tokens) < self.length[:, :, None]
        self.tokens = np.stack([turn.tokens[row] for turn, row in said], axis=1)[meant]

    @property
    def nbytes(self) -> int:
        """The bytes it holds."""
        return self.tokens.nbytes + self.length.nbytes + self.reward.nbytes

    def padded_nbytes(self, wide: int) -> int:
        """The bytes it would hold if each turn took `wide` tokens."""
        return self.nbytes + (self.length.size * wide - self.tokens.size) * self.tokens.itemsize

    def export(self) -> Batches:
        """Pads, in plain NumPy: of four ways tried the fastest."""
        trajectories, turns = self.length.shape
        size = self.length.sum(1)
        mask = np.arange(size.max()) < size[:, None]
        tokens = np.zeros(mask.shape, dtype=np.int32)
        tokens[mask] = self.tokens
        step = np.full(mask.shape, turns)
        step[mask] = np.repeat(np.tile(np.arange(turns), trajectories), self.length.ravel())
        batches = {
            "tokens": tokens,
            "mask": mask,
            "step": step,
            "length": self.length,
            "reward": self.reward,
            "turns": np.full(trajectories, turns),
        }
        return {name: torch.from_numpy(values) for name, values in batches.items()}
