"""A column with the name of the folder in which a photo lies: often its class."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.core.protocols import Source
from penstock.core.records import STRING, Block, Span, TensorSpec
from penstock.errors import UsageError
from penstock.sources.derived.wrapper import Around

FOLDER = "@folder"
_PATH = "path"


class FolderNames(Around):
    """A source of files with one more column, `@folder`: the last folder in the path of every row.

    Raises:
        UsageError: The rows of this source are no files, so they have no folder.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if _PATH not in source.keeps:
            raise UsageError(
                "the rows of this input are no files, so that they have no folder",
                received=f"keep={FOLDER}",
                allowed=f"{FOLDER} with files of images or audio, and tar files; otherwise columns: "
                f"{', '.join(list(source.schema())[:20])}",
            )

    def schema(self) -> dict[str, TensorSpec]:
        return {**self.source.schema(), FOLDER: TensorSpec(FOLDER, STRING, ())}

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        if FOLDER not in columns:
            yield from self.source.read(span, columns)
            return
        inside = list(dict.fromkeys([*(name for name in columns if name != FOLDER), _PATH]))
        for block in self.source.read(span, inside):
            folders = [folder_of(path) for path in _texts(block)]
            wanted = {name: column for name, column in block.columns.items() if name in columns}
            yield replace(block, columns={**wanted, FOLDER: pa.array(folders, pa.large_string())})


def folder_of(path: str) -> str:
    """The name of the folder of a file, also in a URL or an archive; empty at the root.

    >>> folder_of("/photos/cats/1.jpg"), folder_of("s3://bucket/dogs/2.jpg")
    ('cats', 'dogs')
    """
    return path.rpartition("/")[0].rpartition("/")[2]


def _texts(block: Block) -> list[str]:
    column = block.columns[_PATH]
    assert isinstance(column, pa.Array)
    texts: list[str] = column.to_pylist()
    return texts
