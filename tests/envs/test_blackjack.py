"""Blackjack: hands worked by hand, Gymnasium's own code, exact probabilities, batched = scalar."""

import copy
import itertools
import math
import pickle
import warnings
from collections import Counter, defaultdict

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.envs.toy_text import blackjack as theirs
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from branchrt_gym import BranchingVectorEnv, registry
from branchrt_gym.certify import certify, rows
from branchrt_gym.contract import Branches
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.envs.blackjack_oracle import BlackjackOracle, draw_card, shoe
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import fold

M64 = 2**64
OPTIONS = [dict(natural=n, sab=s) for n, s in itertools.product((False, True), repeat=2)]
STICK, HIT = 0, 1
A = 1


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are small: threads do not help, and wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Keys for chosen cards: both hashes of a key are one to one, so they are undone here.


def unmix(x):
    """SplitMix64's finaliser backwards."""
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, M64) % M64
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, M64) % M64
    return x ^ x >> 30 ^ x >> 60


def key_of(*cards):
    """A key whose shoe begins with these cards, values 1 .. 10, by integer arithmetic alone."""
    number = 0
    for card in cards:
        number = number * 13 + card - 1
    fraction = -(-number * 2**51 // 13 ** len(cards))  # the least that is not below number / 13**n
    return (unmix(fraction + (0x1CED << 51)) - 0x9E3779B97F4A7C15) % M64


def test_a_shoe_is_a_fraction_in_base_13():
    for key in [key_of(3), *(fold(9, word) for word in range(200))]:
        fraction = fold(key, 0) % 2**51
        faces = [fraction * 13 ** (i + 1) // 2**51 % 13 for i in range(10)]
        rest, cards = shoe(key), []
        for _ in faces:
            card, rest = draw_card(rest)
            cards.append(card)
        assert cards == [min(face + 1, 10) for face in faces]


# The oracle's rules


def hand(cards, **options):
    """An oracle whose first cards are player, player, face up, face down."""
    env = BlackjackOracle(**options)
    env.reset(seed=0)
    env.key = key_of(*cards)
    env.start()
    assert env.player + env.dealer == tuple(cards)
    return env


@pytest.mark.parametrize(
    ("cards", "drawn", "reward", "dealer_sum"),
    [
        ((10, 9, 10, 8), (), 1, 18),
        ((10, 8, 10, 8), (), 0, 18),
        ((10, 7, 10, 8), (), -1, 18),
        ((10, 9, A, 6), (), 1, 17),  # the dealer stands on a soft 17
        ((10, 9, A, 5), (10, 5), -1, 21),  # soft 16, hard 16, 21
        ((10, 2, 10, 6), (10,), 1, 26),  # the dealer loses above 21, whatever the player has
        ((2, 2, 10, 6), (5,), -1, 21),
        ((A, 8, 9, 10), (), 0, 19),
        ((10, 10, A, A), (A, A, A, A, 6, A, A, A, A, A), 1, 17),  # ten cards, the most there are
    ],
)
def test_sticking(cards, drawn, reward, dealer_sum):
    env = hand(cards)
    got, terminated, truncated, solved = env.advance(STICK, key_of(*drawn, 7))
    assert (got, terminated, truncated, solved) == (reward, True, False, reward > 0)
    assert env.dealer == cards[2:] + drawn
    assert sum(env.dealer) + 10 * (dealer_sum != sum(env.dealer)) == dealer_sum
    assert env.score == 2 * reward


def test_hitting():
    env = hand((A, 5, 10, 9))
    assert env.observe() == (16, 10, 1)
    assert env.advance(HIT, key_of(10)) == (0, False, False, False)
    assert env.observe() == (16, 10, 0)
    assert env.advance(HIT, key_of(5)) == (0, False, False, False)
    assert env.observe() == (21, 10, 0)
    assert env.advance(HIT, key_of(A)) == (-1, True, False, False)
    assert env.observe() == (22, 10, 0)
    assert (env.score, env.dealer) == (-2, (10, 9))
    env = hand((A, A, 3, 9))
    assert env.observe() == (12, 3, 1)
    env.advance(HIT, key_of(9))
    assert env.observe() == (21, 3, 1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_naturals(options):
    def outcome(cards, drawn=()):
        return hand(cards, **options).advance(STICK, key_of(*drawn, 7))[0]

    best = 1.5 if options["natural"] and not options["sab"] else 1
    assert outcome((A, 10, 10, 8)) == best
    assert outcome((10, A, 10, 6), (10,)) == best
    assert outcome((A, 10, 10, A)) == 0  # both have one
    # The dealer's 21 in three cards is none, which matters to the book alone.
    assert outcome((10, A, 5, 6), (10,)) == (1 if options["sab"] else 0)
    assert outcome((10, 9, A, 10)) == -1
    env = hand((10, A, 10, 8), **options)  # a natural with a card more is none
    env.advance(HIT, key_of(10))
    assert env.advance(STICK, key_of(7))[0] == 1


def test_the_dealer_draws_at_most_ten_cards():
    hands = list(dealers_hands())
    assert len(hands) == 54_433
    assert max(map(len, hands)) == 12


def dealers_hands(cards=()):
    """Every way in which a dealer's cards can fall, by the rule that it draws below 17."""
    low = sum(cards)
    if len(cards) >= 2 and (low >= 17 or (1 in cards and 7 <= low <= 11)):
        yield cards
        return
    for card in range(1, 11):
        yield from dealers_hands((*cards, card))


# The batched rules


def batched(keys, action=None, state=None, **options):
    """Runs a hook of the batched rules on Python keys."""
    env = Blackjack(**options)
    words = torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64))
    index = torch.zeros_like(words)
    if action is None:
        return env.initial({}, index, words)
    branches = Branches(index, torch.zeros_like(words, dtype=torch.int32), state, words)
    return env.transition({}, branches, torch.full_like(words, action))


def test_every_hand_a_dealer_can_have():
    hands = list(dealers_hands())
    state = batched([key_of(10, 9, *cards[:2]) for cards in hands])
    assert state["face_up"].tolist() == [cards[0] for cards in hands]
    step = batched([key_of(*cards[2:], 7) for cards in hands], STICK, state)
    low = [sum(cards) for cards in hands]
    sums = [s + 10 if 1 in c and s <= 11 else s for s, c in zip(low, hands, strict=True)]
    assert (step.state["dealer"] & 31).tolist() == sums
    expected = [1 if s < 19 or s > 21 else -1 if s > 19 else 0 for s in sums]
    assert step.reward.tolist() == expected
    assert step.state["score"].tolist() == [2 * reward for reward in expected]
    assert step.terminated.all()


def test_the_path_without_looking_gives_the_same_hands(monkeypatch):
    """What a GPU runs: every dealer draws all triples, and those who do not are masked."""
    hands = list(dealers_hands())[::7]
    state = batched([key_of(10, 9, *cards[:2]) for cards in hands])
    keys = [key_of(*cards[2:], 7) for cards in hands]
    expected = batched(keys, STICK, state)
    monkeypatch.setattr("branchrt_gym.envs.blackjack._on_cpu", lambda tensor: False)
    got = batched(keys, STICK, state)
    for name, values in expected.state.items():
        assert torch.equal(got.state[name], values)
    assert torch.equal(got.reward, expected.reward)
    kept = batched(keys, HIT, state)
    assert torch.equal(kept.state["dealer"], state["dealer"])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_batched_equals_scalar(options, mode):
    """Forks with both kinds of luck, then steps and restarts, against one oracle per slot."""
    roots, rng = 150, np.random.default_rng(5)
    envs = BranchingVectorEnv(Blackjack(**options), 7 * roots, num_roots=roots, autoreset_mode=mode)
    observation, _ = envs.reset(seed=77)
    models = {slot: BlackjackOracle(**options) for slot in range(roots)}
    for slot, model in models.items():
        model.reset(seed=77 + slot)
    for luck, wide in (("split", 2), ("shared", 1)):
        parents = sorted(slot for slot, model in models.items() if model.live)
        slots = iter(envs.fork(parents, wide, rng=luck).tolist())
        for parent in parents:
            for child in models[parent].fork(wide, rng=luck):
                models[next(slots)] = child
        assert next(slots, None) is None
    for _ in range(5):  # until about every hand is over; a root's last slot then restarts
        live = envs.live
        actions = rng.integers(0, 2, len(live))
        observation, reward, terminated, truncated, info = envs.step(actions)
        assert not truncated.any()
        for slot in np.flatnonzero(live):
            if slot not in models:  # a restarted root; those are the next test's
                continue
            seen, paid, ended, _, more = models[slot].step(int(actions[slot]))
            if mode != AutoresetMode.SAME_STEP or not ended:
                assert tuple(int(part[slot]) for part in observation) == seen
                assert info["solved"][slot] == more["solved"]
            assert (reward[slot], terminated[slot]) == (paid, ended)
            if ended:
                del models[slot]
    assert len(models) < roots


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_vector_env_equals_oracles_through_restarts(options):
    envs = BranchingVectorEnv(Blackjack(**options), 96)
    models = [BlackjackOracle(**options) for _ in range(96)]
    actions = np.random.default_rng(1).integers(0, 2, (120, 96))
    seen, _ = envs.reset(seed=2**62)
    wanted = [model.reset(seed=2**62 + i)[0] for i, model in enumerate(models)]
    assert np.array_equal(np.stack(seen, 1), wanted)
    for row in actions:
        seen, reward, terminated, _, info = envs.step(row)
        for slot, model in enumerate(models):
            if model.live:
                wanted[slot], paid, ended, _, more = model.step(row[slot])
                assert (reward[slot], terminated[slot]) == (paid, ended)
                assert info["solved"][slot] == more["solved"]
            else:
                wanted[slot], _ = model.reset()
                assert (reward[slot], terminated[slot]) == (0, False)
        assert np.array_equal(np.stack(seen, 1), wanted)
    assert min(model.episode for model in models) > 20


@pytest.mark.parametrize("luck", ["split", "shared"])
def test_siblings_share_the_face_down_card_and_perhaps_the_rest(luck):
    envs = BranchingVectorEnv(
        Blackjack(), 1024, num_roots=512, autoreset_mode=AutoresetMode.DISABLED
    )
    envs.reset(seed=3)
    dealt = {name: column[:512].clone() for name, column in envs.frontier.state.items()}
    children = envs.fork(np.arange(512), rng=luck)
    for name, column in envs.frontier.state.items():
        assert torch.equal(column[torch.from_numpy(children)], dealt[name])
    envs.step(np.full(1024, HIT))
    player = envs.frontier.state["player"]
    same = (player[:512] == player[512:]).float().mean()
    assert same == 1 if luck == "shared" else 0.05 < same < 0.25
    one = BlackjackOracle()
    one.reset(seed=1)
    (other,) = one.fork(1, rng=luck)
    assert one.dealer == other.dealer


# Gymnasium's rules


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gymnasium_plays_the_same_hands_with_the_same_cards(options, monkeypatch):
    """Gymnasium's own code, its cards taken from the oracle's shoes."""
    cards = []
    monkeypatch.setattr(theirs, "draw_card", lambda _: cards.pop(0))
    env, them = BlackjackOracle(**options), theirs.BlackjackEnv(**options)
    rewards = Counter()
    choice = np.random.default_rng(0).integers(0, 3, 20_000)
    env.reset(seed=8)
    for _ in range(2000):
        seen, _ = env.reset()
        cards[:] = [*env.dealer, *env.player]  # it deals the dealer first
        assert them.reset()[0] == seen
        ended = False
        while not ended:
            rest, cards[:] = shoe(fold(env.key, env.depth)), []
            for _ in range(10):
                card, rest = draw_card(rest)
                cards.append(card)
            action = int(choice[rewards.total()] > 0 and env.observe()[0] < 19)
            seen, reward, ended, _, _ = env.step(action)
            assert them.step(action)[:4] == (seen, reward, ended, False)
        rewards[reward] += 1
    assert set(rewards) == {-1, 0, 1} | (
        {1.5} if options == dict(natural=True, sab=False) else set()
    )


CHANCE = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}


