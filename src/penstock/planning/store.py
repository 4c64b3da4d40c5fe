"""Store of plans and converted steps: a cache folder of the user, whose files are written whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Any

from penstock import plugins
from penstock.core import kinds
from penstock.core.agreement import LEAST_LOOSENED, Proof
from penstock.core.plans import Plan, plan_from_json
from penstock.core.records import Device, ModelFile, TensorSpec
from penstock.errors import OutputError, UsageError
from penstock.jobs import steps
from penstock.options.records import PredictOptions
from penstock.options.table import PlanKey
from penstock.pool.devices.inventory import usable_cores
from penstock.private_cache import CONVERTED, PLANS, cache_folder, in_use, is_in_use, is_own
from penstock.runtimes.tensorflow.to_onnx import FORMAT
from penstock.storage.disk import checksum_of_file, regular

_UNREADABLE = (OSError, ValueError, RecursionError, UsageError, OutputError)
"""What reading a file in the cache may raise if something other than penstock wrote it."""
_KEPT_CONVERSIONS = 16
_KEPT_S = 7 * 24 * 3600.0
_ABANDONED_S = 24 * 3600.0
_MOST_PLANS = 256
_UNFINISHED = ".new-"
_SHOWN = 3
_LONGEST = 40
_TOO_LONG = {"model": "this model", "columns": "these columns", "hardware": "these devices and cores"}
"""Names for facts that are too long to print."""


def step_key(model: ModelFile, schema: Mapping[str, TensorSpec], options: PredictOptions) -> str:
    """The key of a compiled step: the model, the columns that feed it, and what is done to them and to its answers.

    It is known before anything is loaded, so that a converted step is found without the framework it came from.
    """
    return _digest(_step_facts(model, schema, options))


def _step_facts(model: ModelFile, schema: Mapping[str, TensorSpec], options: PredictOptions) -> dict[str, Any]:
    return {
        "model": model.digest,
        "kind": model.kind,
        "signature": model.signature,
        "columns": {name: str(spec) for name, spec in schema.items()},
        **steps.as_json(options, lambda option: option.plan is PlanKey.STEP),
        # The step of an evaluation has one answer more.
        **({"logits": True} if model.answers is not None and model.answers.logits else {}),
    }


def plan_key(step: str, options: PredictOptions, devices: Iterable[Device]) -> str:
    """The key of a plan: this step, on these devices, with these versions."""
    return _digest({"step": step, **_run_facts(options, devices)})


def _run_facts(options: PredictOptions, devices: Iterable[Device]) -> dict[str, Any]:
    return {
        **steps.as_json(options, lambda option: option.plan is PlanKey.RUN),
        "hardware": [[device.kind, device.name, device.memory_bytes] for device in devices] + [usable_cores()],
        "versions": _versions(),
        "format": FORMAT,
    }


def facts_of(
    model: ModelFile, schema: Mapping[str, TensorSpec], options: PredictOptions, devices: Iterable[Device]
) -> dict[str, Any]:
    """Everything that decides which plan fits, by names that a message can show: plain JSON."""
    facts = {**_step_facts(model, schema, options), **_run_facts(options, devices)}
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=str))
    return plain


def describe_nearest(facts: Mapping[str, Any]) -> str | None:
    """A line that says why the nearest plan for the same model does not fit; None where there is none."""
    others = (plan.made_for for plan in _plans() if plan.made_for.get("model") == facts["model"])
    misfits = [differences(facts, there) for there in others if there != facts]
    nearest = min(misfits, key=len, default=None)
    if nearest is None:
        return None
    more = f" and {len(nearest) - _SHOWN} more" if len(nearest) > _SHOWN else ""
    return f"plan: one is known for this model, but not for {', '.join(nearest[:_SHOWN])}{more}"


def found_before(model: str, own: str, device_kind: str, family: str) -> dict[str, float]:
    """How many times as fast as `own`, the model's own framework, other runtimes were in earlier plans of this machine.

    The medians of plans for the same model where there are any, otherwise of plans for models with similar rows.
    """
    of_model, of_family = dict[str, list[float]](), dict[str, list[float]]()
    for plan in _plans():
        # A plan without a budget comes from a single look, at a size that may suit only the model's own runtime.
        if plan.made_for.get("hardware", [[None]])[0][0] != device_kind or not plan.budget_s:
            continue
        if plan.own is None or plan.own.runtime != own:
            continue
        for known, fits in ((of_model, plan.made_for.get("model") == model), (of_family, plan.family == family)):
            for runtime, gain in plan.gains().items() if fits else ():
                known.setdefault(runtime, []).append(gain)
    return {runtime: median(gains) for runtime, gains in (of_family | of_model).items()}


def _plans() -> Iterator[Plan]:
    """The plans in the cache, as far as they can be read; the latest, where there are many."""
    with contextlib.suppress(OSError):
        for entry in _latest_first(os.path.dirname(_plan_path("")))[:_MOST_PLANS]:
            with contextlib.suppress(*_UNREADABLE):
                yield _read(entry.path)


def differences(facts: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """What differs between what is wanted and what a plan was made for, in words."""
    lines: list[str] = []
    for name, value in facts.items():
        other = there.get(name)
        if value == other:
            continue
        if name == "versions":
            changed = [each for each in value if value[each] != (other or {}).get(each)]
            lines += [f"{each} {value[each] or 'gone'} (there: {(other or {}).get(each)})" for each in changed]
        else:
            lines.append(_TOO_LONG.get(name) or f"{name}={_brief(value)} (there: {_brief(other)})")
    return lines


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _versions() -> dict[str, str | None]:
    """The versions of everything that a plan may choose, and of what makes or reads a converted step."""
    versions = {name: entry.package.version for name, entry in kinds.runtimes().items()}
    versions["converter"] = kinds.CONVERTER.version
    return versions | {name: kinds.installed_version(name) for name in ("penstock", "keras", "onnx", "jaxlib")}


def load_plan(key: str) -> Plan | None:
    """The plan that was found before; None where there is none that can be used."""
    try:
        plan = _read(_plan_path(key))
    except _UNREADABLE:
        return None  # there is none, or it is of another version: a new one takes its place
    converted = plan.choice.converted
    return plan if converted is None or is_whole(converted) else None


def _read(path: str) -> Plan:
    with open(path, encoding="utf-8", opener=regular) as file:
        plan = plan_from_json(json.load(file), path)
    tried = {*plan.left, *(trial.runtime for trial in plan.trials)}
    if not all(plugins.is_known(plugins.RUNTIMES, runtime) for runtime in tried):
        raise ValueError("a runtime of it is not known here")
    return plan


def save_plan(plan: Plan) -> None:
    """Keep a plan. A cache that cannot be written costs time, not the job."""
    path = _plan_path(plan.key)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, json.dumps(plan.as_json(), indent=1))
        _drop_oldest_plans(os.path.dirname(path))


def _drop_oldest_plans(folder: str) -> None:
    """Remove all but the latest plans, and what killed runs left."""
    for place, entry in enumerate(_latest_first(folder)):
        is_abandoned = entry.name.startswith(_UNFINISHED) and time.time() - entry.stat().st_mtime > _ABANDONED_S
        if place >= _MOST_PLANS or is_abandoned:
            os.remove(entry.path)


def _latest_first(folder: str) -> list[os.DirEntry[str]]:
    return sorted(os.scandir(folder), key=lambda entry: -entry.stat().st_mtime)


def _write(path: str, text: str) -> None:
    """Replace a small file, whole or not at all."""
    folder = os.path.dirname(path)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=_UNFINISHED, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            os.remove(file.name)
            raise
    os.replace(file.name, path)


def forget(plan: Plan) -> None:
    """Drop a plan that does not run any more, with what was converted for it in this cache."""
    with contextlib.suppress(OSError):
        os.remove(_plan_path(plan.key))
    converted = plan.choice.converted
    if converted is not None and os.path.dirname(converted) == os.path.join(cache_folder(), CONVERTED):
        forget_conversion(converted)


def forget_conversion(folder: str) -> None:
    """Drop a converted step that does not run, unless another job runs it: the next one that needs it makes it anew."""
    if not is_in_use(folder):
        shutil.rmtree(folder, ignore_errors=True)


def read_plan(path: str) -> Plan:
    """The plan in a file that the user named.

    Raises:
        UsageError: It cannot be read, or is no plan.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return plan_from_json(json.load(file), path)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            "the plan cannot be read", received=f"--plan {path}: {error}", allowed="what `penstock plan --json` prints"
        ) from None


