"""What the command line chose, for every workload."""

from dataclasses import dataclass
from pathlib import Path

from bench.sizes import Sizes


@dataclass(frozen=True)
class BenchSettings:
    """Sizes, repeats and folders of one benchmark run."""

    sizes: Sizes
    repeats: int
    root: Path
    penstock_options: tuple[str, ...]
    photos: Path | None = None
    """A folder of JPEG files; None where pictures are drawn."""
    planned: tuple[str, ...] = ()
    """The models of M."""

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def scratch(self) -> Path:
        return self.root / "out"

    @property
    def peers_python(self) -> Path:
        return self.root / "peers-venv" / "bin" / "python"
