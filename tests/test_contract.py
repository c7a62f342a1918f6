"""The state contract: what is refused, and what the hooks are checked for."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from branchrt_gym import (
    BranchEnv,
    BranchingVectorEnv,
    Contract,
    Field,
    Frontier,
    Transition,
    branch,
    log,
    read_shared,
    shared,
)
from branchrt_gym.errors import ContractError
from branchrt_gym.kernels import bounded, fold

INT = torch.int32


class Maze(BranchEnv):
    """Chance, every kind of field but `paged`, and an observation of every kind of space.

    `plant` maps a hook to what is done to its result, to plant a fault.
    """

    reward_dtype = torch.float32

    def __init__(self, **plant):
        self.plant = plant
        self.contract = Contract(
            {
                "table": shared((4,), torch.int64),
                "gain": shared((2,), torch.float64, per_context=False),
                "score": branch((), INT),
                "grid": branch((2, 3), torch.float32),
                "odd": branch((), torch.bool),
                "said": log((2,), INT),
                "high": log((), torch.bool),
            }
        )
        self.single_observation_space = spaces.Dict(
            draw=spaces.Discrete(64, start=2),
            pair=spaces.Tuple((spaces.Box(-9, 9, (2, 3), np.float32), spaces.MultiBinary(2))),
            depth=spaces.MultiDiscrete([50, 60], start=[3, -1]),
        )
        self.single_action_space = spaces.Discrete(4, start=1)

    def _give(self, hook, result):
        return self.plant[hook](result) if hook in self.plant else result

    def initial_shared(self, keys):
        table = torch.stack([bounded(fold(keys, i), 50) for i in range(4)], dim=1)
        gain = torch.tensor([0.5, 2.0], dtype=torch.float64)
        return self._give("initial_shared", {"table": table, "gain": gain})

    def initial(self, shared, context_index, keys):
        score = bounded(fold(keys, 0), 9).to(INT)
        grid = torch.zeros(keys.shape[0], 2, 3)
        state = {"score": score, "grid": grid, "odd": score % 2 == 1}
        return self._give("initial", state)

    def transition(self, shared, branches, action):
        draw = bounded(fold(branches.key, 0), 50)
        entry = read_shared(shared["table"], branches.context_index, action - 1)
        score = (branches.state["score"] + draw + entry).to(INT) % 1000
        grid = branches.state["grid"].clone()
        grid[:, 0, 1] = draw.to(torch.float32) / 10
        state = {"score": score, "grid": grid, "odd": ~branches.state["odd"]}
        reward = (draw * shared["gain"][1]).to(torch.float32)
        said = torch.stack([action.to(INT), score], dim=1)
        step = Transition(
            state,
            reward,
            terminated=draw >= 45,
            truncated=branches.depth >= 8,
            solved=draw == 49,
            log={"said": said, "high": draw > 20},
        )
        if "write" in self.plant:
            self.plant["write"](shared)
        return self._give("transition", step)

    def observation(self, shared, branches):
        score, depth = branches.state["score"].to(torch.int64), branches.depth.to(torch.int64)
        flags = torch.stack([branches.state["odd"], ~branches.state["odd"]], dim=1)
        seen = {
            "draw": score % 60 + 3,
            "pair": (branches.state["grid"], flags.to(torch.int8)),
            "depth": torch.stack([depth + 3, depth], dim=1),
        }
        return self._give("observation", seen)


def make(num_envs=6, num_roots=2, seed=1, rules=None, **more):
    envs = BranchingVectorEnv(rules or Maze(), num_envs, num_roots=num_roots, **more)
    envs.reset(seed=seed)
    return envs


def everything(envs):
    return {name: value.clone() for name, value in envs.snapshot().tensors.items()}


def assert_same(mine, their):
    assert mine.keys() == their.keys()
    for name in mine:
        assert torch.equal(mine[name], their[name]), name


@pytest.mark.parametrize(
    ("name", "field", "text"),
    [
        ("place", Field("stack", (), INT), "`place`.*'stack'.*shared, branch, paged, log"),
        ("place", Field(None, (), INT), "`place`.*None"),
        ("place", Field("paged", (8, 2), INT), "`place`.*`paged`.*flatten"),
        ("place", branch((None,), INT), r"`place`.*\(None,\).*non-negative"),
        ("place", branch((-1,), INT), r"`place`.*\(-1,\)"),
        ("place", branch([2], INT), r"`place`.*\[2\].*tuple"),
        ("place", branch((2.0,), INT), r"`place`.*\(2.0,\)"),
        ("place", branch((True,), INT), r"`place`.*\(True,\)"),
        ("place", branch(3, INT), "`place`.*3.*tuple"),
        ("place", branch((), np.int32), "`place`.*int32.*torch dtype"),
        ("place", branch((), torch.complex64), "`place`.*complex64.*torch dtype"),
        ("place", branch((), object), "`place`.*object.*torch dtype"),
        ("place", branch((), np.dtype(object)), "`place`.*dtype.*torch dtype"),
        ("place", (), "`place`.*tuple.*Field"),
        ("my place", branch((), INT), "`my place`.*identifier"),
        ("", branch((), INT), "identifier"),
        (3, branch((), INT), "`3`.*identifier"),
        *((name, branch((), INT), f"`{name}`.*frontier") for name in Frontier.COLUMNS),
        *((name, log((), INT), f"`{name}`") for name in ("status", "action", "reward", "flags")),
    ],
)
def test_a_wrong_field_is_named(name, field, text):
    with pytest.raises(ContractError, match=f"(?s){text}"):
        Contract({"fine": branch((), INT), name: field})


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("contract", None, "`Maze.contract`"),
        ("single_observation_space", None, "`Maze.single_observation_space`"),
        ("single_observation_space", spaces.Text(3), "`single_observation_space`.*Text"),
        ("single_observation_space", spaces.Dict(a=spaces.Text(3)), r"space\['a'\]`.*Text"),
        ("single_action_space", spaces.Tuple([spaces.Discrete(2)]), "`single_action_space`.*Tuple"),
        ("single_action_space", 4, "`Maze.single_action_space`"),
        ("reward_dtype", np.float32, "`Maze.reward_dtype`.*torch dtype"),
        ("score", "grid", "`Maze.score`.*`grid`.*integer"),
        ("score", "table", "`Maze.score`.*`table`.*shared"),
    ],
)
def test_a_wrong_declaration_is_named(attribute, value, text):
    rules = Maze()
    setattr(rules, attribute, value)
    with pytest.raises(ContractError, match=text):
        BranchingVectorEnv(rules, 2)


def with_state(**new):
    return lambda step: step._replace(state={**step.state, **new})


FAULTS = {
    "initial_shared": [
        (lambda f: {**f, "table": f["table"].to(INT)}, "`table`.*int32.*int64.*(2, 4)"),
        (lambda f: {**f, "table": f["table"][:1]}, "`table`.*(1, 4).*(2, 4)"),
        (lambda f: {**f, "gain": f["gain"][None]}, "`gain`.*(1, 2).*(2,)"),
        (lambda f: {"table": f["table"]}, "lacks.*gain"),
        (lambda f: f | {"more": f["gain"]}, "has.*more"),
        (lambda f: list(f), "list.*dict"),
    ],
    "initial": [
        (lambda s: {**s, "score": s["score"].long()}, "`score`.*int64.*int32"),
        (lambda s: {**s, "grid": s["grid"][:, 0]}, "`grid`.*(2, 3).*(2, 2, 3)"),
        (lambda s: {**s, "odd": [True, False]}, "`odd`.*list.*tensor"),
        (lambda s: {"score": s["score"]}, "lacks.*grid.*odd"),
    ],
    "transition": [
        (with_state(score=torch.zeros(6)), "`score`.*float32.*int32"),
        (with_state(grid=torch.zeros(6, 3, 2)), "`grid`.*(6, 3, 2).*(6, 2, 3)"),
        (with_state(other=torch.zeros(6)), "has.*other"),
        (lambda t: t._replace(reward=t.reward.double()), "`reward`.*float64.*float32"),
        (lambda t: t._replace(reward=t.reward[:, None]), "`reward`.*(6, 1).*(6,)"),
        (lambda t: t._replace(solved=t.solved.int()), "`solved`.*int32.*bool"),
        (lambda t: t._replace(terminated=False), "`terminated`.*bool.*tensor"),
        (lambda t: t._replace(log={}), "lacks.*said"),
        (lambda t: t._replace(log={**t.log, "said": t.log["said"][:, :1]}), "`said`.*(6, 1)"),
    ],
    "observation": [
        (lambda o: {**o, "draw": o["draw"].int()}, "draw.*int32.*int64"),
        (lambda o: {**o, "depth": o["depth"][:, 0]}, "depth.*(6,).*(6, 2)"),
        (lambda o: {**o, "pair": list(o["pair"])}, "pair.*tuple"),
        (lambda o: {**o, "pair": o["pair"][:1]}, "pair.*tuple of 2"),
        (lambda o: {"draw": o["draw"]}, "lacks.*depth.*pair"),
        (lambda o: o["draw"], "dict"),
    ],
}


@pytest.mark.parametrize(("hook", "fault", "text"), [(h, *f) for h in FAULTS for f in FAULTS[h]])
def test_what_a_hook_returns_is_checked(hook, fault, text):
    text = text.replace("(", r"\(").replace(")", r"\)")
    envs = BranchingVectorEnv(Maze(**{hook: fault}), 6, num_roots=2)
    with pytest.raises(ContractError, match=f"(?s)`{hook}.*{text}"):
        envs.reset(seed=1)
        envs.step([1] * 6)


@pytest.mark.parametrize(("hook", "fault", "text"), [(h, *FAULTS[h][0]) for h in FAULTS])
def test_with_debug_every_call_is_checked_and_a_fault_changes_nothing(hook, fault, text):
    rules = Maze()
    envs = make(rules=rules, debug=True, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.fork([0, 1])
    for _ in range(2):
        envs.step([2] * 6)
    rules.plant = {hook: fault}  # with `initial`, it shows in the step that restarts a root
    with pytest.raises(ContractError, match=f"`{hook}"):
        for _ in range(20):
            before = everything(envs)
            envs.reset(seed=2) if hook == "initial_shared" else envs.step([1] * 6)
    assert_same(everything(envs), before)


WRITES = {
    "index": lambda shared: shared["table"].__setitem__((0, 1), 5),
    "view": lambda shared: shared["table"].view(-1)[2:].add_(1),
    "once for all": lambda shared: shared["gain"].mul_(2),
    "numpy": lambda shared: shared["gain"].numpy().fill(3),
    "another tensor": lambda shared: shared.update(gain=shared["gain"] + 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_debug_finds_a_transition_that_writes_a_shared_field(write):
    rules = Maze()
    envs = make(rules=rules, debug=True)
    envs.step([1] * 6)
    rules.plant = {"write": WRITES[write]}
    name = "gain" if write in ("once for all", "numpy", "another tensor") else "table"
    with pytest.raises(ContractError, match=f"`transition`.*`{name}`.*`shared`"):
        envs.step([1] * 6)


class Swap(BranchEnv):
    """Two fields change places at each step; returned as they came, not copied."""

    def __init__(self):
        self.contract = Contract({"one": branch((), INT), "two": branch((), INT)})
        self.single_observation_space = spaces.Box(-9, 9, (2,), np.int32)
        self.single_action_space = spaces.Discrete(2)

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        one = torch.ones(keys.shape[0], dtype=INT)
        return {"one": one, "two": one + 1}

    def transition(self, shared, branches, action):
        no = torch.zeros_like(branches.depth, dtype=torch.bool)
        state = {"one": branches.state["two"], "two": branches.state["one"]}
        return Transition(state, torch.zeros(no.shape), no, no, no)

    def observation(self, shared, branches):
        return torch.stack([branches.state["one"], branches.state["two"]], dim=1)


def test_fields_may_come_back_as_they_were_given():
    envs = make(4, 3, rules=Swap())
    assert envs.observe().tolist() == [[1, 2]] * 3 + [[0, 0]]
    assert envs.step([0] * 4)[0].tolist() == [[2, 1]] * 3 + [[0, 0]]
    assert envs.step([0] * 4)[0].tolist() == [[1, 2]] * 3 + [[0, 0]]


def test_a_first_state_need_not_be_contiguous():
    envs = make(4, 3, rules=Maze(initial=lambda s: {**s, "score": s["score"][:1].expand(3)}))
    assert len(set(envs.frontier.state["score"][:3].tolist())) == 1


@pytest.mark.parametrize("name", ["valid", "self"])
def test_a_log_field_may_have_any_name_that_is_not_reserved(name):
    rules = Maze(transition=lambda t: t._replace(log={**t.log, name: t.log["high"]}))
    rules.contract = Contract({**rules.contract.fields, name: log((), torch.bool)})
    envs = make(rules=rules)
    envs.step([1] * 6)
    paths = envs.trajectories([0, 1])
    assert torch.equal(paths.log[name], paths.log["high"])
