"""The Blackjack bench: decisions and verdicts are compared before anything is timed."""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from branchrt_gym.bench import blackjack_eval, blackjack_hands, blackjack_served
from branchrt_gym.bench.blackjack_command import bench_blackjack, blackjack_table
from branchrt_gym.bench.blackjack_eval import attempts_to_target, compare_blackjack
from branchrt_gym.bench.blackjack_figures import BlackjackSizes
from branchrt_gym.bench.blackjack_hands import (
    BatchedHands,
    GymnasiumHands,
    advice,
    compare_with_oracle,
)
from branchrt_gym.bench.blackjack_served import Tape, compare_served, decide_again
from branchrt_gym.bench.blackjack_servers import NemoPlayer, NemoServer, read_observation
from branchrt_gym.contract import Branches
from branchrt_gym.envs.blackjack_oracle import hand_sum
from branchrt_gym.errors import BranchRTError
from branchrt_gym.evaluation.attempts import Attempt, Verdict

app = typer.Typer()
app.command()(bench_blackjack)
CARDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
CHANCE = [1 / 13] * 9 + [4 / 13]


def dealers_end(face_up):
    """Returns the chance of each final sum of a dealer, 22 for more than 21, card by card."""
    ends = np.zeros(23)

    def draw(cards, chance):
        total = hand_sum(cards)
        if len(cards) > 1 and total >= 17:
            ends[min(total, 22)] += chance
            return
        for card, odds in zip(CARDS, CHANCE, strict=True):
            draw((*cards, card), chance * odds)

    draw((face_up,), 1.0)
    return ends


def best_values(face_up):
    """Returns the best expected reward of hit and stick for each hand (low sum, ace)."""
    ends = dealers_end(face_up)
    found = {}

    def value(low, ace):
        if low > 21:
            return -1.0
        if (low, ace) not in found:
            total = low + 10 if ace and low <= 11 else low
            stick = ends[22] + ends[:total].sum() - ends[total + 1 : 22].sum()
            hit = sum(
                odds * value(low + card, ace or card == 1)
                for card, odds in zip(CARDS, CHANCE, strict=True)
            )
            found[low, ace] = stick, hit
        return max(found[low, ace])

    for low in range(2, 22):
        value(low, False)
        value(low, True)
    return found


def test_the_advice_is_the_best_play():
    close = 0
    for face_up in CARDS:
        for (low, ace), (stick, hit) in best_values(face_up).items():
            usable = ace and low <= 11
            total = low + 10 if usable else low
            if total < 4 or (usable and total < 12):
                continue
            if abs(hit - stick) < 0.005:
                close += 1  # soft 18 against an ace, as good either way
            else:
                assert advice(total, face_up, int(usable)) == int(hit > stick), (total, face_up)
    assert close <= 2


@pytest.mark.parametrize("make", [BatchedHands, GymnasiumHands])
def test_a_hand_is_the_same_whoever_asks_and_when(make):
    hands = make(300, seed=4)
    roots, candidates = np.arange(300).repeat(5), np.tile(np.arange(5), 300)
    won = hands.verify(roots, candidates).passed
    order = np.random.default_rng(0).permutation(1500)
    again = hands.verify(torch.tensor(roots[order]), torch.tensor(candidates[order])).passed
    assert isinstance(won, np.ndarray) and isinstance(again, torch.Tensor)
    assert (again.numpy() == won[order]).all()
    assert hands.play(roots[:40].tolist(), candidates[:40].tolist()) == won[:40].tolist()
    assert hands.episodes == 1500 + 1500 + 40
    assert (make(300, seed=4).verify(roots, candidates).passed == won).all()
    assert (make(300, seed=5).verify(roots, candidates).passed != won).any()
    # Candidates of a root differ: those that won, and those that did not.
    assert 0.35 < won.mean() < 0.5
    assert (won.reshape(300, 5).any(1) & ~won.reshape(300, 5).all(1)).mean() > 0.5