def after(total, usable, card):
    """A sum and whether an ace in it counts as 11, after one more card."""
    total += card
    if card == 1 and total + 10 <= 21:
        return total + 10, True
    return (total - 10, False) if usable and total > 21 else (total, usable)


def dealers_sums(face_up):
    """Probabilities of the dealer's final sum, 22 above 21, and "natural"."""
    sums, live = defaultdict(float), {(*after(0, False, face_up), 1): 1.0}
    while live:
        following = defaultdict(float)
        for (total, usable, held), chance in live.items():
            for card, probability in CHANCE.items():
                hand = after(total, usable, card)
                if hand[0] < 17:
                    following[(*hand, 2)] += chance * probability
                elif held == 1 and hand[0] == 21:
                    sums["natural"] += chance * probability
                else:
                    sums[min(hand[0], 22)] += chance * probability
        live = following
    return sums


def players_sums(hits, face_up):
    """The same for a player who hits where `hits(sum, usable, face up)`."""
    sums, live = defaultdict(float), defaultdict(float)
    for one, other in itertools.product(CHANCE, repeat=2):
        live[after(*after(0, False, one), other)] += CHANCE[one] * CHANCE[other]
    sums["natural"] = live.pop((21, True))
    assert not hits(21, True, face_up)
    while live:
        following = defaultdict(float)
        for hand, chance in live.items():
            if hand[0] > 21 or not hits(*hand, face_up):
                sums[min(hand[0], 22)] += chance
                continue
            for card, probability in CHANCE.items():
                following[after(*hand, card)] += chance * probability
        live = following
    return sums


