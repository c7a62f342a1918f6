"""Random rollouts that fork the best and prune the rest, against random rollouts that do not.

Both take the same number of transitions from the same roots. Every few steps the first lets go of
the worse half of each root's branches and forks the better half in its place.

    python examples/fork_the_best.py [--quick]
"""

import argparse
from dataclasses import dataclass

import gymnasium
import numpy as np

import branchrt_gym  # noqa: F401  (registers branchrt/DeepTree-v0)


@dataclass
class Args:
    """What the experiment varies."""

    roots: int = 16
    branches: int = 64  # of each root
    depth: int = 64
    every: int = 2  # steps between selections
    seed: int = 0


def rollout(args: Args, select: bool) -> np.ndarray:
    """Returns the best score of each root."""
    envs = gymnasium.make_vec(
        "branchrt/DeepTree-v0",
        num_envs=args.roots * args.branches,
        num_roots=args.roots,
        num_contexts=args.roots,
        depth=args.depth,
        autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
    )
    population = envs.unwrapped
    rng = np.random.default_rng(args.seed)
    envs.reset(seed=args.seed)
    population.fork(np.arange(args.roots), counts=args.branches - 1)
    score = np.zeros(envs.num_envs)
    for step in range(args.depth):
        actions = rng.integers(0, envs.single_action_space.n, envs.num_envs)
        _, rewards, *_ = envs.step(actions)
        score += rewards
        if select and (step + 1) % args.every == 0 and step + 1 < args.depth:
            # Slots by root, best first: the first half of each root's stays.
            order = np.lexsort((-score, population.roots)).reshape(args.roots, args.branches)
            better, worse = np.split(order, 2, axis=1)
            population.prune(worse.ravel())
            parents = better.ravel()
            children = population.fork(parents)
            score[children] = score[parents]
    best = np.full(args.roots, -np.inf)
    np.maximum.at(best, population.roots, score)
    envs.close()
    return best


def main() -> None:
    """Runs both and prints the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within seconds")
    quick = parser.parse_args().quick
    args = Args(roots=4, branches=16, depth=16) if quick else Args()
    alone, forked = rollout(args, select=False), rollout(args, select=True)
    print(f"best of {args.branches} random rollouts, mean over roots: {alone.mean():8.0f}")
    print(f"the same number, forking the best:          {forked.mean():8.0f}")
    assert forked.mean() > alone.mean()


if __name__ == "__main__":
    main()
