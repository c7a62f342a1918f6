"""Without the library an adapter says which extra brings it."""

import importlib
import sys

import pytest

from branchrt_gym.errors import MissingExtraError


def test_without_stable_baselines3(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "branchrt_gym.integrations.sb3", raising=False)
    with pytest.raises(MissingExtraError, match=r"branchrt-gym\[sb3\]"):
        importlib.import_module("branchrt_gym.integrations.sb3")