def conversion_folder(step: str) -> str:
    """Where the converted step is kept. Another version of any package that takes part makes another step."""
    return os.path.join(cache_folder(), CONVERTED, _digest({"step": step, "format": FORMAT, "versions": _versions()}))


def is_whole(folder: str) -> bool:
    """Whether a converted step is unchanged since this user wrote it for this folder: others could write anything."""
    try:
        if not is_own(folder):
            return False
        with open(os.path.join(folder, "signature.json"), encoding="utf-8", opener=regular) as file:
            written = json.load(file)
        path = os.path.join(folder, "model.onnx")
        status = os.stat(path)
        is_of_size = stat.S_ISREG(status.st_mode) and status.st_size == written["num_bytes"]
        is_its_own = written["step"] == os.path.basename(folder)
        return is_its_own and is_of_size and _checksum(path, status.st_size, status.st_mtime_ns) == written["digest"]
    except (*_UNREADABLE, KeyError, TypeError):
        return False


@lru_cache(4)
def _checksum(path: str, size: int, mtime_ns: int) -> str:
    """The checksum of a file, which is read again only after its size or its time changed."""
    return checksum_of_file(path)


def note_agreement(folder: str, model: ModelFile, runtime: str, device: Device, proof: Proof) -> None:
    """Note how far the answers of a converted step on this runtime are from those of the model's own framework."""
    with contextlib.suppress(OSError):
        noted = {"difference": proof.difference, "needed": proof.needed, "of_nan": proof.of_nan}
        _write(_agreement_path(folder, model, runtime, device), json.dumps(noted))


