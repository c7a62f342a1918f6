"""The exact returns that the example computes, against the rules as Gymnasium plays them."""

import importlib.util
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.blackjack import deck, is_bust, sum_hand, usable_ace

PATH = Path(__file__).parents[1] / "examples" / "sb3_blackjack.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location(PATH.stem, PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[PATH.stem] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    yield module
    del sys.modules[PATH.stem]


def after(hand, card):
    """A hand is its low sum, up to 22, and whether it holds an ace."""
    return min(hand[0] + card, 22), hand[1] or card == 1


def worth(hand):
    low, ace = hand
    return 0 if low > 21 else low + 10 if ace and low <= 11 else low


def mean(values):
    """Over the thirteen cards of Gymnasium's deck, equally likely."""
    return sum(map(Fraction, values)) / len(deck)


@cache
def against_dealer(total, hand):
    """What a player's sum is worth against a dealer who holds `hand` and draws."""
    if 0 < worth(hand) < 17:
        return mean(against_dealer(total, after(hand, card)) for card in deck)
    return Fraction((total > worth(hand)) - (total < worth(hand)))


@cache
def best(hand, shown):
    """The best return from a player's hand; the dealer has yet to draw the face-down card."""
    if hand[0] > 21:
        return Fraction(-1)
    dealer = after((0, False), shown)
    stick = mean(against_dealer(worth(hand), after(dealer, card)) for card in deck)
    return max(stick, mean(best(after(hand, card), shown) for card in deck))


def test_the_best_return_is_exact(example):
    start = (0, False)
    exact = mean(
        mean(mean(best(after(after(start, one), two), shown) for one in deck) for two in deck)
        for shown in deck
    )
    assert example.expected_return(None) == pytest.approx(float(exact), abs=1e-12)


def test_hands_count_as_gymnasium_counts_them(example):
    rng = np.random.default_rng(0)
    for _ in range(300):
        hand, cards = (0, False), []
        while not cards or not is_bust(cards):
            cards.append(int(rng.choice(deck)))
            hand = example.with_card(*hand, cards[-1])
            assert hand == (sum_hand(cards), bool(usable_ace(cards)) and not is_bust(cards))


def test_a_policys_return_is_what_it_earns_in_gymnasium(example):
    def cautious(total, shown, usable):
        return float(total < (18 if usable else 15 if shown > 6 else 12))

    env = gymnasium.make("Blackjack-v1", natural=False, sab=False)
    returns, seed = [], 0
    for _ in range(20_000):
        (total, shown, usable), _ = env.reset(seed=seed)
        seed, done = None, False
        while not done:
            action = int(cautious(total, shown, bool(usable)))
            (total, shown, usable), reward, done, _, _ = env.step(action)
        returns.append(reward)
    error = np.std(returns) / len(returns) ** 0.5
    assert abs(np.mean(returns) - example.expected_return(cautious)) < 4 * error < 0.03
    assert example.expected_return(cautious) < example.expected_return(None)