@pytest.mark.parametrize("make", [BatchedHands, GymnasiumHands])
def test_a_root_is_a_visible_deal(make):
    """Its chance of winning depends on what is seen alone: dealt 20, most rollouts win."""
    hands = make(400, seed=1)
    if make is BatchedHands:
        rows = torch.arange(400)
        branches = Branches(rows, rows.to(torch.int32), hands.state)
        total, face_up, _ = hands._env.observation({}, branches)
        seen = list(zip(total.tolist(), face_up.tolist(), strict=True))
    else:
        seen = [(hand_sum((first, second)), up) for first, second, up in hands._deals]
    roots, candidates = np.arange(400).repeat(40), np.tile(np.arange(40), 400)
    won = hands.verify(roots, candidates).passed.reshape(400, 40).mean(1)
    by = [
        np.array([rate for (t, _), rate in zip(seen, won, strict=True) if t in totals])
        for totals in ((20, 21), (15, 16))
    ]
    assert by[0].mean() > 0.7 and by[1].mean() < 0.4
    for face_up in CARDS:  # exact: dealt 20 and sticking, the dealer ends below or above 21
        rates = [rate for (t, up), rate in zip(seen, won, strict=True) if t == 20 and up == face_up]
        if len(rates) >= 5:
            ends = dealers_end(face_up)
            wanted = ends[:20].sum() + ends[22]
            assert abs(np.mean(rates) - wanted) < 4 * (0.25 / (40 * len(rates))) ** 0.5


def test_batched_hands_equal_the_oracle_and_a_fault_is_found(monkeypatch):
    hands = BatchedHands(200, seed=9)
    attempts = [(root, candidate) for root in range(0, 200, 3) for candidate in (0, 1, 7)]
    assert compare_with_oracle(hands, 9, attempts) == (0, None)
    wrong = BatchedHands(200, seed=9)
    wrong._table = torch.zeros_like(wrong._table)  # sticks always
    count, first = compare_with_oracle(wrong, 9, attempts)
    assert count > 0 and re.match(r"attempt \(\d+, \d\): the oracle has (True|False), not ", first)
    assert compare_with_oracle(hands, 10, attempts)[0] > 0  # other roots


def test_a_batch_in_pieces_is_the_same(monkeypatch):
    roots, candidates = np.arange(200).repeat(3), np.tile(np.arange(3), 200)
    whole = BatchedHands(200).verify(roots, candidates).passed
    monkeypatch.setattr("branchrt_gym.bench.blackjack_hands.PIECE", 64)
    assert (BatchedHands(200).verify(roots, candidates).passed == whole).all()


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.floats(0, 1),
    st.integers(0, 2**32),
    st.integers(1, 12),
)
def test_attempts_are_counted_as_a_plain_loop_does(roots, candidates, rate, seed, needed):
    won = np.random.default_rng(seed).random((roots, candidates)) < rate
    count, solved, wanted = 0, set(), None
    for candidate in range(candidates):
        for root in range(roots):
            if root in solved or wanted is not None:
                continue
            count += 1
            if won[root, candidate]:
                solved.add(root)
                if len(solved) == needed:
                    wanted = count
    assert attempts_to_target(won, needed) == wanted


@pytest.mark.parametrize("env", ["gpu", "gymnasium"])
def test_controllers_decide_the_same_and_are_timed(env):
    sizes = BlackjackSizes(300, 6, 0.8, env, seed=2)
    stages = []
    found = compare_blackjack(
        sizes, repetitions=2, progress=lambda stage, done, total: stages.append((done, total))
    )
    assert (found.mismatches, found.first) == (0, None)
    outcomes = found.outcomes
    assert outcomes["run_all"].episodes == 1800 and outcomes["run_all"].attempts_to_target is None
    assert outcomes["host"] == outcomes["frontier"]
    assert outcomes["host"].solved >= 240
    hands = (BatchedHands if env == "gpu" else GymnasiumHands)(300, seed=2)
    won = hands.verify(np.arange(300).repeat(6), np.tile(np.arange(6), 300)).passed
    needed = attempts_to_target(won.reshape(300, 6), 240)
    assert outcomes["host"].attempts_to_target == needed <= outcomes["host"].episodes
    assert found.allowed == 1800 / needed
    # Attempts and verdicts of the frontier: three values each. Besides, the host's own verdicts.
    host = outcomes["host"].episodes
    assert found.compared == 4 * host + 1 + 3 + (512 if env == "gpu" else 0)
    for each in (found.seconds, found.faster, found.profiles):
        assert set(each) == {"run_all", "host", "frontier"}
    assert set(found.over_host) == set(found.gains) == {"frontier"}
    assert found.seconds["host"].count == 2
    assert stages[-1] == (5, 5)
    seconds = found.profiles["frontier"].seconds
    assert min(seconds["generation"], seconds["environment"], seconds["frontier"]) > 0
    text = json.dumps(found.row(), default=lambda each: each.__dict__)
    assert json.loads(text)["outcomes"]["host"]["attempts_to_target"] == needed
    assert blackjack_table(found).row_count == 3


