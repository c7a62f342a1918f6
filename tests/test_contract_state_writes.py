"""A transition that writes into the branches it was given is refused."""

import pytest

from branchrt_gym import BranchingVectorEnv, DeepTree
from branchrt_gym.errors import ContractError


class Spoils(DeepTree):
    def transition(self, shared, branches, action):
        branches.state["score"].add_(1)
        return super().transition(shared, branches, action)


@pytest.mark.parametrize("debug", [False, True])
def test_a_write_into_the_state_is_refused(debug):
    envs = BranchingVectorEnv(Spoils(width=97), 4, debug=debug)
    envs.reset(seed=0)
    with pytest.raises(ContractError, match=r"`transition` wrote into `branches.state\['score'\]`"):
        envs.step([0] * 4)
