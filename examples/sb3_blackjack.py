"""Stable-Baselines3's PPO learns Blackjack, up to the best return that there is.

Blackjack is small enough to be solved exactly: the best return, and the return of what PPO has
learned, are computed from the rules, without playing. The hands that PPO learns from are played by
`branchrt/Blackjack-v0`, a thousand at a time, through `BranchingVecEnv`.

    python examples/sb3_blackjack.py [--quick]

With `--quick` PPO comes within 0.01 of the best return in half a minute; without it, within 0.003
in two minutes. Random play is 0.35 below it.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import gymnasium
import numpy as np
import torch

import branchrt_gym  # noqa: F401  makes the environment known

CARDS = [(card, (4 if card == 10 else 1) / 13) for card in range(1, 11)]  # an ace is 1
Policy = Callable[[int, int, bool], float]  # the probability of a hit, by what is seen


@dataclass
class Args:
    """What the experiment varies."""

    num_envs: int = 1024
    n_steps: int = 8  # of each environment, between two updates
    total_timesteps: int = 3_000_000
    learning_rate: float = 1e-3  # falls to 0
    within: float = 0.003  # of the best return
    hands: int = 200_000  # played afterwards
    seed: int = 0


def with_card(total: int, usable: bool, card: int) -> tuple[int, bool]:
    """Returns the hand after one more card: its sum, and whether an ace counts as 11."""
    total += card
    if card == 1 and total <= 11:
        return total + 10, True
    if total > 21 and usable:
        return total - 10, False
    return total, usable


@cache
def dealer(total: int, usable: bool) -> dict[int, float]:
    """Returns the chances of the dealer's last sum, 0 for more than 21, from a hand."""
    if total > 21:
        return {0: 1.0}
    if total >= 17:
        return {total: 1.0}
    chances: dict[int, float] = {}
    for card, chance in CARDS:
        for last, then in dealer(*with_card(total, usable, card)).items():
            chances[last] = chances.get(last, 0.0) + chance * then
    return chances


@cache
def stick(total: int, shown: int) -> float:
    """Returns what sticking is worth against the dealer's shown card."""
    value = 0.0
    first = with_card(0, False, shown)
    for card, chance in CARDS:
        for last, then in dealer(*with_card(*first, card)).items():
            value += chance * then * float(np.sign(total - last))
    return value


def expected_return(policy: Policy | None) -> float:
    """Returns the exact mean return of a policy; of the best one for None."""

    @cache
    def hit(total: int, usable: bool, shown: int) -> float:
        return sum(chance * value(*with_card(total, usable, card), shown) for card, chance in CARDS)

    @cache
    def value(total: int, usable: bool, shown: int) -> float:
        if total > 21:
            return -1.0
        if policy is None:
            return max(stick(total, shown), hit(total, usable, shown))
        hits = policy(total, shown, usable)
        return (1 - hits) * stick(total, shown) + hits * hit(total, usable, shown)

    mean = 0.0
    for shown, chance in CARDS:
        for one, of_one in CARDS:
            for two, of_two in CARDS:
                hand = with_card(*with_card(0, False, one), two)
                mean += chance * of_one * of_two * value(*hand, shown)
    return mean


def main() -> None:
    """Learns, and compares."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    from branchrt_gym.integrations.sb3 import BranchingVecEnv

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end in half a minute")
    args = Args()
    if parser.parse_args().quick:
        args = Args(total_timesteps=500_000, within=0.01, hands=50_000)
    torch.set_num_threads(1)  # the network is small
    best = expected_return(None)
    print(f"the best return that there is: {best:.5f}")

    def make() -> BranchingVecEnv:
        return BranchingVecEnv(
            gymnasium.make_vec(
                "branchrt/Blackjack-v0", num_envs=args.num_envs, autoreset_mode="SameStep"
            )
        )

    envs = VecMonitor(make())
    space = envs.observation_space
    print(f"observations: a Tuple, flattened to {space.shape[0]} numbers, one hot")
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=args.n_steps,
        batch_size=2048,
        n_epochs=4,
        gamma=1.0,
        gae_lambda=1.0,
        ent_coef=0.005,
        learning_rate=lambda left: args.learning_rate * left,
        seed=args.seed,
        device="cpu",
    )

    def greedy(total: int, shown: int, usable: bool) -> float:
        seen = np.zeros(space.shape, dtype=np.int64)
        seen[[total, 32 + shown, 43 + usable]] = 1
        return float(model.predict(seen, deterministic=True)[0])

    print(f"PPO before it has learned: {expected_return(greedy):.5f}")
    for _ in range(4):
        model.learn(args.total_timesteps // 4, reset_num_timesteps=model.num_timesteps == 0)
        print(f"after {model.num_timesteps:,} steps: {expected_return(greedy):.5f}")
    learned = expected_return(greedy)

    each = args.hands // args.num_envs  # of every environment, so that short hands count no more
    test, played, returns = make(), np.zeros(args.num_envs, dtype=int), []
    test.seed(args.seed + 1)
    seen = test.reset()
    while (played < each).any():
        actions, _ = model.predict(seen, deterministic=True)
        seen, rewards, dones, _ = test.step(actions)
        returns += rewards[dones & (played < each)].tolist()
        played += dones
    error = np.std(returns) / len(returns) ** 0.5
    print(f"it played {len(returns):,} hands: {np.mean(returns):.4f} ± {error:.4f} a hand")
    print(f"PPO is {best - learned:.5f} below the best return, exactly")
    assert 0 <= best - learned < args.within
    assert abs(np.mean(returns) - learned) < 5 * error


if __name__ == "__main__":
    main()