def test_a_target_out_of_reach_is_told():
    found = compare_blackjack(BlackjackSizes(64, 1, 1.0), repetitions=1)
    assert found.equal and found.allowed is None
    assert found.outcomes["host"].episodes == 64
    assert found.outcomes["frontier"].attempts_to_target is None


class Wasteful(blackjack_eval.EvalFrontier):
    """Tries the candidates in another order."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        inner = self.verifier

        class Backwards:
            version = inner.version

            def verify(self, roots, candidates):
                return inner.verify(roots[::-1].copy(), candidates[::-1].copy())

        self.verifier = Backwards()


def test_a_difference_is_told_and_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(blackjack_eval, "EvalFrontier", Wasteful)
    found = compare_blackjack(BlackjackSizes(100, 4), repetitions=1)
    assert found.mismatches > 0
    assert "of frontier" in found.first and " in the oracle, " in found.first
    assert found.seconds == found.profiles == {}
    result = CliRunner().invoke(app, ["--roots", "100", "--repetitions", "1"])
    assert result.exit_code == 1
    assert "No time is given. The first difference: " in result.output


def test_verdicts_that_differ_from_the_scalar_oracles_are_told(monkeypatch):
    monkeypatch.setattr(blackjack_hands, "bounded_int", lambda key, count: 0)  # an ace, always
    found = compare_blackjack(BlackjackSizes(100, 4), repetitions=1)
    assert found.mismatches > 0 and found.first.startswith("attempt (")
    assert found.seconds == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"env": "atari"}, "`env` is 'atari'; expected one of gpu, gymnasium, nemo"),
        ({"target": 0.0}, "`target` is 0.0; expected"),
    ],
)
def test_mistakes_are_named(given, says):
    with pytest.raises(ValueError, match=says):
        BlackjackSizes(**given)


def test_the_command_writes_a_row_and_a_picture(tmp_path):
    out, plot = tmp_path / "rows.jsonl", tmp_path / "layers.png"
    given = ["--roots", "64", "--roots", "96", "--candidates", "4", "--repetitions", "1"]
    result = CliRunner().invoke(app, [*given, "--out", str(out), "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["sizes"]["roots"] for row in rows] == [64, 96]
    assert all(row["bench"] == "blackjack" and row["mismatches"] == 0 for row in rows)
    assert rows[1]["command"] == (
        "branchrt bench blackjack --roots 96 --candidates 4 --target 0.8 --env gpu "
        "--repetitions 1 --seed 0 --device cpu"
    )
    assert {"generation", "environment", "frontier", "wall"} <= set(rows[0]["profiles"]["host"])
    assert rows[0]["gains"]["frontier"]["ceiling"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "mismatches of" in result.output and "profiling took" in result.output


def test_a_server_needs_its_python():
    result = CliRunner().invoke(app, ["--env", "nemo"])
    assert result.exit_code == 2
    with pytest.raises(BranchRTError, match="'/no/such/python' cannot be started: "):
        NemoServer("/no/such/python")


def test_a_python_that_does_not_serve_is_told():
    with pytest.raises(BranchRTError, match="No module named"):
        NemoServer(sys.executable)
    with pytest.raises(ValueError, match="is measured by `compare_served`"):
        compare_blackjack(BlackjackSizes(8, env="nemo"))


@pytest.mark.parametrize(
    ("hand", "total", "up", "seen"),
    [
        ("A, 7", 18, "K", (18, 10, 1)),
        ("A, A, 9", 21, "A", (21, 1, 1)),
        ("A, 6, J", 17, "10", (17, 10, 0)),
        ("2, Q", 12, "5", (12, 5, 0)),
    ],
)
def test_the_servers_text_is_read(hand, total, up, seen):
    text = f"Your hand: [{hand}] = {total}\nDealer shows: {up}\nRespond with <action>hit</action>"
    assert read_observation(text) == seen
    with pytest.raises(ValueError, match="the observation is 'hello'"):
        read_observation("hello")


class Table(BaseHTTPRequestHandler):
    """Deals 10 and 8 against a 9, and lets every second hand win; a session is a cookie."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a request takes 40 ms
    lock, sessions, played, broken = Lock(), {}, 0, 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        cls, cookie = type(self), self.headers.get("cookie")
        assert body["responses_create_params"] == {"input": []}
        headers = {}
        with cls.lock:
            if self.path == "/reset":
                assert cookie is None
                cls.played += 1
                cls.sessions[f"session={cls.played}"] = cls.played
                headers["set-cookie"] = f"session={cls.played}; Path=/"
                seen = "Your hand: [10, 8] = 18\nDealer shows: 9\n"
                answer, status = {"observation": seen, "info": {}}, 200
            else:
                number = cls.sessions.pop(cookie)
                said = body["response"]["output"][0]["content"][0]["text"]
                assert said == "<action>stand</action>"
                reward = 1.0 if number % 2 else -1.0
                answer = {"observation": None, "reward": reward, "terminated": True}
                answer["truncated"], status = False, 200
                if number == cls.broken:
                    status = 500
        raw = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("httpx", reason="httpx is not installed")
    Table.sessions, Table.played, Table.broken = {}, 0, 0

    class Stub(ThreadingHTTPServer):
        daemon_threads = True
        version = "0"

        def __init__(self, python):
            super().__init__(("127.0.0.1", 0), Table)
            self.url = f"http://127.0.0.1:{self.server_port}"

        def __enter__(self):
            Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
            return super().__enter__()

        def __exit__(self, *arguments):
            self.shutdown()
            super().__exit__(*arguments)

    monkeypatch.setattr(blackjack_served, "NemoServer", Stub)
    return Stub


