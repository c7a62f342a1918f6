"""The certificate: the record of a comparison against the oracle."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from branchrt_gym.certify.difference import Difference
from branchrt_gym.certify.matrix import Row

__all__ = ["Certificate", "RowResult", "device_name", "versions"]

FORMAT = 1
PACKAGES = ("torch", "triton", "numpy", "gymnasium", "branchrt-gym")


@dataclass(frozen=True)
class RowResult:
    """What one row came to.

    Attributes:
        row: What was run.
        comparisons: Values compared, up to the first difference if there is one.
        mismatches: 0, or 1 where the row stopped at a difference.
        seconds: Wall-clock time of the row, both sides and the comparison.
        difference: The first difference.
    """

    row: Row
    comparisons: int
    mismatches: int
    seconds: float
    difference: Difference | None = None


@dataclass(frozen=True)
class Certificate:
    """A certification of one environment over one matrix.

    Attributes:
        environment: Its id.
        contract_hash: Digests of the contracts that the rows ran, sorted: shapes, and so digests,
            depend on the constructor's parameters.
        matrix: The matrix's name.
        rows: One result per row, in order.
        versions: Of Python and of the packages that matter; None where one is not installed.
        device: Name of the device.
        seconds: Wall-clock time of the whole; less than that of the rows together where several
            ran at a time.
    """

    environment: str
    contract_hash: tuple[str, ...]
    matrix: str
    rows: tuple[RowResult, ...]
    versions: Mapping[str, str | None]
    device: str
    seconds: float = 0.0

    @property
    def comparisons(self) -> int:
        """Values compared in all rows."""
        return sum(result.comparisons for result in self.rows)

    @property
    def mismatches(self) -> int:
        """Rows that stopped at a difference."""
        return sum(result.mismatches for result in self.rows)

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers that ran, sorted."""
        return tuple(sorted({result.row.tier for result in self.rows}))

    @property
    def ok(self) -> bool:
        """Whether something was compared and everything was equal."""
        return self.comparisons > 0 and self.mismatches == 0

    @property
    def first_difference(self) -> Difference | None:
        """The first difference of the first row that has one."""
        return next((result.difference for result in self.rows if result.difference), None)

    def to_json(self) -> str:
        """Returns the certificate as JSON, totals included."""
        record = asdict(self) | {
            "format": FORMAT,
            "totals": {
                "rows": len(self.rows),
                "comparisons": self.comparisons,
                "mismatches": self.mismatches,
                "seconds": self.seconds,
            },
            "tiers": self.tiers,
            "ok": self.ok,
        }
        return json.dumps(record, indent=1) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the certificate; a reader sees the old file or the new one, never a part.

        Raises:
            ValueError: If `path` is there and no regular file.
        """
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise ValueError(
                f"`path` is {str(path)!r}, which is no regular file; expected one to write or to "
                "replace"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            part.write_text(self.to_json(), encoding="utf-8")
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: For text that is no certificate, or of another format.
        """
        record = json.loads(text)
        found = record.get("format") if isinstance(record, dict) else None
        if found != FORMAT:
            raise ValueError(f"the certificate has format {found!r}; expected {FORMAT}")
        results = []
        for entry in record["rows"]:
            difference = entry["difference"]
            results.append(
                RowResult(
                    row=Row(**entry["row"]),
                    comparisons=entry["comparisons"],
                    mismatches=entry["mismatches"],
                    seconds=entry["seconds"],
                    difference=Difference(**difference) if difference else None,
                )
            )
        return cls(
            environment=record["environment"],
            contract_hash=tuple(record["contract_hash"]),
            matrix=record["matrix"],
            rows=tuple(results),
            versions=record["versions"],
            device=record["device"],
            seconds=record["totals"]["seconds"],
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Reads a saved certificate; see `from_json`."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def versions() -> dict[str, str | None]:
    """Returns the versions of Python and of the packages that a result may depend on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def device_name(device: str) -> str:
    """Returns a device's name: the GPU's, or the processor's architecture for the CPU."""
    chosen = torch.device(device)
    if chosen.type == "cuda":
        return torch.cuda.get_device_name(chosen)
    return f"{chosen.type} ({platform.machine()}, {torch.get_num_threads()} threads)"
