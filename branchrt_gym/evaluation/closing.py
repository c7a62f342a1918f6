"""`with` for what has a `close`."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing:
    """Is closed at the end of a `with` block, whatever ended it."""

    @abstractmethod
    def close(self) -> None:
        """Stops what was started; may be called again."""

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()
