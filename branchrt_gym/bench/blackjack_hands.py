"""Blackjack as roots and candidates: a root is a visible deal, a candidate a rollout of it.

A root shows the player's cards and the dealer's face-up card. Each candidate of it plays that deal
by basic strategy, with a face-down card and further cards of its own. It passes if it wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.envs.toy_text.blackjack import BlackjackEnv, draw_card
from torch import Tensor

from branchrt_gym.contract import Branches
from branchrt_gym.envs.blackjack import FACES, NATURAL, USABLE, Blackjack
from branchrt_gym.envs.blackjack_oracle import BlackjackOracle
from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.profile import layer
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.oracle import bounded as bounded_int
from branchrt_gym.oracle import fold as fold_int
from branchrt_gym.seeding import check_seeds, episode_key, fork_key

__all__ = ["BatchedHands", "GymnasiumHands", "Hands", "advice", "compare_with_oracle"]

STICK, HIT = 0, 1
PIECE = 1 << 15  # hands at a time on the CPU; for more, torch's threads would wait for each other
FACE_DOWN = 4 << 40  # the word of an attempt's key that its face-down card is drawn by


def advice(total: int, face_up: int, usable: int) -> int:
    """Returns basic strategy's action where one may only hit or stick, by Blackjack's observation.

    Hard hands stick from 17 on, from 13 on against 2 … 6, and at 12 against 4 … 6; hands with a
    usable ace stick from 19 on, and at 18 against 2 … 8.
    """
    if usable:
        return STICK if total >= 19 or (total == 18 and 2 <= face_up <= 8) else HIT
    low = 12 if 4 <= face_up <= 6 else 13 if 2 <= face_up <= 3 else 17
    return STICK if total >= low else HIT


class Hands(Protocol):
    """Verifies attempts at Blackjack, a wave at a time.

    Attributes:
        version: Part of each attempt's content address.
        episodes: Hands played so far.
    """

    version: str
    episodes: int

    def verify(self, roots: Any, candidates: Any) -> Verdicts:
        """Plays hands, `[M] int64` roots and candidates; see `BatchVerifier`."""

    def play(self, roots: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Plays the same hands for a controller that works with lists."""