def paid(player, dealer, natural, sab):
    if player == 22:
        return -1
    if player == "natural" and sab:
        return 0 if dealer == "natural" else 1
    own, other = (21 if hand == "natural" else hand for hand in (player, dealer))
    if other == 22 or own > other:
        return 1.5 if natural and not sab and player == "natural" else 1
    return 0 if own == other else -1


def exact(hits, natural=False, sab=False):
    """Probabilities of each reward."""
    rewards = defaultdict(float)
    for face_up, chance in CHANCE.items():
        dealers = dealers_sums(face_up)
        for player, one in players_sums(hits, face_up).items():
            for dealer, other in dealers.items():
                rewards[paid(player, dealer, natural, sab)] += chance * one * other
    assert math.isclose(sum(rewards.values()), 1)
    return rewards


def below_17(total, usable, face_up):
    return total < 17


def careful(total, usable, face_up):
    """Near to the best there is with two actions; of arrays too."""
    weak = (face_up >= 2) & (face_up <= 6)
    hard = (total < 12) | ((total < 17) & ~weak)
    return np.where(usable, total < 18, hard)


def play(env, hits, slots, hands_each):
    """Plays `hands_each` hands in each slot, and counts the rewards of these, none else."""
    envs = BranchingVectorEnv(env, slots)
    (total, face_up, usable), _ = envs.reset(seed=12)
    done, rewards = np.zeros(slots, int), Counter()
    while done.min() < hands_each:
        actions = np.asarray(hits(total, usable.astype(bool), face_up)).astype(np.int64)
        (total, face_up, usable), reward, ended, _, _ = envs.step(actions)
        values, counts = np.unique(reward[ended & (done < hands_each)], return_counts=True)
        rewards.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        done += ended
    return rewards


