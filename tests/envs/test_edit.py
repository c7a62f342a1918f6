"""Edit: the oracle against its rules written out again, batched = scalar, diffs, pages."""

import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym import Beam, BranchingVectorEnv, make_roots, search
from branchrt_gym.certify import certify, rows
from branchrt_gym.envs.deep_tree_render import DONE, GROOVE, INK, LOSS
from branchrt_gym.envs.edit import Edit
from branchrt_gym.envs.edit_oracle import EditContext, EditOracle
from branchrt_gym.envs.edit_render import diff, draw
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import context_key, episode_key, fold
from branchrt_gym.registry import registrations

M32 = 2**32
SMALL = dict(width=97, spans=3, span=20, choices=3, depth=9, window=30)
LEAST = dict(width=1, spans=1, span=1, choices=1, depth=1, window=1)


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are small: threads do not help, and wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The rules, once more, entry by entry


def mix(x):
    x = (x ^ (x // 2**16)) * 0x7FEB352D % M32
    x = (x ^ (x // 2**15)) * 0x846CA68B % M32
    return x ^ (x // 2**16)


def entry(key, place):
    return mix((mix((place + key % M32) % M32) + key // M32) % M32)


def below(key, most):
    return (key // M32) * most // M32


def shifted(byte, bits):
    return 32 + (byte - 31 + bits * 94 // 65536) % 95


def context(key, width, spans, span, choices):
    """Document, target, positions and proposals, as the docstring has them."""
    document = [32 + (entry(key, i) // 65536) * 95 // 65536 for i in range(width)]
    target, positions, proposals = list(document), [], []
    for s in range(spans):
        length = 1 + below(fold(key, 4 * s), span)
        stride = width // spans
        begin = s * stride + below(fold(key, 4 * s + 1), stride - length + 1)
        right, own = below(fold(key, 4 * s + 2), choices), fold(key, 4 * s + 3)
        for j in range(length):
            bits = entry(fold(own, choices), j) // 65536
            target[begin + j] = shifted(document[begin + j], bits)
        offered = []
        for c in range(choices):
            error, of_choice = (c - right) % choices, fold(own, c)
            spoilt = below(fold(of_choice, 0), length)
            proposal = target[begin : begin + length]
            for j in range(length if error else 0):
                hashed = entry(of_choice, j)
                if j == spoilt or hashed % 65536 * choices // 65536 < error:
                    proposal[j] = shifted(proposal[j], hashed // 65536)
            offered.append(bytes(proposal))
        positions.append(begin)
        proposals.append(tuple(offered))
    return bytes(document), bytes(target), tuple(positions), tuple(proposals)


def differing(one, other):
    return sum(a != b for a, b in zip(one, other, strict=True))


def assert_episode_follows_the_rules(seed, parameters, actions):
    width, spans, span, choices, depth, window = parameters.values()
    document, target, positions, proposals = context(context_key(seed), width, spans, span, choices)
    env = EditOracle(**parameters)
    seen, info = env.reset(seed=seed)
    assert env.context.document.tobytes() == document
    assert env.context.target.tobytes() == target
    assert (env.context.positions, env.context.proposals) == (positions, proposals)
    text, cursor = bytearray(document), below(fold(episode_key(seed, 0), 0), width)
    distance = differing(text, target)
    assert distance == sum(len(offered[0]) for offered in proposals)
    assert info == {"solved": False}
    for t in range(depth):
        first = min(max(cursor - window // 2, 0), width - window)
        assert seen["text"].tobytes() == text[first : first + window]
        assert seen["target"].tobytes() == target[first : first + window]
        assert [seen[name].tolist() for name in ("cursor", "depth", "distance")] == [
            [cursor],
            [t],
            [distance],
        ]
        assert seen in env.observation_space
        cursor, new = positions[actions[t] // choices], proposals[actions[t] // choices]
        new = new[actions[t] % choices]
        text[cursor : cursor + len(new)] = new
        before, distance = distance, differing(text, target)
        seen, reward, terminated, truncated, info = env.step(actions[t])
        assert reward == before - distance
        assert env.score == env.context.distance - distance
        assert (terminated, info["solved"]) == (text == target, text == target)
        assert truncated == (t + 1 == depth and text != target)
        assert env.text.dtype == np.uint8
        assert env.text.tobytes() == text
        if terminated:
            break


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), data=st.data())
def test_random_episodes(seed, data):
    width = data.draw(st.integers(1, 150))
    spans = data.draw(st.integers(1, min(width, 6)))
    parameters = dict(
        width=width,
        spans=spans,
        span=data.draw(st.integers(1, width // spans)),
        choices=data.draw(st.integers(1, 5)),
        depth=data.draw(st.integers(1, 12)),
        window=data.draw(st.integers(1, width)),
    )
    action = st.integers(0, spans * parameters["choices"] - 1)
    depth = parameters["depth"]
    actions = data.draw(st.lists(action, min_size=depth, max_size=depth))
    assert_episode_follows_the_rules(seed, parameters, actions)


def test_a_wide_document():
    parameters = dict(width=20_000, spans=16, span=64, choices=4, depth=32, window=64)
    assert_episode_follows_the_rules(11, parameters, [t * 7 % 64 for t in range(32)])


def test_one_proposal_is_right_and_the_others_are_wrong_by_degrees():
    env, wrong = EditOracle(), np.zeros((16 * 20, 4))
    for seed in range(20):
        env.reset(seed=seed)
        for s, begin in enumerate(env.context.positions):
            offered = env.context.proposals[s]
            goal = env.context.target[begin : begin + len(offered[0])].tobytes()
            assert offered.count(goal) == 1
            right = offered.index(goal)
            for error in range(4):
                share = differing(offered[(right + error) % 4], goal) / len(goal)
                wrong[seed * 16 + s, error] = share
    assert (wrong[:, 0] == 0).all()
    assert (wrong[:, 1:] > 0).all()
    np.testing.assert_allclose(wrong.mean(0), [0, 0.25, 0.5, 0.75], atol=0.06)


def test_scores_by_luck_and_by_search():
    """What the docstring says of the difficulty."""
    env = Edit(width=4096)
    result = search(env, make_roots(env, range(40)), Beam(1), depth=16)
    assert result.solved.all()
    oracle, chance = EditOracle(width=4096), np.random.default_rng(0)
    oracle.reset(seed=1)
    solved = 0
    for _ in range(100):
        oracle.reset()
        while oracle.live:
            *_, info = oracle.step(int(chance.integers(64)))
            solved += info["solved"]
    assert solved == 0


# Contexts and the rest of the scalar contract


def test_forks_share_what_they_did_not_write():
    env = EditOracle(**SMALL)
    env.reset(seed=1)
    env.step(2)
    left, right = env.fork(2)
    assert left.context is right.context is env.context
    assert left.written is env.written
    before = env.text
    left.step(5)
    assert not np.array_equal(left.text, before)
    assert np.array_equal(env.text, before) and np.array_equal(right.text, before)
    env.text[:] = 0  # new memory
    assert np.array_equal(env.text, before)
    twin = copy.deepcopy(env)
    again = pickle.loads(pickle.dumps(env))
    assert twin.context is env.context
    assert np.array_equal(twin.text, before) and np.array_equal(again.text, before)
    assert not again.context.document.flags.writeable


def test_contexts_are_checked():
    env = EditOracle(width=6, spans=1, span=2, choices=2, depth=3, window=4)
    document, target = np.frombuffer(b"abcdef", np.uint8), np.frombuffer(b"abxyef", np.uint8)
    env.reset(seed=1, options={"context": EditContext(document, target, (2,), ((b"xy", b"xq"),))})
    assert (env.distance, env.text.tobytes()) == (2, b"abcdef")
    _, reward, *_ = env.step(1)
    assert (reward, env.text.tobytes()) == (1, b"abxqef")
    _, reward, terminated, *_ = env.step(0)
    assert (reward, terminated) == (1, True)
    for positions, proposals, message in (
        ((5,), ((b"xy", b"xq"),), r"span 0 is at 5 .* \[2\] bytes"),
        ((2,), ((b"xy", b"x"),), r"span 0 is at 2 .* \[1, 2\] bytes"),
        ((2, 3), ((b"xy",), (b"z",)), "span 1 is at 3"),
        ((2, 4), ((b"xy",),), "`proposals` are for 1 spans; expected 2"),
    ):
        with pytest.raises(ValueError, match=message):
            EditContext(document, target, positions, proposals)
    with pytest.raises(ValueError, match="`target` is int64"):
        EditContext(document, target.astype(np.int64), (2,), ((b"xy",),))
    for options, message in (
        ({}, "`context` is a dict"),
        (EditContext(document, target, (2,), ((b"xy",),)), r"up to 2 with \[1\] proposals"),
        (EditContext(document, target, (2,), ((b"xyz", b"xyq"),)), "1 spans of up to 3 with"),
        (EditContext(document[:5], target[:5], (2,), ((b"x", b"y"),)), "`context` has 5 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            env.reset(options={"context": options})


@pytest.mark.parametrize("made", [Edit, EditOracle])
@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("width", 0, 2**31 - 1),
        ("width", 2**31, 2**31 - 1),
        ("spans", 0, 97),
        ("spans", 98, 97),
        ("span", 0, 32),
        ("span", 33, 32),
        ("choices", 0, (2**31 - 1) // 3),
        ("choices", 2**30, (2**31 - 1) // 3),
        ("depth", 0, 2**31 - 1),
        ("window", 0, 97),
        ("window", 98, 97),
        ("page_size", 0, 2**31 - 1),
    ],
)
def test_parameters_out_of_range(made, name, value, most):
    with pytest.raises(ValueError, match=rf"`{name}` is {value}; expected .*1 .* {most}"):
        made(**SMALL | {name: value})


@pytest.mark.parametrize("parameters", [SMALL, {}], ids=["small", "full"])
def test_gymnasiums_checker(parameters):
    env = EditOracle(**parameters, render_mode="rgb_array")
    env.spec = EnvSpec("Checked-v0", entry_point=EditOracle, kwargs=parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


def test_made_by_gymnasium():
    env = gymnasium.make("branchrt/Edit-v0")
    envs = gymnasium.make_vec("branchrt/Edit-v0", num_envs=3)
    wanted, _ = env.reset(seed=4)
    seen, _ = envs.reset(seed=4)
    assert (env.unwrapped.width, env.action_space.n) == (262_144, 64)
    assert env.observation_space == envs.single_observation_space
    for action in (9, 40, 63):
        for name, leaf in wanted.items():
            np.testing.assert_array_equal(seen[name][0], leaf, strict=True)
        wanted, *outcome, _ = env.step(action)
        seen, *outcomes, _ = envs.step(np.full(3, action))
        assert outcome == [row[0] for row in outcomes]
    assert envs.unwrapped.frontier.contract.hash == Edit().contract.hash


# The batched rules


@pytest.mark.parametrize("parameters", [SMALL, {}, LEAST], ids=["small", "full", "least"])
def test_shared_fields_are_the_oracles_contexts(parameters):
    keys = [context_key(seed) for seed in (0, 7, 2**63 - 1)]
    words = torch.from_numpy(np.array(keys, np.uint64).view(np.int64))
    shared = {
        name: field.numpy() for name, field in Edit(**parameters).initial_shared(words).items()
    }
    for row, key in enumerate(keys):
        wanted = EditOracle(**parameters).make_context(key)
        assert np.array_equal(shared["document"][row], wanted.document)
        assert np.array_equal(shared["target"][row], wanted.target)
        assert shared["position"][row].tolist() == list(wanted.positions)
        for s, offered in enumerate(wanted.proposals):
            length = shared["length"][row, s]
            for c, proposal in enumerate(offered):
                given = shared["proposals"][row, s, c]
                assert given[:length].tobytes() == proposal
                assert not given[length:].any()


@pytest.mark.parametrize(
    "parameters",
    [
        SMALL,
        *(SMALL | {"depth": 40, "page_size": size} for size in (None, 1, 7, 97, 1000)),
        {"width": 10_000},
    ],
    ids=str,
)
def test_a_population_equals_oracles_whole_texts_too(parameters):
    chance, slots, roots = np.random.default_rng(2), 24, 4
    envs = BranchingVectorEnv(Edit(**parameters), slots, num_roots=roots, autoreset_mode="Disabled")
    envs.reset(seed=40)
    models = {root: EditOracle(**parameters) for root in range(roots)}
    for root, model in models.items():
        model.reset(seed=40 + root)
    for step in range(24):
        live = [slot for slot, model in models.items() if model.live]
        if step % 4 == 0 and live and len(models) < slots:
            parents = [int(slot) for slot in chance.choice(live, min(4, slots - len(models)))]
            children = {slot: models[slot].fork(parents.count(slot)) for slot in set(parents)}
            for slot, parent in zip(envs.fork(parents), parents, strict=True):
                models[int(slot)] = children[parent].pop(0)
        if step % 6 == 5:
            gone = chance.choice(list(models), min(5, len(models) - 1), replace=False)
            envs.prune(gone)
            for slot in gone:
                del models[int(slot)]
        actions = chance.integers(0, envs.single_action_space.n, slots)
        moved = {slot: model for slot, model in models.items() if model.live}
        seen, reward, terminated, truncated, info = envs.step(actions)
        text = envs.frontier.branches().pages["text"]
        texts = text.read(torch.arange(text.width).expand(slots, -1)).numpy()
        for slot, model in moved.items():
            wanted, *outcome, more = model.step(int(actions[slot]))
            assert outcome == [reward[slot], terminated[slot], truncated[slot]]
            assert info["solved"][slot] == more["solved"]
            for name, leaf in wanted.items():
                np.testing.assert_array_equal(seen[name][slot], leaf, strict=True)
        for slot, model in models.items():
            assert np.array_equal(texts[slot], model.text)
    assert models


def test_a_fork_takes_no_page_and_an_edit_one_or_two():
    envs = BranchingVectorEnv(Edit(width=8192, page_size=64), 128, num_roots=1)
    envs.reset(seed=3)
    pool = envs.frontier.pages["text"]
    assert pool.in_use == 0
    envs.fork([0], counts=127)
    assert pool.in_use == 0
    envs.step(np.arange(128) % 64)
    assert 128 <= pool.in_use <= 256
    used = pool.in_use
    envs.step(np.arange(128) % 64)  # the same bytes again, in pages of their own
    assert pool.in_use == used


# Rendering


@pytest.mark.parametrize("mode", ["rgb_array", "ansi"])
def test_both_draw_the_same(mode):
    envs = BranchingVectorEnv(
        Edit(**SMALL), 6, num_contexts=6, autoreset_mode=AutoresetMode.DISABLED, render_mode=mode
    )
    models = [EditOracle(**SMALL, render_mode=mode) for _ in range(6)]
    envs.reset(seed=50)
    for slot, model in enumerate(models):
        model.reset(seed=50 + slot)
    drawn = set()
    for step in range(9):
        for frame, model in zip(envs.render(), models, strict=True):
            assert np.array_equal(frame, model.render())
            drawn.add(frame.tobytes() if mode == "rgb_array" else frame)
        envs.step(np.full(6, step))
        for model in models:
            if model.live:
                model.step(step)
    assert len(drawn) > 40


def test_what_a_diff_says():
    text = np.frombuffer(b"a quick brown fox\n", np.uint8)
    target = np.frombuffer(b"a quiet brawl fox\n", np.uint8)
    said = diff(
        text,
        target,
        (2, 8, 14),
        (5, 5, 4),
        cursor=8,
        score=3,
        distance=4,
        depth=2,
        depth_limit=8,
    )
    assert said.splitlines() == [
        f"depth 2/8 |{'#' * 8}{'.' * 24}|",
        "distance 4 of 7, cursor 8",
        "--- text",
        "+++ target",
        "@@ 2,5 @@ 2 differ",
        "-quick",
        "+quiet",
        "@@ 8,5 @@ 2 differ",
        "-brown",
        "+brawl",
    ]


def test_what_is_not_printable_is_a_full_stop():
    text, target = np.array([9, 255, 65], np.uint8), np.array([65, 0, 126], np.uint8)
    said = diff(text, target, [0], [3], cursor=0, score=0, distance=3, depth=0, depth_limit=1)
    assert said.splitlines()[-2:] == ["-..A", "+A.~"]


def test_an_edit_changes_the_diff():
    env = EditOracle(**SMALL, render_mode="ansi")
    env.reset(seed=1)
    offered = env.context.proposals[1]
    begin, length = env.context.positions[1], len(offered[0])
    goal = env.context.target[begin : begin + length].tobytes()
    right = offered.index(goal)
    head = f"@@ {begin},{length} @@ "
    assert head + f"{length} differ" in env.render()
    env.step(3 + (right + 1) % 3)
    wrong = differing(offered[(right + 1) % 3], goal)
    lines = [f"{head}{wrong} differ", "-" + offered[(right + 1) % 3].decode(), "+" + goal.decode()]
    assert "\n".join(lines) in env.render()
    env.step(3 + right)
    assert head not in env.render()
    assert env.render().count("@@") == 4  # the two other spans


def test_what_a_picture_shows():
    """A document as wide as the picture's strip: a byte is a column."""
    target = np.full(288, 65, np.uint8)
    text = target.copy()
    text[104] = 66
    frame = draw(
        text, target, [20, 100], [10, 10], cursor=200, score=1, distance=1, depth=1, depth_limit=2
    )
    assert (frame.shape, frame.dtype) == ((200, 320, 3), np.uint8)
    strip = [tuple(colour) for colour in frame[70].tolist()]
    spans = {20: DONE, 100: LOSS}
    for column in range(288):
        begin = column // 10 * 10
        wanted = INK if column in (200, 201) else spans.get(begin, GROOVE)
        assert strip[16 + column] == wanted
    here = dict(cursor=104, score=1, distance=1, depth=1, depth_limit=2)
    cells = draw(text, target, [20, 100], [10, 10], **here)[115, 16:304:6]
    assert [tuple(cell) == LOSS for cell in cells.tolist()] == [place == 24 for place in range(48)]


def test_render_is_refused():
    with pytest.raises(ValueError, match="`render_mode` is 'human'"):
        EditOracle(render_mode="human")
    with pytest.raises(NotResetError):
        EditOracle(render_mode="ansi").render()
    env = EditOracle(**SMALL)
    env.reset(seed=1)
    assert env.render() is None


def test_certified():
    chosen = rows(registrations()["branchrt/Edit-v0"])[::20]
    certificate = certify("branchrt/Edit-v0", rows=chosen)
    assert certificate.first_difference is None
    assert certificate.ok
    assert len(certificate.rows) >= 6
