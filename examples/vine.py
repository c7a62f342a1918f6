"""Vine rollouts on Hopper: how good an action was, by branches from the very state it was taken in.

The advantage of an action is what it returns less what the policy returns from the same state. Vine
(Schulman et al. 2015, "Trust Region Policy Optimization"; Kazemnejad et al. 2024, "VinePPO") plays
K branches from the state before the action, K from the state after it, and takes the difference of
their means. A single path has one return after the action; less a baseline, fitted to independent
episodes from the start. Both estimate the same actions in the same states, with as many steps of
the environment; the truth is the mean of many more branches, which neither sees.

More steps make vine better. The single path gets a better baseline for them (and estimates at other
states, which are not counted here), but one return stays one return: its error does not fall below
that with the best baseline, the true value. With one or two branches vine is no better than that;
with more it is. Without snapshots one could drive to the same state again, by the start's seed and
the actions taken since: as good as vine, for more steps, the last column.

    pip install "branchrt-gym[mujoco,plot]"
    python examples/vine.py [--quick] [--seed 0] [--plot vine.png]
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np

from branchrt_gym.wrappers import BranchWrapper, Snapshot

Array = np.ndarray[Any, Any]
Env = BranchWrapper[Any, Any]
Policy = Callable[[Array], Array]


@dataclass
class Args:
    """What the experiment varies."""

    trajectories: int = 3
    points: int = 4  # actions of each that are judged
    branches: tuple[int, ...] = (1, 2, 4, 8, 16)  # from each state, a power of two
    repetitions: int = 16  # of the most branches; of fewer, more
    reference: int = 256  # branches from each state
    gamma: float = 0.99
    noise: float = 0.3  # of the policy
    good: float = 150.0  # the return at which the policy is good enough
    seed: int = 0


@dataclass
class Point:
    """An action on a trajectory, its state before and after."""

    step: int
    before: Snapshot
    after: Snapshot
    reward: float


def play(env: Env, policy: Policy) -> tuple[Array, Array]:
    """Plays to the end of the episode; returns the observations acted upon, and the rewards."""
    observations, rewards, done = [], [], False
    while not done:
        observations.append(env.observation)
        _, reward, terminated, truncated, _ = env.step(policy(env.observation))
        rewards.append(float(reward))
        done = terminated or truncated
    return np.array(observations), np.array(rewards)


def returns(rewards: Array, gamma: float) -> Array:
    """Returns the discounted return from each step on."""
    after = np.zeros(len(rewards) + 1)
    for step in reversed(range(len(rewards))):
        after[step] = rewards[step] + gamma * after[step + 1]
    return after[:-1]


def some_policy(args: Args, env: Env, rng: np.random.Generator) -> Policy:
    """Finds a linear policy with noise that hops a little, by random search."""

    def acting(weights: Array) -> Policy:
        return lambda observation: np.clip(
            weights[:, :-1] @ observation + weights[:, -1] + args.noise * rng.standard_normal(3),
            -1,
            1,
        )

    best, score = np.zeros((3, 12)), -np.inf
    while score < args.good:
        weights = best + 0.2 * rng.standard_normal(best.shape)
        total = 0.0
        for seed in range(4):
            env.reset(seed=seed)
            total += play(env, acting(weights))[1].sum()
        if total / 4 > score:
            best, score = weights, total / 4
    return acting(best)


def trajectory(args: Args, env: Env, policy: Policy, seed: int) -> list[Point]:
    """Plays an episode, and returns points spread over its first three quarters."""
    env.reset(seed=seed)
    along: list[Point] = []
    done = False
    while not done:
        before = env.snapshot()
        _, reward, terminated, truncated, _ = env.step(policy(env.observation))
        along.append(Point(len(along), before, env.snapshot(), float(reward)))
        done = terminated or truncated
    return [along[i] for i in np.linspace(0, 0.75 * len(along), args.points).astype(int)]


def branch(
    args: Args, env: Env, policy: Policy, points: list[Point], count: int
) -> tuple[Array, Array]:
    """Plays branches from the state before and the state after each point.

    Returns:
        Two arrays `[count, points, 2]`: what the policy returned from before (0), and what the
        action and then the policy returned (1); and the steps that were played for it.
    """
    values = np.zeros((count, len(points), 2))
    steps = np.zeros(values.shape, dtype=int)
    for i, point in enumerate(points):
        for side, snapshot in enumerate((point.before, point.after)):
            for j in range(count):
                env.restore(snapshot)
                rewards = play(env, policy)[1]
                values[j, i, side] = returns(rewards, args.gamma)[0]
                steps[j, i, side] = len(rewards)
        values[:, i, 1] = point.reward + args.gamma * values[:, i, 1]
    return values, steps


def features(observations: Array, step: Array) -> Array:
    """Returns what the baseline is linear in, as in Duan et al. 2016."""
    t = step[:, None] / 100
    return np.concatenate([observations, observations**2, t, t**2, t**3, t**0], axis=1)


def episodes(
    args: Args, env: Env, policy: Policy, rng: np.random.Generator
) -> Iterator[tuple[int, Array, Array]]:
    """Yields the steps of independent episodes, and their part of the baseline's equations."""
    while True:
        env.reset(seed=int(rng.integers(2**31)))
        observations, rewards = play(env, policy)
        seen = features(observations, np.arange(len(rewards)))
        yield len(rewards), seen.T @ seen, seen.T @ returns(rewards, args.gamma)


def baselines(source: list[tuple[int, Array, Array]], at: Array, budget: float) -> Iterator[Array]:
    """Yields the values of baselines at the points, each fitted to at least `budget` steps."""
    steps, left, right = 0, 1e-5 * np.eye(at.shape[1]), np.zeros(at.shape[1])
    for length, of_left, of_right in source:
        steps, left, right = steps + length, left + of_left, right + of_right
        if steps >= budget:
            yield at @ np.linalg.solve(left, right)
            steps, left, right = 0, 1e-5 * np.eye(at.shape[1]), np.zeros(at.shape[1])