class BatchedHands:
    """All hands of a wave at once by `branchrt/Blackjack-v0`, in torch.

    Candidate `c` is child `c` of the root's first fork (`rng="split"`): its key gives its cards.
    """

    version = "branchrt/Blackjack-v0, basic strategy"

    def __init__(self, roots: int, seed: int = 0, device: torch.device | str = "cpu") -> None:
        """Deals the roots: root `r` is what a vector env deals for the seed `seed + r`."""
        self.episodes = 0
        self.device = torch.device(device)
        self._env = Blackjack()
        seeds = check_seeds(seed, roots).to(self.device)
        self.key = episode_key(seeds, torch.zeros_like(seeds))
        self.state = self._env.initial({}, self.key, self.key)
        table = [
            [[advice(total, face, usable) for face in range(11)] for total in range(32)]
            for usable in (0, 1)
        ]
        self._table = torch.tensor(table, device=self.device).flatten()

    def verify(self, roots: Any, candidates: Any) -> Verdicts:
        """Plays hands; the verdicts are where the roots are."""
        with layer("environment"):
            given = torch.as_tensor(roots, device=self.device)
            won = self._wins(given, torch.as_tensor(candidates, device=self.device))
            return Verdicts(won if isinstance(roots, Tensor) else won.cpu().numpy())

    def play(self, roots: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Plays hands, from lists to a list."""
        with layer("environment"):
            won = self._wins(
                torch.tensor(roots, device=self.device),
                torch.tensor(candidates, device=self.device),
            )
            found: list[bool] = won.tolist()
            return found

    def _wins(self, roots: Tensor, candidates: Tensor) -> Tensor:
        self.episodes += len(roots)
        if self.device.type == "cpu" and len(roots) > PIECE:
            pieces = [slice(at, at + PIECE) for at in range(0, len(roots), PIECE)]
            return torch.cat([self._played(roots[at], candidates[at]) for at in pieces])
        return self._played(roots, candidates)

    def _played(self, roots: Tensor, candidates: Tensor) -> Tensor:
        key = self.key.index_select(0, roots)
        key = fork_key(key, torch.zeros_like(key), candidates, "split")
        state = {name: rows.index_select(0, roots) for name, rows in self.state.items()}
        state["dealer"] = _two_cards(state["face_up"], bounded(fold(key, FACE_DOWN), FACES))
        won = torch.zeros_like(key, dtype=torch.bool)
        rows = torch.arange(len(won), device=won.device)
        depth = 0
        while len(rows):
            branches = Branches(rows, torch.full_like(rows, depth, dtype=torch.int32), state)
            total, face_up, usable = self._env.observation({}, branches)
            with layer("generation"):
                action = self._table.index_select(0, (usable * 32 + total) * 11 + face_up)
            made = self._env.transition({}, branches._replace(key=fold(key, depth)), action)
            won.index_copy_(0, rows, made.solved)
            live = (~made.terminated).nonzero().squeeze(1)
            rows, key = rows.index_select(0, live), key.index_select(0, live)
            state = {name: each.index_select(0, live) for name, each in made.state.items()}
            depth += 1
        return won


def _two_cards(face_up: Tensor, face: Tensor) -> Tensor:
    """Returns the dealers' hands of a face-up card, 1 … 10, and a face, 0 … 12, as int8."""
    up = face_up.to(torch.int64)
    ace = (up == 1) | (face == 0)
    total = up + (face + 1).clamp_(max=10) + 10 * ace
    return (total + USABLE * ace + NATURAL * (total == 21)).to(torch.int8)


class GymnasiumHands:
    """One hand after the other by the `step` of Gymnasium's own `BlackjackEnv`.

    A candidate's cards come from the environment's own generator, put into a state that is a hash
    of root and candidate, so that a hand is the same whoever asks for it, and when.
    """

    version = "Gymnasium Blackjack-v1, basic strategy"

    def __init__(self, roots: int, seed: int = 0) -> None:
        """Deals the roots by the environment's reset."""
        self.episodes = 0
        self._env: Any = BlackjackEnv()  # which is not typed
        self._env.reset(seed=seed)
        self._deals = []
        for _ in range(roots):
            (_, face_up, _), _ = self._env.reset()
            self._deals.append((*self._env.player, face_up))
        self._draw_card: Any = draw_card
        self._bits = np.random.PCG64(seed)
        self._env.np_random = np.random.Generator(self._bits)
        self._state = self._bits.state
        self._seed = fold_int(seed, roots)

    def verify(self, roots: Any, candidates: Any) -> Verdicts:
        """Plays hands; the verdicts are where the roots are."""
        won = self.play(roots.tolist(), candidates.tolist())
        if isinstance(roots, Tensor):
            return Verdicts(torch.tensor(won, dtype=torch.bool, device=roots.device))
        return Verdicts(np.array(won, dtype=np.bool_))

    def play(self, roots: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Plays hands, from lists to a list."""
        with layer("environment"):
            return [self._win(*attempt) for attempt in zip(roots, candidates, strict=True)]

    def _win(self, root: int, candidate: int) -> bool:
        self.episodes += 1
        env = self._env
        high = fold_int(self._seed, root)
        self._state["state"]["state"] = high << 64 | fold_int(high, candidate)
        self._bits.state = self._state
        first, second, face_up = self._deals[root]
        env.player, env.dealer = [first, second], [face_up, self._draw_card(env.np_random)]
        observation = env._get_obs()
        over, reward = False, 0.0
        while not over:
            with layer("generation"):
                action = advice(*observation)
            observation, reward, over, _, _ = env.step(action)
        return reward > 0


def compare_with_oracle(
    hands: BatchedHands, seed: int, attempts: Sequence[tuple[int, int]]
) -> tuple[int, str | None]:
    """Plays attempts by the scalar oracle, card by card, and compares who wins.

    Returns:
        How many differ, and the first of them in words.
    """
    won = hands.play(*map(list, zip(*attempts, strict=True)))
    different, first = 0, None
    for (root, candidate), ours in zip(attempts, won, strict=True):
        oracle = BlackjackOracle()
        oracle.reset(seed=seed + root)
        hand = oracle.fork(candidate + 1)[candidate]
        assert isinstance(hand, BlackjackOracle)
        face = bounded_int(fold_int(hand.key, FACE_DOWN), FACES)
        hand.dealer = hand.dealer[0], min(face + 1, 10)
        over, solved = False, False
        while not over:
            _, _, over, _, info = hand.step(advice(*hand.observe()))
            solved = info["solved"]
        if solved is not ours:
            different += 1
            first = first or f"attempt ({root}, {candidate}): the oracle has {solved}, not {ours}"
    return different, first
