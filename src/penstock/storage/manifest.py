"""The manifest: everything that is fixed when a job starts, so that a resumed run gives the same bits."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.records import Binding, Feature, Fragment, OutputSchema, Recipe, Span, TensorSpec
from penstock.errors import OutputError
from penstock.options.records import Nulls
from penstock.storage.disk import INTERNAL
from penstock.storage.places import Place

MANIFEST_VERSION = 5
_READABLE_VERSION = 4
"""What its folders hold can be looked at and removed. Its journal has another form, and is not gone on with."""
MANIFEST = f"{INTERNAL}/manifest.json"
_VERSION = "penstock_manifest"
_GROUP = re.compile(r"(?<= more): [0-9a-f]{32}$")
_SINCE_THEN = "which made other pixels of images than --interpolation does now, so that its job is not gone on with"


@dataclass(frozen=True)
class Manifest:
    """A job as it was started.

    Args:
        request: What the user asked for, as plain JSON: enough to start the job again.
        model_digest: Of what was loaded: the model's files, its weights, the modules of its classes.
        fingerprint: A digest of the model, the fragments and every option that changes the output.
        fragments: The input files.
        recipe: What decides the bits.
        bindings: Which columns feed which input.
        schema: What is written.
        spans: Every span of the input.
        parts: The first span of every planned part.
        versions: What wrote this.
        weights: A digest, for a model that a function built.
        max_failures: What a resumed run goes by, unless it is told otherwise.
        part_rows: Where the input streams, spans and parts are not known when the job starts: a part ends when it has
            so many rows. None for all other inputs.
        streamed: The spans and rows that such an input had, once it has ended.
        split: Replicas on each device, and batches in flight in each: no bit depends on them, but the speed does.
        columns: What is read of the input.
        part_suffix: How the names of part files end; kept because the sink may be gone when they are to be removed.
        part_folders: The folders that hold part files, relative to the output; "" is the output itself.
        version: Of the manifest's format.
    """

    request: dict[str, Any]
    model_digest: str
    fingerprint: str
    fragments: tuple[Fragment, ...]
    recipe: Recipe
    bindings: tuple[Binding, ...]
    schema: OutputSchema
    spans: tuple[Span, ...]
    parts: tuple[int, ...]
    versions: dict[str, str] = field(default_factory=dict)
    weights: str | None = None
    max_failures: float = 0.1
    part_rows: int | None = None
    streamed: tuple[int, int] | None = None
    split: tuple[int, int] | None = None
    columns: tuple[str, ...] = ()
    part_suffix: str = ".parquet"
    part_folders: tuple[str, ...] = ("",)
    version: int = MANIFEST_VERSION

    @property
    def is_older(self) -> bool:
        """Whether an older penstock wrote this: it can be looked at and removed."""
        return self.version < MANIFEST_VERSION

    @property
    def rows(self) -> int:
        if self.streamed is not None:
            return self.streamed[1]
        return self.spans[-1].stop if self.spans else 0

    @property
    def num_spans(self) -> int | None:
        """How many spans there are; None while they still come."""
        if self.part_rows is None:
            return len(self.spans)
        return self.streamed[0] if self.streamed is not None else None

    def save(self, place: Place) -> None:
        """Put the manifest into its place, whole."""
        document = vars(self) | {
            "fragments": [[f.path, f.size, f.mtime_ns] for f in self.fragments],
            "recipe": self.recipe.as_json(),
            "bindings": [asdict(binding) for binding in self.bindings],
            "schema": asdict(self.schema),
            "spans": [[s.start, s.rows, s.locator, s.group, s.numbers] for s in self.spans],
        }
        document[_VERSION] = document.pop("version")
        place.write(MANIFEST, json.dumps(document).encode())


def load_manifest(place: Place) -> Manifest | None:
    """The manifest of a place; None where there is none.

    Raises:
        OutputError: The manifest is damaged, or of a version that this penstock does not know.
    """
    path = place.address(MANIFEST)
    try:
        content = place.read(MANIFEST)
        if content is None:
            return None
        document = json.loads(content)
    except (ValueError, OSError) as error:
        raise OutputError("the manifest cannot be read", received=f"{path}: {error}") from error
    version = document.get(_VERSION) if isinstance(document, dict) else None
    if version not in (_READABLE_VERSION, MANIFEST_VERSION):
        is_older = isinstance(version, int) and version < MANIFEST_VERSION
        raise OutputError(
            "the manifest is of another version of penstock",
            received=f"{path}: version {version}" + (f", {_SINCE_THEN}" if is_older else ""),
            allowed=f"version {MANIFEST_VERSION}",
            hint="go on with the penstock that began it, or begin again in another folder",
        )
    try:
        return _from_document(document if version == MANIFEST_VERSION else _converted(document))
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError("the manifest is damaged", received=f"{path}: {type(error).__name__} {error}") from error


def _from_document(document: dict[str, Any]) -> Manifest:
    """The manifest that `save` made a document of. Fields that are no records are as they are in JSON."""
    schema = document["schema"]
    records = {
        "fragments": tuple(Fragment(*entry) for entry in document["fragments"]),
        "recipe": Recipe(**document["recipe"]),
        "bindings": tuple(map(_binding, document["bindings"])),
        "schema": OutputSchema(tuple(map(_spec, schema["columns"])), schema["num_outputs"]),
        "spans": tuple(
            Span(index, start, rows, _tuples(locator), group, _tuples(numbers))
            for index, (start, rows, locator, group, numbers) in enumerate(document["spans"])
        ),
        "version": document[_VERSION],
    }
    plain = {name: _tuples(value) for name, value in document.items() if name not in (*records, _VERSION)}
    return Manifest(**plain, **records)


def _converted(document: dict[str, Any]) -> dict[str, Any]:
    """A manifest of version 4, with what it does not say."""
    format_ = document["request"]["format"]
    names = [column["name"] for column in document["schema"]["columns"]]
    return document | {"part_suffix": f".{format_}", "part_folders": ["row", *names] if format_ == "npy" else [""]}


def older_job(place: Place, manifest: Manifest) -> OutputError:
    """The error for a job that an older penstock wrote."""
    return OutputError(
        "the job in the output folder was written by an older version of penstock",
        received=f"{place.address()}: penstock {manifest.versions.get('penstock', 'unknown')}, "
        f"manifest version {manifest.version}",
        allowed=f"manifest version {MANIFEST_VERSION}",
        hint="go on with the penstock that began it; or begin again in another folder, or here with --overwrite. "
        f"What is there can be read, but this penstock, also where its number is the same, goes on only with "
        f"manifests of version {MANIFEST_VERSION}, and this one has version {manifest.version}",
    )


def _binding(entry: dict[str, Any]) -> Binding:
    features = tuple(Feature(**feature | {"shape": _tuples(feature["shape"])}) for feature in entry["features"])
    plain = {name: _tuples(value) for name, value in entry.items()}
    return Binding(**plain | {"features": features, "nulls": Nulls(**entry["nulls"])})


def _spec(entry: dict[str, Any]) -> TensorSpec:
    return TensorSpec(**entry | {"shape": _tuples(entry["shape"])})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def is_fresh(place: Place) -> bool:
    """Whether a job may start in this place: it is absent, empty, or holds only what a job left before it began."""
    children = place.children()
    return children is None or (set(children) <= {INTERNAL} and load_manifest(place) is None)


def describe_difference(old: Manifest, request: dict[str, Any]) -> str:
    """What differs between the job in a folder and the one that was asked for, in words."""
    then = old.request
    changed = [key for key in request if request[key] != then.get(key)]
    if changed:
        return ", ".join(f"{key}={request[key]!r} (there: {then.get(key)!r})" for key in changed[:3])
    return "the content of the model was changed since"


def changed_files(old: Manifest, fragments: Sequence[Fragment]) -> dict[str, str | None]:
    """The input files that are not as they were when the job began, and how: None where only their time differs.

    Files that are not there any more, or not as large, come first.
    """
    before = {fragment.path: fragment for fragment in old.fragments}
    after = {fragment.path: fragment for fragment in fragments}
    groups = [path for path in after.keys() ^ before.keys() if _GROUP.search(path)]
    if groups:
        # One fragment stands for many small files: its name has a digest of their names and sizes.
        return {_GROUP.sub("", min(groups)): "files were added or removed, or have another size"}
    changes: dict[str, str | None] = {path: "it is not there any more" for path in before if path not in after}
    changes |= {path: "it was not there then" for path in after if path not in before}
    common = [path for path in after if path in before]
    sizes = {path: (before[path].size, after[path].size) for path in common}
    changes |= {path: f"{new:,} bytes; it had {old:,}" for path, (old, new) in sizes.items() if old != new}
    if not changes and list(before) != list(after):
        return dict.fromkeys(list(after)[:1], "the files are in another order")
    return changes | {path: None for path in common if path not in changes and before[path] != after[path]}
