"""The scalar oracle of branchrt/Blackjack-v0, card by card in plain Python."""

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Tuple

from branchrt_gym.envs.blackjack_render import draw, text
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import Oracle, fold

__all__ = ["BlackjackOracle"]

FACES = 13  # ace, 2 … 10, jack, queen, king
FRACTION = 51  # bits of a shoe
STICK = 0


class BlackjackOracle(Oracle[tuple[Any, ...], int | np.int64]):
    """Blackjack by the rules of Gymnasium's Blackjack-v1, after Sutton and Barto, Example 5.1.

    Player and dealer are dealt two cards each from an infinite deck; one of the dealer's lies face
    down. Numbered cards count as their number, jack, queen and king as 10, and an ace as 1, or as
    11 where that keeps the sum at 21 or below (it is then usable). The player may hit, which draws
    a card and loses at once if the sum exceeds 21, or stick: then the dealer draws while its sum is
    below 17, and loses if it exceeds 21. Otherwise the higher sum wins; equal sums are a draw.

    Actions, `Discrete(2)`: 0 sticks, 1 hits.

    Observations, a tuple of `Discrete(32)`, `Discrete(11)` and `Discrete(2)`: the player's sum, the
    dealer's face-up card (1 … 10, an ace is 1), and whether the player has a usable ace.

    Rewards: 1 for a win, 0 for a draw, -1 for a loss, at the end of the hand, else 0. A natural is
    an ace and a 10 as the only two cards. With `natural`, a win with a natural pays 1.5. With
    `sab`, as in the book, a player's natural wins (and pays 1) unless the dealer has one too;
    `natural` is then ignored. Terminated when the player sticks or exceeds 21, never truncated.
    `info["solved"]`: the hand was won. `score`, by which a search ranks, is twice the reward so
    far, an integer.

    Chance. A key gives a shoe, a row of cards: with `u` the lowest 51 bits of `fold(key, 0)`, card
    `i` (from 0) is digit `i` of the fraction `u / 2**51` in base 13. Digit 0 is the ace, 1 … 9 are
    the cards 2 … 10, and 10, 11, 12 are jack, queen and king. A dealer draws at most ten cards,
    the first six of which have their probabilities to 1e-8, all of them to 1e-4.

    *   The shoe of the episode's key deals the player's first two cards, the dealer's face-up card
        and the dealer's face-down card, in that order.
    *   The shoe of a transition's key gives its first card to the player who hits, or its first
        cards to the dealer when the player sticks. So of a hand's two continuations, hit and
        stick, both draw the same card next, as at a table.
    *   The face-down card is part of the branch from the start: siblings of a fork share it,
        whatever their luck. With `rng="split"` the cards drawn later differ, with `"shared"`
        they are the same.

    Args:
        natural: Pay 1.5 for a win with a natural.
        sab: Follow the book; overrides `natural`.
        render_mode: None, `"rgb_array"` or `"ansi"`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012
    branch_fields = ("player", "dealer", "score")

    player: tuple[int, ...]
    dealer: tuple[int, ...]
    score: int

    def __init__(
        self, natural: bool = False, sab: bool = False, render_mode: str | None = None
    ) -> None:
        """Keeps the options."""
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"`render_mode` is {render_mode!r}; expected None, 'rgb_array' or 'ansi'"
            )
        self.natural = bool(natural)
        self.sab = bool(sab)
        self.render_mode = render_mode
        self.action_space = Discrete(2)
        self.observation_space = Tuple((Discrete(32), Discrete(11), Discrete(2)))

    def check_context(self, context: object) -> None:
        """Refuses any context: this environment has none."""
        if context is not None:
            raise ValueError(f"`context` is a {type(context).__name__}; expected None")

    def start(self) -> None:
        """Deals two cards each."""
        rest = shoe(self.key)
        first, rest = draw_card(rest)
        second, rest = draw_card(rest)
        face_up, rest = draw_card(rest)
        face_down, rest = draw_card(rest)
        self.player = first, second
        self.dealer = face_up, face_down
        self.score = 0

    def advance(self, action: int, key: int) -> tuple[float, bool, bool, bool]:
        """Hits or sticks."""
        rest = shoe(key)
        if action == STICK:
            while hand_sum(self.dealer) < 17:
                card, rest = draw_card(rest)
                self.dealer += (card,)
            reward = self._settle()
            ended = True
        else:
            card, rest = draw_card(rest)
            self.player += (card,)
            ended = hand_sum(self.player) > 21
            reward = -1.0 if ended else 0.0
        self.score = int(2 * reward)
        return reward, ended, False, reward > 0

    def observe(self) -> tuple[int, int, int]:
        """Returns the player's sum, the dealer's face-up card and whether an ace is usable."""
        total = hand_sum(self.player)
        return total, self.dealer[0], int(total != sum(self.player))

    def render(self) -> Any:
        """Returns a `[200, 320, 3] uint8` picture, a text, or None, as `render_mode` says."""
        if self.render_mode is None:
            return None
        if not self._was_reset:
            raise NotResetError("`render` before the first reset; call `reset` first")
        picture = draw if self.render_mode == "rgb_array" else text
        total, face_up, usable = self.observe()
        return picture(
            total,
            usable=bool(usable),
            face_up=face_up,
            dealer=None if self.live else hand_sum(self.dealer),
            score=self.score,
        )

    def _settle(self) -> float:
        """Returns what a player who has stuck is paid."""
        player, dealer = hand_sum(self.player), hand_sum(self.dealer)
        with_natural = is_natural(self.player)
        if self.sab and with_natural and not is_natural(self.dealer):
            return 1.0
        if dealer > 21 or player > dealer:
            return 1.5 if self.natural and not self.sab and with_natural else 1.0
        return 0.0 if player == dealer else -1.0


def shoe(key: int) -> int:
    """Returns the shoe of a key: a fraction, in units of `2**-FRACTION`."""
    return fold(key, 0) & (1 << FRACTION) - 1


def draw_card(rest: int) -> tuple[int, int]:
    """Returns the first card's value, 1 … 10, and the rest of the shoe."""
    rest *= FACES
    face = rest >> FRACTION
    return (face + 1 if face < 10 else 10), rest - (face << FRACTION)


def hand_sum(cards: tuple[int, ...]) -> int:
    """Returns a hand's sum, with an ace as 11 where that keeps it at 21 or below."""
    low = sum(cards)
    return low + 10 if low <= 11 and 1 in cards else low


def is_natural(cards: tuple[int, ...]) -> bool:
    """Whether a hand is an ace and a 10 and nothing else."""
    return len(cards) == 2 and hand_sum(cards) == 21