def is_agreed(folder: str, model: ModelFile, runtime: str, device: Device, tolerance: float) -> bool:
    """Whether `note_agreement` was called for it before, with a difference that the tolerance or noise allows."""
    try:
        noted = _read_agreement(folder, model, runtime, device)
        return float(noted["needed" if tolerance >= LEAST_LOOSENED else "difference"]) <= tolerance
    except (*_UNREADABLE, KeyError, TypeError):
        return False


def difference_of_nan(folder: str, model: ModelFile, runtime: str, device: Device) -> str | None:
    """How the answers to rows with NaN differ, if that was noted."""
    try:
        of_nan = _read_agreement(folder, model, runtime, device)["of_nan"]
        return None if of_nan is None else str(of_nan)
    except (*_UNREADABLE, KeyError, TypeError):
        return None


def _read_agreement(folder: str, model: ModelFile, runtime: str, device: Device) -> Any:
    with open(_agreement_path(folder, model, runtime, device), encoding="utf-8", opener=regular) as file:
        return json.load(file)


def _agreement_path(folder: str, model: ModelFile, runtime: str, device: Device) -> str:
    """Where a note is kept. Its name depends on that of the device: another processor or card may round differently."""
    name = _digest({"name": device.name})[:8]
    return os.path.join(folder, f"agreed-{runtime}-{device.kind}-{name}-{model.precision}")


def touch(folder: str) -> None:
    """Mark a converted step as used now, so that it is not among the first to be removed."""
    with contextlib.suppress(OSError):
        os.utime(folder)


@contextlib.contextmanager
def staged(folder: str, is_whole: Callable[[str], object] = is_whole) -> Iterator[str]:
    """A folder that takes the place of `folder` when all went well: other runs see a whole one, or none."""
    parent, name = os.path.split(folder)
    os.makedirs(parent, exist_ok=True)
    _drop_oldest(parent)
    around = tempfile.mkdtemp(prefix=".staging-", dir=parent)
    staging = os.path.join(around, name)
    try:
        os.mkdir(staging, mode=0o700)
        with in_use(around):
            yield staging
        # Another run may have written the same step first, and use it: then that one stays.
        if is_whole(staging) and not (os.path.isdir(folder) and is_whole(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                os.replace(staging, folder)
            except OSError:
                if not (os.path.isdir(folder) and is_whole(folder)):
                    raise
    finally:
        shutil.rmtree(around, ignore_errors=True)


def converted_model(model: ModelFile, folder: str) -> ModelFile:
    """The model behind a converted step: scaling and ranking are inside it already."""
    return replace(
        model,
        kind="converted",
        location=folder,
        runtimes=tuple(name for name, entry in kinds.runtimes().items() if entry.reads_steps),
        scaling=None,
        answers=None,
    )


def _drop_oldest(parent: str) -> None:
    """Remove all but the latest converted steps, which are as large as their models, and what killed runs left."""
    folders = [entry for entry in os.scandir(parent) if entry.is_dir()]
    for entry in [entry for entry in folders if entry.name.startswith(".")]:
        folders.remove(entry)
        if time.time() - entry.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(entry.path, ignore_errors=True)
    folders.sort(key=lambda entry: entry.stat().st_mtime)
    for entry in folders[: max(0, len(folders) - _KEPT_CONVERSIONS + 1)]:
        if time.time() - entry.stat().st_mtime > _KEPT_S and not is_in_use(entry.path):
            shutil.rmtree(entry.path, ignore_errors=True)


def _plan_path(key: str) -> str:
    return os.path.join(cache_folder(), PLANS, f"{key}.json")


def _digest(known: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:32]