@dataclass
class Errors:
    """Spread and error of repeated estimates; with what 2,000 bootstrap samples of them say."""

    sd: Array  # [1 + samples], root of the mean over points of the variance
    mse: Array  # [1 + samples], mean over points; the reference's own variance is taken off

    @staticmethod
    def of(estimates: Array, truth: Array, doubt: float, rng: np.random.Generator) -> "Errors":
        """Computes them from `[repetitions, points]`."""
        count = len(estimates)
        chosen = np.concatenate([np.arange(count)[None], rng.integers(count, size=(2000, count))])
        drawn = [estimates[each] for each in chosen]
        sd = np.array([each.var(axis=0, ddof=1).mean() ** 0.5 for each in drawn])
        return Errors(sd, np.array([((each - truth) ** 2).mean() for each in drawn]) - doubt)


def interval(samples: Array) -> Array:
    return np.percentile(samples[..., 1:], [2.5, 97.5], axis=-1)


@dataclass
class Row:
    """Both estimates at the same number of steps."""

    branches: int
    steps: float
    driven: float  # the steps that vine would take without snapshots
    vine: Errors
    single: Errors

    def __str__(self) -> str:
        """A line of the table."""
        ratio = self.single.mse / self.vine.mse
        told = f"{self.branches:8} {self.steps:8,.0f}"
        for each in (self.vine, self.single):
            low, high = interval(each.sd)
            told += f"  {each.sd[0]:5.2f} [{low:.2f}, {high:.2f}] {max(each.mse[0], 0) ** 0.5:5.2f}"
        low, high = interval(ratio)
        return f"{told} {ratio[0]:6.1f} [{low:4.1f}, {high:4.1f}] {self.driven:9,.0f}"


HEAD = """
                    vine                      single path               ratio of mean
branches    steps   sd [95% interval]   rmse  sd [95% interval]   rmse  squared errors  no snapshots
"""


def plot(path: str, rows: list[Row], floor: float) -> None:
    """Draws spread and error against steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    steps, driven = [row.steps for row in rows], [row.driven for row in rows]
    left, right = figure.subplots(1, 2)
    for axes, name, vine, single, best in (
        (left, "standard deviation", "vine.sd", "single.sd", floor),
        (right, "mean squared error", "vine.mse", "single.mse", floor**2),
    ):
        for label, which in (("vine", vine), ("single path", single)):
            samples = np.array([attrgetter(which)(row) for row in rows])
            axes.plot(steps, samples[:, 0], marker="o", label=label)
            axes.fill_between(steps, *interval(samples), alpha=0.2)
            if which is vine:
                axes.plot(driven, samples[:, 0], "C0--", label="the same without snapshots")
        axes.axhline(best, color="grey", linestyle=":", label="with the best baseline")
        axes.set(xscale="log", yscale="log", xlabel="steps of the environment", ylabel=name)
        axes.legend()
    figure.suptitle("Estimates of advantages on Hopper-v5, with 95% bootstrap intervals")
    figure.savefig(path)


def main() -> None:
    """Measures both, at one number of branches after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within two minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw the table into a file")
    given = parser.parse_args()
    args = Args(seed=given.seed)
    if given.quick:
        args = Args(2, 2, (1, 2, 4, 8), repetitions=12, reference=96, seed=given.seed)

    rng = np.random.default_rng(args.seed)
    env: Env = BranchWrapper(gymnasium.make("Hopper-v5", disable_env_checker=True))
    policy = some_policy(args, env, rng)
    points = []
    for _ in range(args.trajectories):
        points += trajectory(args, env, policy, int(rng.integers(2**31)))
    at = features(
        np.array([point.before.observation for point in points]),
        np.array([point.step for point in points]),
    )

    far, _ = branch(args, env, policy, points, args.reference)
    truth = far[..., 1].mean(axis=0) - far[..., 0].mean(axis=0)
    variance = far.var(axis=0, ddof=1).mean(axis=0)  # over branches; of the values, of the actions
    doubt, floor = variance.sum() / args.reference, variance[1] ** 0.5
    print(f"{len(points)} actions on {args.trajectories} trajectories of Hopper-v5")
    print(f"advantages of {np.mean(truth**2) ** 0.5:.2f} (root mean square) ± {doubt**0.5:.2f}")
    print(f"a single path with the best baseline: standard deviation {floor:.2f}")

    most = args.branches[-1] * args.repetitions
    values, steps = branch(args, env, policy, points, most)
    total = steps.sum() / most  # of one branch on each side of each point
    driving = sum(2 * point.step + 1 for point in points)  # to all of these states
    played, source = 0, []
    for each in episodes(args, env, policy, rng):
        source.append(each)
        played += each[0]
        if played > 1.2 * most * total:
            break

    print(HEAD, end="")
    rows = []
    for count in args.branches:
        means = values.reshape(most // count, count, len(points), 2).mean(axis=1)
        fitted = np.array([*baselines(source, at, count * total)])[: len(means)]
        rows.append(
            Row(
                count,
                steps=count * total,
                driven=count * (total + driving),
                vine=Errors.of(means[..., 1] - means[..., 0], truth, doubt, rng),
                single=Errors.of(values[: len(fitted), :, 1] - fitted, truth, doubt, rng),
            )
        )
        print(rows[-1])
    if given.plot:
        plot(given.plot, rows, floor)
    assert rows[-1].vine.sd[0] < rows[-1].single.sd[0]


if __name__ == "__main__":
    main()
