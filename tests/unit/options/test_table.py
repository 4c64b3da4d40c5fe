"""The table of options: flags, keywords, the fingerprint, requests and keys of plans derive from the fields."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock.cli.commands import predict
from penstock.cli.flags import flag_of, options_from_flags
from penstock.commands import keyword_types
from penstock.commands.folder_job import fingerprint
from penstock.core.plans import Choice, Plan
from penstock.core.records import Fragment
from penstock.errors import UsageError
from penstock.jobs.steps import as_json, as_request, from_request
from penstock.options import table
from penstock.options import value_kinds as kinds
from penstock.options.records import OPTIONS, DeviceRequest, Nulls, PredictOptions, make_options
from penstock.options.table import Decides, Option, PlanKey, option, options_of, part, values_of
from tests.support.keyword_types import source

ANOTHER: dict[str, Any] = {
    "signature": "other",
    "runtime": "jax",
    "precision": "float16",
    "weights": "some.weights.h5",
    "custom_objects": ["my.layers"],
    "constants": {"keep_prob": 1.0},
    "estimator": True,
    "checkpoint": "checkpoints",
    "params": {"hidden": [10, 10]},
    "trust_model": True,
    "check": True,
    "tolerance": 0.5,
    "inputs": {"x": ["a", "b"]},
    "as_example": False,
    "preprocess": "tests.support:one",
    "preprocess_row": "tests.support:two",
    "preset": "imagenet-tf",
    "scale": [0.5, 1, 2],
    "offset": 3,
    "image_size": (8, 9),
    "resize": "pad",
    "interpolation": "torchvision",
    "fast_decode": True,
    "color": "rgb",
    "images": "photo",
    "features": {"image": "uint8[28,28]"},
    "header": "no",
    "nulls": ["nan", "empty"],
    "buckets": [8, 16],
    "padding": "always",
    "limit": 7,
    "skip": 5,
    "sample": 9,
    "sample_by": "label",
    "seed": 1,
    "outputs": ["score", "class"],
    "top_k": 3,
    "argmax": True,
    "labels": ["cat", "dog"],
    "postprocess": "tests.support:three",
    "squeeze": True,
    "keep": ["id"],
    "rename": {"a": "b"},
    "format": "csv",
    "part_rows": 100,
    "max_failures": 0.5,
    "batch_size": 64,
    "devices": "cpu:2",
    "replicas_per_device": 2,
    "memory_fraction": 0.5,
    "decoder": "gpu:0.5",
    "plan": Plan(Choice("jax", 64, 2)),
    "trace": "trace.json",
    "threads": 3,
    "loaders": 4,
    "row_timeout": 1.5,
    "hang_timeout": 2.5,
    "start_timeout": 3.5,
    "engine": "ray",
    "address": "10.0.0.1:6379",
    "resources": {"CPU": "4"},
    "max_nodes": 3,
}
"""For each option a value that is not its default."""
NEEDS: dict[str, dict[str, Any]] = {
    "checkpoint": {"estimator": True},
    "params": {"estimator": True},
    "sample_by": {"sample": 9},
    "labels": {"argmax": True},
    "address": {"engine": "ray"},
    "resources": {"engine": "ray"},
    "max_nodes": {"engine": "ray"},
}
"""What must be given besides."""
SHELL: dict[str, list[str]] = {
    "estimator": ["my:model_fn"],
    "constants": ["keep_prob=1.0"],
    "params": ['{"hidden": [10, 10]}'],
    "inputs": ["x=a,b"],
    "features": ["image=uint8[28,28]"],
    "rename": ["a=b"],
    "resources": ["CPU=4"],
    "scale": ["0.5,1,2"],
    "buckets": ["8,16"],
    "image_size": ["8x9"],
    "outputs": ["score, class"],
    "plan": ["off"],
}
"""How the shell writes those that it does not write as one value or several."""


def with_another(name: str) -> tuple[PredictOptions, PredictOptions]:
    """Options that differ in one of them only."""
    base = NEEDS.get(name, {})
    return make_options(base), make_options({**base, name: ANOTHER[name]})


def mark_of(options: PredictOptions) -> str:
    return fingerprint("digest", [Fragment("x.npy", 1, 2)], as_request(options))


@pytest.mark.parametrize("name", OPTIONS)
def test_changing_what_decides_the_output_changes_the_fingerprint_and_nothing_else_does(name: str) -> None:
    before, after = with_another(name)
    assert before != after
    assert (mark_of(before) != mark_of(after)) == (OPTIONS[name].decides is Decides.OUTPUT)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_that_is_kept_survives_the_way_to_json_and_back(name: str) -> None:
    _, options = with_another(name)
    read = from_request(json.loads(json.dumps({"model": "m", "data": ["x.npy"], **as_request(options)})))
    assert as_request(read) == as_request(options)
    if OPTIONS[name].decides is Decides.OUTPUT and name != "plan":
        assert values_of(read)[name] == values_of(options)[name]


@pytest.mark.parametrize("name", OPTIONS)
def test_what_was_read_once_is_read_alike_again(name: str) -> None:
    value = OPTIONS[name].read(ANOTHER[name])
    assert OPTIONS[name].read(value) == value


def test_fingerprint_and_keys_of_plans_cover_exactly_these() -> None:
    """A change here is a decision: jobs that were begun before are other jobs then, or old plans fit no more."""
    decided = [name for name, each in OPTIONS.items() if each.decides is not Decides.OUTPUT]
    assert decided == [
        "check", "max_failures", "devices", "replicas_per_device", "memory_fraction", "decoder", "trace",
        "loaders", "hang_timeout", "start_timeout", "engine", "address", "resources", "max_nodes",
    ]  # fmt: skip
    assert [name for name, each in OPTIONS.items() if each.plan is PlanKey.RUN] == [
        "runtime", "tolerance", "batch_size", "devices", "replicas_per_device", "memory_fraction", "threads",
    ]  # fmt: skip
    assert [name for name, each in OPTIONS.items() if each.plan is PlanKey.STEP] == [
        "precision", "constants", "inputs", "as_example", "preprocess", "preprocess_row", "preset", "scale", "offset",
        "image_size", "resize", "interpolation", "fast_decode", "color", "images", "features", "header", "nulls",
        "buckets", "padding", "outputs", "top_k", "argmax", "keep",
    ]  # fmt: skip


@pytest.mark.parametrize("key", [PlanKey.STEP, PlanKey.RUN])
def test_keys_of_plans_are_plain_json(key: PlanKey) -> None:
    facts = as_json(PredictOptions(), lambda each: each.plan is key)
    assert json.loads(json.dumps(facts)) == facts


def test_a_plan_that_was_named_is_part_of_the_job_by_its_recipe() -> None:
    plan = Plan(Choice("jax", 64, 2, replicas=4), rows_per_s=5.0)
    request = as_request(PredictOptions(plan=plan))
    assert request["plan"] == {"runtime": "jax", "batch_size": 64, "threads": 2, "precision": "model"}
    assert mark_of(PredictOptions(plan=plan)) == mark_of(PredictOptions(plan=dataclasses.replace(plan, rows_per_s=9.0)))
    assert mark_of(PredictOptions(plan="off")) == mark_of(PredictOptions())


def run_flags(*arguments: str) -> PredictOptions:
    """The options that flags of `penstock predict` make."""
    made: list[PredictOptions] = []

    def read(**values: Any) -> None:
        made.append(options_from_flags(values))

    command = click.Command("predict", callback=read, params=[p for p in predict.params if p.name in OPTIONS])
    ran = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return made[0]


def flags_of(name: str, tmp_path: Path) -> list[str]:
    flag, value = OPTIONS[name].flag.split("/"), ANOTHER[name]
    if name == "labels":
        (tmp_path / "labels.txt").write_text("\n".join(value), encoding="utf-8")
        return [flag[0], str(tmp_path / "labels.txt")]
    if name in SHELL:
        return [flag[0], *SHELL[name]]
    if isinstance(value, bool):
        return [flag[0] if value else flag[1]]
    values = value if isinstance(value, list) else ["x".join(map(str, value)) if isinstance(value, tuple) else value]
    return [word for each in values for word in (flag[0], str(each))]


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "plan"])
def test_a_flag_and_a_keyword_make_the_same_option(name: str, tmp_path: Path) -> None:
    flags = [flag for other in (*NEEDS.get(name, {}), name) for flag in flags_of(other, tmp_path)]
    assert run_flags(*flags) == with_another(name)[1]


def test_no_flag_and_no_keyword_make_the_defaults() -> None:
    assert run_flags() == make_options({}) == make_options(dict.fromkeys(OPTIONS)) == PredictOptions()


def test_every_default_is_allowed_as_records_do_not_check_them() -> None:
    for each in OPTIONS.values():
        each.check(each.default)


def test_auto_is_what_is_found_out() -> None:
    names = ("runtime", "batch_size", "threads", "replicas_per_device", "loaders")
    assert make_options(dict.fromkeys(names, "auto")) == PredictOptions()
    assert make_options({"padding": "auto", "header": "auto"}) == PredictOptions()


def test_a_checkpoint_says_in_python_what_the_function_is_and_not_in_the_shell() -> None:
    assert make_options({"checkpoint": "dir"}).loading.estimator
    with pytest.raises(UsageError, match="--checkpoint is for Estimators"):
        run_flags("--checkpoint", "dir")


def test_paths_that_are_kept_mean_the_same_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_options({"weights": "w.h5"}).loading.weights == str(tmp_path / "w.h5")
    assert make_options({"weights": "s3://b/w.h5"}).loading.weights == "s3://b/w.h5"
    assert make_options({"trace": Path("t.json")}).trace == "t.json"


def test_a_function_of_a_script_cannot_be_found_again() -> None:
    request = as_request(PredictOptions(preprocess=lambda columns: columns))
    with pytest.raises(UsageError, match="the preprocessing function of this job was of the script that began it"):
        from_request(request)


def test_unknown_keyword_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        make_options({"batchsize": 3})
    assert (caught.value.problem, caught.value.hint) == ("unknown option", "did you mean 'batch_size'?")
    assert "row_timeout" in (caught.value.allowed or "")


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("nan", Nulls("nan")),
        (0, Nulls("0")),
        (["nan", "empty"], Nulls("nan", "empty")),
        ({"numbers": "nan", "texts": "fail"}, Nulls("nan")),
    ],
)
def test_rules_for_missing_values_are_read_from_any_form(given: Any, value: Nulls) -> None:
    assert OPTIONS["nulls"].read(given) == value


def test_types_of_keywords_are_those_of_the_table() -> None:
    written = Path(inspect.getfile(keyword_types)).read_text(encoding="utf-8")
    assert written == source(), "write them anew: python -m tests.support.keyword_types"


@dataclass(frozen=True)
class Inner:
    """A part of the options of a toy."""

    sharpness: int = option(kinds.count(), Decides.OUTPUT, PlanKey.STEP, group="Toy", help="How sharp.", default=1)

    def __post_init__(self) -> None:
        table.check_values(self)


@dataclass(frozen=True)
class Toy:
    """Options of which one is new: its field is all that was written for it."""

    inner: Inner = part(Inner)  # noqa: RUF009
    mood: str | None = option(kinds.text("WORD"), Decides.SPEED, PlanKey.RUN, group="Toy", help="How it feels.")

    def __post_init__(self) -> None:
        table.check_values(self)


def test_one_field_makes_the_flag_the_keyword_the_request_and_the_key() -> None:
    options = options_of(Toy)
    assert list(options) == ["sharpness", "mood"]
    flags: dict[str, Any] = {}

    @click.command()
    @flag_of(options["sharpness"])
    @flag_of(options["mood"])
    def command(**values: Any) -> None:
        flags.update(values)

    shown = CliRunner().invoke(command, ["--help"]).output
    assert "--sharpness N" in shown
    assert "How sharp." in shown
    CliRunner().invoke(command, ["--sharpness", "3", "--mood", "good"], catch_exceptions=False)
    toy = table.make(Toy, flags)
    assert toy == table.make(Toy, {"sharpness": 3, "mood": "good"}) == Toy(Inner(3), "good")
    assert table.as_json(toy, lambda each: each.decides is Decides.OUTPUT) == {"sharpness": 3}
    assert table.as_json(toy, lambda each: each.plan is PlanKey.RUN) == {"mood": "good"}
    with pytest.raises(UsageError, match="sharpness must be a positive whole number"):
        table.make(Toy, {"sharpness": 0})


def test_a_field_that_is_not_classified_is_refused() -> None:
    @dataclass(frozen=True)
    class Careless:
        strength: int = 1
        others: Mapping[str, str] = field(default_factory=dict)

    with pytest.raises(TypeError, match=r"Careless\.strength is not classified"):
        options_of(Careless)


def test_every_option_says_all_that_is_derived_from_it() -> None:
    for name, each in OPTIONS.items():
        assert isinstance(each, Option)
        assert each.name == name
        assert each.flag.startswith("--")
        assert each.help.endswith(".")
        assert each.group
    assert ANOTHER.keys() == OPTIONS.keys(), "a value that is not the default, for the tests above"
    assert OPTIONS["devices"].read("gpu:1") == DeviceRequest("gpu", gpu_indices=(1,))
