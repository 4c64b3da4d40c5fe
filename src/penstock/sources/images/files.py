"""Folders of image files. A row is a file; its content decides how it is decoded."""

from collections.abc import Iterator, Sequence

from penstock.core.kinds import SourceFormat
from penstock.core.protocols import SourceTraits
from penstock.core.records import Block, SourceColumn, Span, TensorSpec
from penstock.options.records import ReadOptions
from penstock.sources.files.file_runs import FileRuns, path_column
from penstock.sources.files.listing import Paths
from penstock.sources.images.decoding import PACKAGES
from penstock.sources.images.encoded import ImagePaths, image_spec
from penstock.sources.images.resizing import Rendition

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
LARGEST_SPAN = 4
"""A span ends early at this many times the bytes of a usual one, so that no replica works alone at the end."""


class ImageFiles(FileRuns):
    """Image files with the columns `image` and `path`, which is the absolute path or the URL.

    Args:
        paths: In input order; `listing.Paths` where there may be very many.
        reading: The size and colours to decode to, and how to get there.
        left_out: Files of another kind that lie beside them.
    """

    traits = SourceTraits(reads_at_random=True, packages=PACKAGES)

    def __init__(self, paths: Sequence[str], reading: ReadOptions | None = None, left_out: Sequence[str] = ()) -> None:
        super().__init__(paths)
        self._left_out = tuple(left_out)
        self._reading = reading or ReadOptions()

    def remarks(self) -> list[str]:
        """A remark on the files that lie beside the photos and are not read."""
        if not self._left_out:
            return []
        names = [path.rpartition("/")[2] for path in self._left_out[:3]] + ["…"] * (len(self._left_out) > 3)
        files = f"{len(self._left_out)} file{'s' * (len(self._left_out) > 1)} of another kind"
        return [f"left out: {files} beside {len(self.paths):,} photos ({', '.join(names)})"]

    def schema(self) -> dict[str, TensorSpec]:
        return {"image": image_spec("image", self._reading), "path": TensorSpec("path", "string", ())}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        mean = self._total_bytes() / max(1, len(self.paths))
        yield from self.spans(rows_per_span, max(1, int(LARGEST_SPAN * rows_per_span * mean)))

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        paths = self.paths_of(span)
        made: dict[str, SourceColumn] = {}
        for name in columns:
            made[name] = ImagePaths(paths, Rendition.of(self._reading)) if name == "image" else path_column(paths)
        yield Block(span.start, span.rows, made)

    def _total_bytes(self) -> int:
        if isinstance(self.paths, Paths):
            return int(self.paths.sizes.sum())
        return sum(fragment.size for fragment in self.fragments())


FORMAT = SourceFormat(IMAGE_SUFFIXES, ImageFiles, is_row_per_file=True, open_beside=ImageFiles)
