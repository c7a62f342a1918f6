"""`branchrt/Blackjack-v0`: Gymnasium's Blackjack-v1 for a population, with keyed cards.

The rules are stated in full by `BlackjackOracle`, the scalar form; this is the batched one. A hand
is one small integer, and what cards do to it, and what a pair of hands pays, is read from tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.contract import (
    BranchEnv,
    Branches,
    Contract,
    InitialKernel,
    ObservationKernel,
    Transition,
    TransitionKernel,
    branch,
)
from branchrt_gym.envs.blackjack_render import draw, text
from branchrt_gym.kernels import fold

__all__ = ["Blackjack"]

FACES = 13
PAIRS, TRIPLES = FACES**2, FACES**3  # sequences of two cards, of three
FRACTION = 51  # bits of a shoe: times TRIPLES they fit in 63
LOW_BITS = (1 << FRACTION) - 1
STICK = 0
DEALER_STANDS = 17
# The dealer never draws more than ten cards: two aces and four more are 16, a 6 makes that a hard
# 12, and five further aces are 17. That is four triples, of which the first two nearly always do.
MOST_TRIPLES, LIKELY_TRIPLES = 4, 2

# A hand: its sum in the lowest five bits, then whether an ace in it counts as 11, and whether it is
# a natural.
SUM, USABLE, NATURAL, HANDS = 31, 32, 64, 128
NO_CARDS = 0


class Tables(NamedTuple):
    """The rules, tabulated.

    Attributes:
        play: `[2 * HANDS * FACES] int8`, a player's hand after an action and the next card.
        over: `[2 * HANDS * FACES] bool`, whether the action ends the player's hand.
        first: `[PAIRS] int8`, the hand of two cards.
        face_up: `[PAIRS] int8`, the value of the first of them.
        deal: `[HANDS * TRIPLES] int8`, a dealer's hand after up to three more cards.
        score: `[HANDS * HANDS] int32`, twice what a player's hand is paid against the dealer's.
    """

    play: Tensor
    over: Tensor
    first: Tensor
    face_up: Tensor
    deal: Tensor
    score: Tensor


class Blackjack(BranchEnv):
    """The batched rules of Blackjack; see `BlackjackOracle` for the rules themselves.

    State: `player` and `dealer` are the hands (int8; the dealer's has both cards from the start),
    `face_up` the dealer's visible card (int8, 1 … 10), `over` whether the hand is over, `score`
    twice the reward so far (int32). Nothing is shared.

    Args:
        natural: Pay 1.5 for a win with a natural.
        sab: Follow the book; overrides `natural`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}
    reward_dtype = torch.float32

    def __init__(self, natural: bool = False, sab: bool = False) -> None:
        """Declares the contract and the spaces."""
        self.natural = bool(natural)
        self.sab = bool(sab)
        self.contract = Contract(
            {
                "player": branch((), torch.int8),
                "dealer": branch((), torch.int8),
                "face_up": branch((), torch.int8),
                "over": branch((), torch.bool),
                "score": branch((), torch.int32),
            }
        )
        self.single_observation_space = spaces.Tuple(
            (spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))
        )
        self.single_action_space = spaces.Discrete(2)
        self._tables: dict[torch.device, Tables] = {}

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Nothing is shared."""
        return {}

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Deals two cards each."""
        tables, shoe = self._tables_on(keys.device), _shoe(keys)
        player = _draw_(shoe, PAIRS)
        dealer = _draw_(shoe, PAIRS)
        return {
            "player": tables.first.index_select(0, player),
            "dealer": tables.first.index_select(0, dealer),
            "face_up": tables.face_up.index_select(0, dealer),
            "over": torch.zeros_like(keys, dtype=torch.bool),
            "score": torch.zeros_like(keys, dtype=torch.int32),
        }

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Hits or sticks, each with the cards of the transition's own shoe."""
        assert branches.key is not None
        state, tables = branches.state, self._tables_on(action.device)
        sticks = action == STICK
        shoe = _shoe(branches.key)
        dealer = self._play_dealer(state["dealer"], shoe, sticks)
        played = _add_(_draw_(shoe, FACES), state["player"], FACES)
        played.add_(action, alpha=HANDS * FACES)
        player = tables.play.index_select(0, played)
        over = tables.over.index_select(0, played)
        pair = _add_(dealer.to(torch.int32), player, HANDS)
        score = tables.score.index_select(0, pair).mul_(over)
        return Transition(
            state={
                "player": player,
                "dealer": dealer,
                "face_up": state["face_up"],
                "over": over,
                "score": score,
            },
            reward=score * 0.5,
            terminated=over,
            truncated=torch.zeros_like(over),
            solved=score > 0,
        )

    def observation(
        self, shared: Mapping[str, Tensor], branches: Branches
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the player's sum, the dealer's face-up card and the usable ace, `[M] int64`."""
        player = branches.state["player"].to(torch.int64)
        usable = player.bitwise_and(USABLE).bitwise_right_shift_(5)
        return player.bitwise_and_(SUM), branches.state["face_up"].to(torch.int64), usable

    def transition_kernel(self, device: torch.device) -> TransitionKernel:
        """The transition in Triton."""
        from branchrt_gym.envs.blackjack_triton import transition

        return TransitionKernel(transition, (int(self.natural), int(self.sab)))

    def initial_kernel(self, device: torch.device) -> InitialKernel:
        """The deal in Triton."""
        from branchrt_gym.envs.blackjack_triton import initial

        return InitialKernel(initial)

    def observation_kernel(self, device: torch.device) -> ObservationKernel:
        """The observation in Triton."""
        from branchrt_gym.envs.blackjack_triton import observation

        return ObservationKernel(observation)

    def render(
        self, shared: Mapping[str, np.ndarray], branch: Mapping[str, np.ndarray], mode: str
    ) -> np.ndarray | str:
        """Draws a branch as the oracle does."""
        paint = draw if mode == "rgb_array" else text
        player, dealer = int(branch["player"]), int(branch["dealer"])
        return paint(
            player & SUM,
            usable=bool(player & USABLE),
            face_up=int(branch["face_up"]),
            dealer=dealer & SUM if branch["over"] else None,
            score=int(branch["score"]),
        )

    def _play_dealer(self, dealer: Tensor, shoe: Tensor, sticks: Tensor) -> Tensor:
        """Returns the dealers' hands: where the player sticks, after they have drawn."""
        deal = self._tables_on(dealer.device).deal
        draws = sticks & ((dealer & SUM) < DEALER_STANDS)
        # On the CPU, where it is cheap to look: only the hands that draw, and no longer than they.
        looks = _on_cpu(dealer)
        if looks:
            rows = torch.from_numpy(draws.numpy().nonzero()[0])  # a third of torch's time
            hand, rest = dealer.index_select(0, rows), shoe.index_select(0, rows)
        else:
            hand, rest = dealer, shoe.clone()
        for dealt in range(MOST_TRIPLES):
            if looks and dealt >= LIKELY_TRIPLES and not _still_draw(hand):
                break
            cards = _draw_(rest, TRIPLES)
            hand = deal.index_select(0, _add_(cards, hand, TRIPLES))
        return dealer.index_copy(0, rows, hand) if looks else torch.where(draws, hand, dealer)

    def _tables_on(self, device: torch.device) -> Tables:
        """The tables on a device; copied once."""
        if device not in self._tables:
            tables = _tabulate(self.natural, self.sab)
            self._tables[device] = Tables(*(table.to(device) for table in tables))
        return self._tables[device]


def _shoe(key: Tensor) -> Tensor:
    """Returns the shoes of keys: fractions, in units of `2**-FRACTION`."""
    return fold(key, 0).bitwise_and_(LOW_BITS)


def _draw_(shoe: Tensor, sequences: int) -> Tensor:
    """Takes the first cards of shoes, changed in place: the next digit in base `sequences`."""
    digit = shoe.mul_(sequences) >> FRACTION
    shoe.bitwise_and_(LOW_BITS)
    return digit


def _add_(sums: Tensor, hand: Tensor, times: int) -> Tensor:
    """Adds narrow integers that many times, in place."""
    # Compiled for a GPU, torch multiplies in the dtype of the hand, which is too narrow for it.
    return sums.add_(hand if _on_cpu(hand) else hand.to(sums.dtype), alpha=times)


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _still_draw(hand: Tensor) -> bool:
    return bool(((hand & SUM) < DEALER_STANDS).any())


def _with_card(hand: int, face: int) -> int:
    """Returns a hand after one more card, an ace counting as 11 where that keeps it at 21."""
    low = (hand & SUM) - 10 * bool(hand & USABLE) + min(face + 1, 10)
    ace = hand & USABLE or face == 0
    return low + 10 | USABLE if ace and low <= 11 else low & SUM


def _tabulate(natural: bool, sab: bool) -> Tables:
    """Makes the tables on the CPU, in a few milliseconds."""
    faces, hands = range(FACES), range(HANDS)
    hit = torch.tensor([[_with_card(hand, face) for face in faces] for hand in hands])
    first = hit[hit[NO_CARDS]]
    first[first & SUM == 21] |= NATURAL
    hand = torch.arange(HANDS)
    total = hand & SUM
    draw = torch.where(total[:, None] < DEALER_STANDS, hit, hand[:, None])

    player, dealer = total[:, None], total.masked_fill(total > 21, 0)
    score = 2 * torch.sign(player - dealer).masked_fill_(player > 21, -1)
    with_natural = (hand & NATURAL).bool()
    if sab:
        score[with_natural[:, None] & ~with_natural] = 2
    elif natural:
        score[with_natural[:, None] & (score == 2)] = 3
    play = torch.stack([hand[:, None].expand_as(hit), hit])  # in the order of STICK and hit
    over = (play & SUM) > 21
    over[STICK] = True
    return Tables(
        play=play.flatten().to(torch.int8),
        over=over.flatten(),
        first=first.flatten().to(torch.int8),
        face_up=(torch.arange(PAIRS) // FACES + 1).clamp_(max=10).to(torch.int8),
        deal=draw[draw[draw]].flatten().to(torch.int8),
        score=score.flatten().to(torch.int32),
    )
