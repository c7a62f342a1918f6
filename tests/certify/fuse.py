"""A scalar environment whose ends its actions choose, so that cases can be worked by hand."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from branchrt_gym.oracle import Oracle

ON, END, CUT = 0, 1, 2


class Fuse(Oracle):
    """ON burns on for 1, END terminates for 10 and solves, CUT truncates for 0.

    Observes (episode + 1, depth + 1), so that a constant observation is told from a start.
    """

    branch_fields = ("score",)

    def __init__(self):
        self.observation_space = Box(0, 1000, (2,), np.int64)
        self.action_space = Discrete(3)

    def make_context(self, key):
        return ("context of", key)

    def start(self):
        self.score = 0

    def advance(self, action, key):
        reward = (1, 10, 0)[action]
        self.score += reward
        return reward, action == END, action == CUT, action == END

    def observe(self):
        return np.array([self.episode + 1, self.depth + 1])


class Flat(Fuse):
    """Fuse with nothing to choose between."""

    def advance(self, action, key):
        return 0, action == END, action == CUT, False
