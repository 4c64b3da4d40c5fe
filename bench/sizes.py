"""How large each workload is: the sizes of the issue at scale 1.0, and smaller ones for a trial."""

from dataclasses import dataclass

A1_FILES = 40
A2_FILES = 20
RECORD_FILES = 10
LABELLED_FILES = 16


@dataclass(frozen=True)
class Sizes:
    """Row counts of every workload at one scale; the number of files never changes, only the rows in them."""

    scale: float

    @property
    def a1_rows_per_file(self) -> int:
        return self._scaled(50_000)

    @property
    def a1_rows(self) -> int:
        return A1_FILES * self.a1_rows_per_file

    @property
    def a2_rows_per_file(self) -> int:
        return self._scaled(500_000)

    @property
    def a2_rows(self) -> int:
        return A2_FILES * self.a2_rows_per_file

    @property
    def ranked_rows(self) -> int:
        return self._scaled(500_000)

    @property
    def mlp_rows(self) -> int:
        return self._scaled(1_000_000)

    @property
    def resnet_images(self) -> int:
        return max(16, self._scaled(256))

    @property
    def photos(self) -> int:
        """F and G read as many; fewer than this say nothing about a steady state."""
        return max(200, self._scaled(4000))

    @property
    def mobilenet_photos(self) -> int:
        """M and N read as many, as an array."""
        return max(64, self._scaled(6000))

    @property
    def resnet_photos(self) -> int:
        return max(32, self._scaled(1000))

    @property
    def records_per_file(self) -> int:
        return self._scaled(40_000)

    @property
    def records(self) -> int:
        return RECORD_FILES * self.records_per_file

    @property
    def hand_overs(self) -> int:
        return max(20, self._scaled(400))

    @property
    def tiny_files(self) -> int:
        return self._scaled(1_000_000)

    @property
    def training_rows(self) -> int:
        return max(3200, self._scaled(32_000))

    @property
    def labelled_pixels(self) -> int:
        return LABELLED_FILES * self.labelled_pixels_per_file

    @property
    def labelled_pixels_per_file(self) -> int:
        return self._scaled(25_000)

    @property
    def labelled_features(self) -> int:
        return LABELLED_FILES * self._scaled(125_000)

    @property
    def training_photos(self) -> int:
        return max(200, self._scaled(2000))

    @property
    def few_photos(self) -> int:
        """S compares ten times as many with them."""
        return max(50, self._scaled(400))

    @property
    def small_rows(self) -> int:
        """Workload C is about a call that is small, so it does not scale."""
        return 100

    def _scaled(self, full_size: int) -> int:
        return max(1, round(full_size * self.scale))
