"""The errors that BranchRT raises for callers' mistakes.

Each class also inherits the built-in or Gymnasium class that a caller would expect, so that
`except ValueError` works, and `except BranchRTError` catches everything of ours. Nothing is changed
when one is raised.
"""

from typing import Any

import gymnasium

__all__ = [
    "BranchRTError",
    "ClosedError",
    "ContractError",
    "DeviceError",
    "DeviceMemoryError",
    "FrontierFullError",
    "LineageFullError",
    "MissingExtraError",
    "NotResetError",
    "OptionsError",
    "PagePoolFullError",
    "SaveFormatError",
    "SlotError",
    "SnapshotUnsupportedError",
]


class BranchRTError(Exception):
    """Base of every error in this module."""


class ContractError(BranchRTError, ValueError):
    """An environment's declaration or its hooks do not keep the state contract."""


class FrontierFullError(BranchRTError, ValueError):
    """A fork asked for more slots than are free."""


class LineageFullError(BranchRTError, ValueError):
    """The lineage has no room for the transitions of this call."""


class PagePoolFullError(BranchRTError, ValueError):
    """A paged field's pool has no room for the pages that this call writes first."""


class NotResetError(BranchRTError, gymnasium.error.ResetNeeded):
    """A call that needs a running episode came before the first reset or after the end."""


class ClosedError(BranchRTError, gymnasium.error.Error):
    """A call came after `close`."""


class OptionsError(BranchRTError, ValueError):
    """`reset` was given unknown `options`, or values outside what they may be."""


class SlotError(BranchRTError, ValueError):
    """A slot is outside the frontier, or its status does not allow the fork or prune asked for."""


class SnapshotUnsupportedError(BranchRTError, TypeError):
    """An environment has a part of which no exact copy can be made; the text names it."""


class SaveFormatError(BranchRTError, ValueError):
    """A file to load is truncated, foreign, or of another contract or format version."""


class DeviceError(BranchRTError, ValueError):
    """A device is not there, or tensors that must share one lie on different devices."""


class DeviceMemoryError(BranchRTError, MemoryError):
    """A device has too little free memory for what was asked."""


class MissingExtraError(BranchRTError, ImportError):
    """An optional dependency is not installed; the text says which extra brings it.

    Args:
        extra: Name of the extra, `sb3` for example.
        package: What could not be imported.
    """

    def __init__(self, extra: str, package: str) -> None:
        """Writes the text from the two names."""
        super().__init__(
            f'`{package}` is not installed; it comes with `pip install "branchrt-gym[{extra}]"`',
            name=package,
        )
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by the two names, which the constructor takes, instead of by the text."""
        return type(self), (self.extra, self.name)