def assert_within_sampling_error(rewards, expected):
    hands = rewards.total()
    assert set(rewards) == set(expected)
    for reward, probability in expected.items():
        error = math.sqrt(probability * (1 - probability) / hands)
        assert abs(rewards[reward] / hands - probability) < 4 * error, (reward, rewards)


@pytest.mark.parametrize(
    ("hits", "options"),
    [(below_17, {}), (careful, dict(natural=True)), (careful, dict(sab=True, natural=True))],
)
def test_a_million_hands_have_the_exact_frequencies(hits, options):
    rewards = play(Blackjack(**options), hits, 8192, 124)
    assert rewards.total() == 1_015_808
    assert_within_sampling_error(rewards, exact(hits, **options))


def test_the_exact_frequencies_are_gymnasiums():
    env = gymnasium.make("Blackjack-v1").unwrapped
    env.reset(seed=4)
    rewards = Counter()
    for _ in range(60_000):
        seen, _ = env.reset()
        ended = False
        while not ended:
            seen, reward, ended, _, _ = env.step(int(seen[0] < 17))
        rewards[reward] += 1
    assert_within_sampling_error(rewards, exact(below_17))


# The rest of the contract


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_gymnasiums_checker(options):
    env = BlackjackOracle(**options, render_mode="rgb_array")
    env.spec = EnvSpec("Checked-v0", entry_point=BlackjackOracle, kwargs=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


def test_copies_pickles_and_refusals():
    env = BlackjackOracle()
    env.reset(seed=1)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert (twin.player, twin.dealer, twin.key) == (env.player, env.dealer, env.key)
    twin.step(HIT)
    assert (len(env.player), len(twin.player)) == (2, 3)
    with pytest.raises(ValueError, match="`context` is a dict; expected None"):
        env.reset(seed=1, options={"context": {}})
    with pytest.raises(ValueError, match="`render_mode` is 'human'"):
        BlackjackOracle(render_mode="human")
    with pytest.raises(NotResetError):
        BlackjackOracle(render_mode="ansi").render()


@pytest.mark.parametrize("mode", ["rgb_array", "ansi"])
def test_both_draw_the_same(mode):
    envs = BranchingVectorEnv(
        Blackjack(), 24, autoreset_mode=AutoresetMode.DISABLED, render_mode=mode
    )
    models = [BlackjackOracle(render_mode=mode) for _ in range(24)]
    envs.reset(seed=50)
    for slot, model in enumerate(models):
        model.reset(seed=50 + slot)
    drawn = set()
    for action in (None, HIT, HIT, STICK):
        if action is not None:
            envs.step(np.full(24, action))
            for model in models:
                if model.live:
                    model.step(action)
        for frame, model in zip(envs.render(), models, strict=True):
            assert np.array_equal(frame, model.render())
            drawn.add(frame.tobytes() if mode == "rgb_array" else frame)
    assert len(drawn) > 24


def test_what_a_text_says():
    env = hand((A, 10, A, 9), natural=True, render_mode="ansi")
    assert env.render() == "dealer shows an ace\nplayer has 21 with a usable ace"
    env.step(STICK)
    assert env.render().endswith("has 20\nplayer has 21 with a usable ace\nwon with a natural")


def test_certified(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRATIONS", {})
    name = "test/Blackjack-v0"
    try:
        registry.register(
            name,
            Blackjack,
            BlackjackOracle,
            matrix={"natural": (False, True), "sab": (False, True)},
        )
        chosen = rows(registry.registrations()[name])[::10]
        certificate = certify(name, rows=chosen)
    finally:
        gymnasium.registry.pop(name, None)
    assert certificate.first_difference is None
    assert certificate.ok
    assert len(certificate.rows) >= 12
