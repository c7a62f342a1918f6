"""A toy text agent that works by turns, branches at each, and is trained on what it wrote.

The agent guesses a number; the game answers "higher" or "lower". A turn is opaque to the runtime:
it asks a callable for candidates and another for verdicts. As soon as one branch names the number,
its siblings are pruned. What was said is kept in the lineage, once for all branches that share it,
and comes out as padded batches of tokens (here bytes) with masks.

    python examples/text_agent.py [--quick]
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch

from branchrt_gym import (
    Batch,
    Beam,
    Contract,
    Expansion,
    Frontier,
    Trajectories,
    Verdicts,
    branch_step,
    log,
)

TURN = 48  # bytes of a turn, at most


@dataclass
class Args:
    """What the experiment varies."""

    tasks: int = 64
    candidates: int = 4  # of each branch, at each turn
    width: int = 8  # branches of each task
    turns: int = 10
    top: int = 1000  # numbers lie below it
    seed: int = 0


@dataclass(frozen=True)
class Knowledge:
    """What a branch of the agent knows: the number is `low`, …, `high`."""

    low: int
    high: int
    guessed: int = -1


class Game:
    """The agent, the game and the verifier."""

    def __init__(self, args: Args) -> None:
        """Draws the numbers."""
        self.args = args
        self.draw = np.random.default_rng(args.seed)
        self.secret = self.draw.integers(0, args.top, args.tasks)
        self.turns = 0

    def turn(self, batch: Batch) -> Expansion:
        """Lets the agent make its candidates for each branch, and the game answer them."""
        parents, payloads, said = [], [], []
        for place, (root, known) in enumerate(
            zip(batch.root.tolist(), batch.payloads, strict=True)
        ):
            for guess in self.draw.integers(known.low, known.high + 1, self.args.candidates):
                guess, secret = int(guess), int(self.secret[root])
                answer = "yes" if guess == secret else "higher" if guess < secret else "lower"
                low = max(known.low, guess + 1) if guess < secret else known.low
                high = min(known.high, guess - 1) if guess > secret else known.high
                parents.append(place)
                payloads.append(Knowledge(low, high, guess))
                said.append((f"<agent>is it {guess}?", f"<game>{answer}."))
        self.turns += len(parents)
        return Expansion(
            parents=parents,
            payloads=payloads,
            rewards=[-0.01] * len(parents),
            done=[False] * len(parents),
            log=tokens(said),
        )

    def verify(self, batch: Batch) -> Verdicts:
        """Passes a branch that named the number; ranks the others by what they rule out."""
        secret = self.secret[batch.root.numpy()]
        return Verdicts(
            passed=np.array([known.guessed for known in batch.payloads]) == secret,
            score=[known.low - known.high for known in batch.payloads],
        )


def tokens(said: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Returns the log fields of turns: their bytes, how many, and how many are the agent's own."""
    rows = np.zeros((len(said), TURN), dtype=np.uint8)
    for row, turn in zip(rows, said, strict=True):
        spoken = "".join(turn).encode()
        assert len(spoken) <= TURN, f"{len(spoken)} bytes in a turn; make TURN {TURN} larger"
        row[: len(spoken)] = list(spoken)
    size = torch.tensor([len("".join(turn).encode()) for turn in said], dtype=torch.int32)
    own = torch.tensor([len(turn[0].encode()) for turn in said], dtype=torch.int32)
    return {"bytes": torch.from_numpy(rows), "size": size, "own": own}


def batch_of(paths: Trajectories) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns `input_ids`, `attention_mask` and `loss_mask`, `[B, L]`: the loss is on own words."""
    ids, mask, step = paths.packed("bytes", paths.log["size"])
    size, own = paths.log["size"], paths.log["own"]
    first = torch.nn.functional.pad(size.cumsum(1), (1, 0))  # where each turn begins
    offset = torch.arange(ids.shape[1]) - first.gather(1, step)
    own = torch.nn.functional.pad(own, (0, 1)).gather(1, step)
    return ids, mask, mask & (offset < own)


def main() -> None:
    """Plays, exports, and shows one transcript."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within seconds")
    args = Args(tasks=8) if parser.parse_args().quick else Args()
    game = Game(args)
    spoken = Contract(
        {
            "bytes": log((TURN,), torch.uint8),
            "size": log((), torch.int32),
            "own": log((), torch.int32),
        }
    )
    frontier = Frontier(
        num_slots=args.tasks * args.width,
        num_roots=args.tasks,
        contract=spoken,
        lineage_capacity=args.tasks * (1 + args.width * args.turns),
    )
    frontier.start(seed=args.seed, payloads=[Knowledge(0, args.top - 1)] * args.tasks)
    for turn in range(args.turns):
        if not frontier.live.any():
            break
        frontier, _, _ = branch_step(frontier, game.turn, game.verify, policy=Beam(args.width))
        print(f"turn {turn + 1}: {int(frontier.solved.sum())} of {args.tasks} tasks solved")
    frontier.prune(frontier.live)

    winners = frontier.branch_id[frontier.status != 0]
    paths = frontier.trajectories(winners)
    input_ids, attention, loss = batch_of(paths)
    print(f"{len(winners)} solved branches as a batch of {tuple(input_ids.shape)} tokens,")
    print(f"{int(loss.sum())} of {int(attention.sum())} with a loss; {game.turns} turns played")
    print(bytes(input_ids[0][attention[0]].tolist()).decode())
    assert bool(paths.solved.all()) and bool(frontier.solved.any())
    assert bytes(input_ids[0][loss[0]].tolist()).decode().count("<agent>") == int(paths.length[0])


if __name__ == "__main__":
    main()
