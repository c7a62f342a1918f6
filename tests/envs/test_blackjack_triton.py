"""The device functions against the batched rules: every pair of hands, many shoes."""

import itertools

import pytest
import torch

from branchrt_gym.contract import Branches
from branchrt_gym.envs.blackjack import Blackjack

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
device_rules = pytest.importorskip("branchrt_gym.envs.blackjack_triton")

transition, initial = device_rules.transition, device_rules.initial
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = [dict(natural=n, sab=s) for n, s in itertools.product((False, True), repeat=2)]
BLOCK = 4096


@triton.jit
def step_hands(
    player, dealer, action, key, out, rewards, PARAMS: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    hand = tl.load(player + at)
    state = (hand, tl.load(dealer + at), hand, hand > 0, hand.to(tl.int32))
    fresh, reward, terminated, truncated, solved = transition(
        (), hand, hand, tl.load(key + at), state, tl.load(action + at), PARAMS
    )
    size = BLOCK * tl.num_programs(0)
    tl.store(rewards + at, reward)
    for j in tl.static_range(5):
        tl.store(out + j * size + at, fresh[j].to(tl.int32))
    tl.store(out + 5 * size + at, terminated.to(tl.int32))
    tl.store(out + 6 * size + at, truncated.to(tl.int32))
    tl.store(out + 7 * size + at, solved.to(tl.int32))


@triton.jit
def deal_hands(key, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    state = initial((), at, tl.load(key + at), ())
    for j in tl.static_range(5):
        tl.store(out + j * BLOCK * tl.num_programs(0) + at, state[j].to(tl.int32))


def keys(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator).to(DEVICE)


def test_every_deal():
    count = 4 * BLOCK
    key = keys(count)
    wanted = Blackjack().initial({}, torch.zeros_like(key), key)
    out = torch.full((5, count), -77, dtype=torch.int32, device=DEVICE)
    deal_hands[(4,)](key, out, BLOCK)
    for row, values in zip(out, wanted.values(), strict=True):
        assert torch.equal(row, values.int())
    assert len(torch.stack([*wanted.values()]).unique(dim=1).T) > 2000  # nearly all there are


@pytest.mark.parametrize("options", OPTIONS)
def test_every_pair_of_hands(options):
    env = Blackjack(**options)
    first = env._tables_on(torch.device(DEVICE)).first.unique()
    # A player may have hit; a dealer has two cards.
    more = torch.arange(2, 22, dtype=torch.int8, device=DEVICE)
    players = torch.cat([first, more, more[10:] | 32]).unique()
    pairs = torch.cartesian_prod(players, first, torch.arange(2, dtype=torch.int8, device=DEVICE))
    programs = -(-8 * len(pairs) // BLOCK)
    rows = torch.arange(programs * BLOCK, device=DEVICE) % len(pairs)
    player, dealer, action = (column[rows].contiguous() for column in pairs.T)
    key, count = keys(len(rows)), len(rows)
    state = {
        "player": player,
        "dealer": dealer,
        "face_up": player,
        "over": player > 0,
        "score": player.int(),
    }
    zeros = torch.zeros_like(key)
    wanted = env.transition({}, Branches(zeros, zeros.int(), state, key), action.long())
    out = torch.full((8, count), -77, dtype=torch.int32, device=DEVICE)
    rewards = torch.full((count,), -77.0, device=DEVICE)
    params = env.transition_kernel(torch.device(DEVICE)).params
    step_hands[(programs,)](player, dealer, action.int(), key, out, rewards, params, BLOCK)
    flags = (wanted.terminated, wanted.truncated, wanted.solved)
    for row, values in zip(out, [*wanted.state.values(), *flags], strict=True):
        assert torch.equal(row, values.int())
    assert torch.equal(rewards, wanted.reward)
    assert (wanted.state["dealer"] & 31).max() > 21
