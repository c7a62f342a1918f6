"""The profile: where a run's time goes, by a clock that the tests set."""

import threading

import numpy as np
import pytest

from branchrt_gym.evaluation import profile as module
from branchrt_gym.evaluation.profile import LAYERS, Profile, ceiling, layer
from branchrt_gym.evaluation.timeline import draw_timeline, layer_shares


class Clock:
    """Stands where the tests put it."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_cost_of_an_entry", lambda: 0.125)
    return clock


def run(clock, *stretches):
    """Profiles stretches of (layer or None, seconds)."""
    with Profile() as profile:
        for name, seconds in stretches:
            if name is None:
                clock.now += seconds
            else:
                with layer(name):
                    clock.now += seconds
    return profile


def test_seconds_add_up_to_the_wall_time(clock):
    profile = run(clock, ("frontier", 1), (None, 4), ("environment", 2), ("frontier", 8))
    assert profile.seconds == {"generation": 0, "environment": 2, "frontier": 9, "other": 4}
    assert profile.wall == 15
    assert (profile.entries, profile.overhead) == (3, 0.375)
    assert profile.row() == {"wall": 15, **profile.seconds, "overhead": 0.375}
    assert "frontier 9.000 s (60.0%)" in str(profile)
    assert "profiling took 2.50% of it" in str(profile)


def test_time_in_an_inner_layer_counts_for_it_alone(clock):
    with Profile() as profile, profile.layer("environment"):
        clock.now += 1
        with layer("generation"):
            clock.now += 2
            with layer("environment"):
                clock.now += 4
        clock.now += 8
    assert profile.seconds == {"generation": 2, "environment": 13, "frontier": 0, "other": 0}


def test_a_layer_ends_with_an_exception(clock):
    with pytest.raises(KeyError), Profile() as profile:
        try:
            with layer("frontier"):
                clock.now += 1
                raise ValueError
        except ValueError:
            clock.now += 2
        with layer("generation"):
            clock.now += 4
            raise KeyError
    assert profile.seconds == {"generation": 4, "environment": 0, "frontier": 1, "other": 2}
    assert layer("frontier") is module._NOTHING


def test_a_second_block_starts_afresh(clock):
    profile = run(clock, ("frontier", 3), ("generation", 300))
    with profile, layer("frontier"):
        clock.now += 1
    assert profile.seconds == {"generation": 0, "environment": 0, "frontier": 1, "other": 0}
    assert profile.entries == 1 and profile.wall == 1
    assert sum(map(sum, profile.timeline.values())) == pytest.approx(1)


def test_an_inner_profile_takes_over_and_gives_back(clock):
    with Profile() as outer, layer("environment"):
        inner = run(clock, ("frontier", 2))
        with layer("frontier"):
            clock.now += 4
    assert inner.seconds["frontier"] == 2
    assert (outer.seconds["environment"], outer.seconds["frontier"]) == (2, 4)


def test_other_threads_and_a_profile_that_does_not_run_measure_nothing(clock):
    found = []
    with Profile() as profile:
        thread = threading.Thread(target=lambda: found.append(layer("frontier")))
        thread.start()
        thread.join()
    with profile.layer("frontier"):
        clock.now += 1
    assert found == [module._NOTHING]
    assert profile.entries == 0 and profile.wall == 0


def test_the_gain_is_amdahls(clock):
    host = run(clock, ("frontier", 6), ("environment", 2))
    ours = run(clock, ("frontier", 1.5), ("environment", 2))
    gain = ours.against(host)
    assert (gain.addressable, gain.speedup) == (0.75, 4)
    # Nothing but the frontier changed, so what was measured is the ceiling.
    assert gain.ceiling == pytest.approx(gain.measured) == pytest.approx(8 / 3.5)
    assert "at most 2.286× end to end, measured 2.286×" in str(gain)
    assert run(clock, ("environment", 4)).against(host).ceiling == 4


@pytest.mark.parametrize(
    ("share", "speedup", "expected"),
    [
        (0, 7, 1),
        (1, 7, 7),
        (0.5, float("inf"), 2),
        (1, float("inf"), float("inf")),
        (0.5, 0.5, 2 / 3),
    ],
)
def test_ceiling(share, speedup, expected):
    assert ceiling(share, speedup) == pytest.approx(expected)


@pytest.mark.parametrize(("share", "speedup"), [(-0.1, 2), (1.1, 2), (0.5, 0), (0.5, -1)])
def test_ceiling_refuses_what_is_no_share_or_factor(share, speedup):
    with pytest.raises(ValueError, match="expected a"):
        ceiling(share, speedup)


def test_mistakes_are_named(clock):
    with Profile() as profile, pytest.raises(ValueError, match="`layer` is 'verifier'; expected"):
        layer("verifier")
    with pytest.raises(ValueError, match="must have ended"):
        profile.against(profile)


@pytest.mark.parametrize("total", [0.05, 0.1024, 3.0, 1e5])
def test_the_timeline_holds_every_second_in_its_place(clock, total):
    chance = np.random.default_rng(3)
    parts = chance.dirichlet(np.full(400, 0.3)) * total
    names = chance.choice([*LAYERS, None], 400)
    profile = run(clock, *zip(names, parts, strict=True))
    ends = 100 + np.cumsum(parts)
    width = profile.bin_seconds
    for name in LAYERS:
        bins = np.array(profile.timeline[name])
        assert len(bins) <= module.BINS
        assert bins.sum() == pytest.approx(profile.seconds[name])
        # Up to the end of any bin, what the stretches before it say.
        for place in range(0, len(bins), 37):
            edge = 100 + (place + 1) * width
            begins = ends - parts
            wanted = (np.minimum(ends, edge) - begins).clip(0)[names == name].sum()
            assert bins[: place + 1].sum() == pytest.approx(wanted, abs=1e-9 * total)
    assert profile.wall <= len(bins) * width < max(2.01 * profile.wall, 0.2)


def test_shares_are_of_the_time_they_lie_in(clock):
    profile = run(clock, ("frontier", 1), (None, 1), ("environment", 2), ("generation", 0.5))
    edges, shares = layer_shares(profile)
    assert edges[0] == 0 and edges[-1] == profile.wall == 4.5
    assert shares.shape == (3, len(edges) - 1) and len(edges) <= 257
    assert (shares * np.diff(edges)).sum(1) == pytest.approx([0.5, 2, 1])
    assert shares.max() <= 1 + 1e-9


def test_the_timeline_is_drawn(clock, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "new" / "timeline.png"
    draw_timeline({"ours": run(clock, ("frontier", 1), ("environment", 1))}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="'ours', which has not ended"):
        draw_timeline({"ours": Profile()}, path)
    with pytest.raises(ValueError, match="empty"):
        draw_timeline({}, path)


def test_the_profile_measures_what_it_costs_itself():
    with Profile() as profile:
        for _ in range(2000):
            with layer("frontier"):
                pass
    assert profile.entries == 2000
    assert 0 < profile.overhead < 60