def test_hands_are_played_over_http(server):
    with server("python") as running, NemoPlayer(running.url) as player:
        assert [player.play(root, 0) for root in range(4)] == [True, False, True, False]
        assert (player.episodes, player.requests) == (4, 8)


@pytest.mark.parametrize("broken", [0, 20])
def test_a_served_run_decides_what_the_loop_does(server, broken):
    Table.broken = broken
    found = compare_served(BlackjackSizes(40, 4, 0.8, "nemo"), "python", connections=3)
    assert (found.mismatches, found.first) == (0, None)
    assert found.outcomes["run_all"].episodes == 160
    for name in ("host", "frontier"):
        outcome = found.outcomes[name]
        assert outcome.solved >= 32 and outcome.attempts_to_target <= outcome.episodes < 160
    assert found.more["infrastructure_failures"] == (broken > 0)
    assert found.more["requests_per_hand"] == 2
    assert found.compared == 40 * 4 + 2
    assert set(found.gains) == {"frontier"}


def test_a_served_run_that_decides_otherwise_is_told(server, monkeypatch):
    sizes = BlackjackSizes(40, 4, 0.8, "nemo")
    real = decide_again

    def other(tape, sizes, bound):
        tape.polled[0][0] = (Attempt(39, 3), Verdict(True))
        return real(tape, sizes, bound)

    monkeypatch.setattr(blackjack_served, "decide_again", other)
    found = compare_served(sizes, "python", connections=3)
    assert found.mismatches > 0 and "is not issued" in found.first
    assert found.seconds == {}


def test_a_tape_counts_failures():
    class Fake:
        version, capacity = "1", 4

        def poll(self, timeout):
            return [(Attempt(0, 0), Verdict(False, infrastructure="no disk"))]

    tape = Tape(Fake())
    assert len(tape.poll(None)) == 1 and tape.failures == 1
