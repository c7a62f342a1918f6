"""Monte-Carlo tree search plays FrozenLake and CartPole: nothing is learned, only looked ahead.

Environments are forked in every simulation. On FrozenLake-v1 the ice is slippery: each simulation
has luck of its own, so that a plan knows the chances and not what will come. CartPole-v1 has no
chance after its start, so the points of a tree keep their state and no step is taken twice.

    python examples/mcts.py [--quick]

Five policies play the same starts:

    random    any action
    greedy    tries each action in forks, and takes the one whose reward is highest on average; of
              equals one by chance
    nearest   the same on the lake by the reward and an estimate of the square that is reached
    flat      spends what MCTS spends on random play after each action, and takes the best mean
    mcts      UCT, through `TreeSearch`

A random walk hardly ever crosses the lake, so `mcts` is given an estimate of a square there: by the
distance to the goal, holes and slipping not considered. `nearest` says what that is worth without a
tree: at the budget of `--quick` more than with one. Only `random` and `greedy` must be beaten. What
is seen on the lake is the whole state but for the time, so a choice is made once for each square
and remembered, by every policy but `random`: chance enters the choices of a row once, and its
interval is that of playing them. On CartPole there is no estimate: `mcts` plays on at random, and
`greedy`, whose every step is paid alike, cannot tell the actions apart before the last one.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np

from branchrt_gym.wrappers import BranchWrapper, TreeSearch

DISCOUNT = 0.99


@dataclass
class Args:
    """What the experiment varies."""

    lake_episodes: int = 2000
    lake_transitions: int = 20_000  # of each plan
    pole_episodes: int = 20
    pole_transitions: int = 300
    pole_steps: int = 500  # of an episode, at most
    samples: int = 32  # of each action, for `greedy`
    seed: int = 0


Choose = Callable[[BranchWrapper, np.random.Generator], int]
Estimate = Callable[[np.ndarray], np.ndarray]


def distance(squares: np.ndarray) -> np.ndarray:
    """Estimates squares of the lake by the steps to the goal in its corner."""
    return 0.9 ** ((3 - squares // 4) + (3 - squares % 4))


def nothing(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations))


def best(means: np.ndarray, rng: np.random.Generator) -> int:
    """Returns the highest one's place, of equals one by chance."""
    return int(rng.choice(np.flatnonzero(means == means.max())))


def any_action(env: BranchWrapper, rng: np.random.Generator) -> int:
    return int(rng.integers(env.action_space.n))


def greedy(samples: int, estimate: Estimate) -> Choose:
    def choose(env: BranchWrapper, rng: np.random.Generator) -> int:
        means = np.zeros(env.action_space.n)
        for action in range(len(means)):
            for fork in env.fork(samples):
                observation, reward, terminated, truncated, _ = fork.step(action)
                means[action] += float(reward)
                if not (terminated or truncated):
                    means[action] += DISCOUNT * estimate(np.array([observation]))[0]
        return best(means, rng)

    return choose


def flat(transitions: int) -> Choose:
    def choose(env: BranchWrapper, rng: np.random.Generator) -> int:
        count, left = env.action_space.n, transitions
        sums, tries = np.zeros(count), np.zeros(count)
        while left > 0:
            first = action = int(tries.argmin())
            (fork,) = env.fork()
            ended = False
            while not ended and left > 0:
                _, reward, terminated, truncated, _ = fork.step(action)
                sums[first] += float(reward)
                ended, left = terminated or truncated, left - 1
                action = any_action(env, rng)
            tries[first] += 1
        return best(sums / np.maximum(tries, 1), rng)

    return choose


def mcts(transitions: int, rng: str, **options: object) -> Choose:
    def choose(env: BranchWrapper, source: np.random.Generator) -> int:
        search = TreeSearch(env, rng=rng, discount=DISCOUNT, seed=int(source.integers(2**62)))
        return search.mcts(transitions=transitions, **options).action

    return choose


def remembered(choose: Choose) -> Choose:
    """Makes each choice once for what is observed."""
    known: dict[int, int] = {}

    def again(env: BranchWrapper, rng: np.random.Generator) -> int:
        square = int(env.observation)
        if square not in known:
            known[square] = choose(env, rng)
        return known[square]

    return again


def returns(env: BranchWrapper, choose: Choose, episodes: int, seed: int) -> np.ndarray:
    """Plays episodes; returns what each earned."""
    rng, earned = np.random.default_rng(seed), np.zeros(episodes)
    for episode in range(episodes):
        env.reset(seed=seed + episode)
        ended = False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(choose(env, rng))
            earned[episode] += float(reward)
            ended = terminated or truncated
    return earned


def interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    means = [rng.choice(values, len(values)).mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def compare(env: BranchWrapper, policies: dict[str, Choose], episodes: int, seed: int) -> None:
    """Prints what each policy earns, and makes sure that MCTS earns more than two of them."""
    found = {}
    for name, choose in policies.items():
        earned = returns(env, choose, episodes, seed)
        low, high = found[name] = interval(earned)
        print(f"  {name:7} {earned.mean():8.3f}   95 %: {low:.3f} … {high:.3f}", flush=True)
    assert found["mcts"][0] > max(found["random"][1], found["greedy"][1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    args = Args()
    if parser.parse_args().quick:
        args = Args(
            lake_episodes=400,
            lake_transitions=3000,
            pole_episodes=8,
            pole_transitions=100,
            pole_steps=120,
        )

    print(f"FrozenLake-v1, {args.lake_episodes} episodes, {args.lake_transitions:,} transitions")
    look = mcts(
        args.lake_transitions, "split", value=distance, points_by="observation", exploration=3.0
    )
    policies = {
        "random": any_action,
        "greedy": remembered(greedy(args.samples, nothing)),
        "nearest": remembered(greedy(args.samples, distance)),
        "flat": remembered(flat(args.lake_transitions)),
        "mcts": remembered(look),
    }
    lake = BranchWrapper(gymnasium.make("FrozenLake-v1"))
    compare(lake, policies, args.lake_episodes, args.seed)

    print(f"CartPole-v1, {args.pole_episodes} episodes, {args.pole_transitions:,} transitions")
    policies = {
        "random": any_action,
        "greedy": greedy(1, nothing),  # there is no chance to average over
        "flat": flat(args.pole_transitions),
        "mcts": mcts(args.pole_transitions, "shared"),
    }
    pole = BranchWrapper(gymnasium.make("CartPole-v1", max_episode_steps=args.pole_steps))
    compare(pole, policies, args.pole_episodes, args.seed)


if __name__ == "__main__":
    main()
