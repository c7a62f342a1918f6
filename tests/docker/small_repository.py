"""A small Python repository: a module with a real bug, its fix, a wrong fix, and tests."""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Repository:
    """A module `it.py` and its tests.

    `bug` becomes `fix` by one replacement, and `wrong` by another. `seen` are the tests that the
    repository has, `hidden` those that the fix brought; `fails` names the ones that the bug fails,
    `passes` the others.
    """

    name: str
    bug: str
    fix: str
    wrong: str
    seen: str
    hidden: str
    fails: tuple[str, ...]
    passes: tuple[str, ...]


def repository(
    name: str,
    module: str,
    fix: tuple[str, str],
    wrong: tuple[str, str],
    seen: str,
    hidden: str,
    also_passes: tuple[str, ...] = (),
) -> Repository:
    """A repository whose hidden tests are failed by the bug, but for `also_passes`."""
    bug, seen, hidden = dedent(module).lstrip(), dedent(seen).lstrip(), "\n\n" + dedent(hidden)
    assert bug.count(fix[0]) == bug.count(wrong[0]) == 1, name
    names = [
        [line[4:].split("(")[0] for line in text.splitlines() if line.startswith("def test_")]
        for text in (seen, hidden)
    ]
    assert set(also_passes) <= set(names[1]), name
    return Repository(
        name,
        bug,
        bug.replace(*fix),
        bug.replace(*wrong),
        seen,
        hidden,
        tuple(each for each in names[1] if each not in also_passes),
        (*names[0], *also_passes),
    )
