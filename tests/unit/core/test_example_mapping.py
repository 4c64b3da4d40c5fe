"""Which columns become the features of records, and which records are fed as they are."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.job import Job
from penstock.core.mapping import RAW_RECORD, bind, describe
from penstock.core.records import STRING, Binding, Feature, Signature, Span, TensorSpec
from penstock.errors import InputError
from penstock.pool.loading import load_batches
from penstock.sources.python.memory import InMemory
from penstock.sources.tfrecord.examples import parse

AGE, CITY = Feature("age", "int64", ()), Feature("city", STRING, (), is_required=False)
SIZE = Feature("size", "float32", (2,))
TAGS = Feature("tags", STRING, None, is_required=False)
RECORDS = TensorSpec("records", STRING, ())
PARSES = Signature((RECORDS,), (), examples={"records": (AGE, CITY, SIZE, TAGS)})
DOES_NOT_SAY = Signature((RECORDS,), ())


def schema(**columns: tuple[str, tuple[int | None, ...]]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, dtype, shape) for name, (dtype, shape) in columns.items()}


FITTING = schema(size=("float64", (2,)), age=("uint8", ()), other=("float32", ()))
RAW = {RAW_RECORD: TensorSpec(RAW_RECORD, STRING, ())}


def test_columns_of_the_same_name_become_features_and_defaults_need_none() -> None:
    (binding,) = bind(PARSES, FITTING, {})
    assert binding == Binding("records", ("age", "size"), STRING, (), features=(AGE, SIZE))
    assert describe(binding) == "records ← one tf.train.Example a row, of age, size"


def test_a_source_of_records_feeds_them_as_they_are() -> None:
    (binding,) = bind(PARSES, {**FITTING, **RAW}, {})
    assert binding == Binding("records", (RAW_RECORD,), STRING, ())
    (named,) = bind(PARSES, {**FITTING, **schema(records=(STRING, ()))}, {})
    assert named.columns == ("records",)
    assert not named.features


def test_a_column_of_records_may_be_named() -> None:
    (binding,) = bind(PARSES, {**FITTING, **schema(raw=(STRING, ()))}, {"records": ("raw",)})
    assert binding == Binding("records", ("raw",), STRING, ())


def test_a_feature_may_be_given_a_column_of_another_name() -> None:
    (binding,) = bind(PARSES, {**FITTING, **schema(years=("int32", ())), **RAW}, {"age": ("years",)})
    assert binding.columns == ("years", "size")
    assert binding.features == (AGE, SIZE)


def test_the_columns_that_are_named_for_the_input_are_all_that_it_gets() -> None:
    columns = {**FITTING, **schema(city=(STRING, ()))}
    (binding,) = bind(PARSES, columns, {"records": ("age", "size")})
    assert binding.features == (AGE, SIZE)
    assert bind(PARSES, columns, {})[0].features == (AGE, CITY, SIZE)


def test_kept_columns_may_be_features_too() -> None:
    assert bind(PARSES, FITTING, {}, keep=["age"])[0].features == (AGE, SIZE)


def test_missing_features_are_listed_with_their_dtypes() -> None:
    with pytest.raises(InputError) as caught:
        bind(PARSES, schema(ages=("int64", ()), city=(STRING, ())), {})
    assert caught.value.allowed == "age int64[], size float32[2]"
    assert caught.value.hint == "say which column it is: --input age=ages"


def test_a_model_whose_features_all_have_defaults_still_wants_one() -> None:
    only_defaults = Signature((RECORDS,), (), examples={"records": (CITY, TAGS)})
    with pytest.raises(InputError, match="city string"):
        bind(only_defaults, FITTING, {})


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "problem"),
    [
        ("age", "float32", (), "'age' does not take the dtype float32"),
        ("age", STRING, (), "'age' does not take the dtype string"),
        ("city", "int64", (), "'city' does not take the dtype int64"),
        ("size", "float32", (3,), "'size' does not take the shape float32[3]"),
        ("age", "int64", (2,), "'age' does not take the shape int64[2]"),
    ],
)
def test_columns_that_cannot_be_features_are_refused(
    name: str, dtype: str, shape: tuple[int, ...], problem: str
) -> None:
    columns = {**FITTING, name: TensorSpec(name, dtype, shape)}
    with pytest.raises(InputError) as caught:
        bind(PARSES, columns, {})
    assert problem in caught.value.problem


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
def test_any_number_is_a_float_feature_and_any_whole_one_an_int64(dtype: str) -> None:
    columns = {**FITTING, "size": TensorSpec("size", dtype, (2,))}
    assert bind(PARSES, columns, {})[0].features == (AGE, SIZE)


def test_lists_of_any_length_are_looked_at_row_by_row() -> None:
    columns = {
        **FITTING,
        "size": TensorSpec("size", "float32", (3,), varies=True),
        "tags": TensorSpec("tags", STRING, (None,)),
    }
    assert bind(PARSES, columns, {})[0].features == (AGE, SIZE, TAGS)


def test_images_are_features_of_bytes() -> None:
    photo = TensorSpec("photo", "uint8", (None, None, 3), encoding="image")
    signature = Signature((RECORDS,), (), examples={"records": (Feature("photo", STRING, ()),)})
    assert bind(signature, {"photo": photo}, {})[0].features[0].dtype == STRING


def test_records_are_built_of_all_columns_on_demand_where_the_model_does_not_say_what_it_parses() -> None:
    columns = {**FITTING, **schema(city=(STRING, ()), flag=("bool", ())), **RAW}
    (binding,) = bind(DOES_NOT_SAY, columns, {}, keep=["other"], as_example=True)
    assert {feature.name: feature.dtype for feature in binding.features} == {
        "size": "float32", "age": "int64", "city": STRING, "flag": "int64",
    }  # fmt: skip
    assert not any(feature.is_required for feature in binding.features)
    (chosen,) = bind(DOES_NOT_SAY, columns, {"records": ("age", "city")}, as_example=True)
    assert chosen.columns == ("age", "city")


def test_records_are_never_built_where_that_was_ruled_out() -> None:
    with pytest.raises(InputError, match="no column fits the input 'records'"):
        bind(PARSES, FITTING, {}, as_example=False)


def test_it_must_be_clear_which_input_takes_records() -> None:
    two = Signature((RECORDS, TensorSpec("more", STRING, ())), ())
    with pytest.raises(InputError, match="not clear which input takes records"):
        bind(two, FITTING, {}, as_example=True)
    with pytest.raises(InputError, match="no input of the model takes records"):
        bind(Signature((TensorSpec("x", "float32", ()),), ()), FITTING, {}, as_example=True)
    with pytest.raises(InputError, match="cannot be part of a record"):
        bind(DOES_NOT_SAY, schema(day=("opaque", ())), {}, as_example=True)


def test_other_inputs_are_fed_beside_the_records() -> None:
    both = Signature((RECORDS, TensorSpec("x", "float32", ())), (), examples=PARSES.examples)
    records, x = bind(both, FITTING, {})
    assert records.features == (AGE, SIZE)
    assert x.columns == ("other",)


def test_columns_of_numbers_are_stacked_into_a_feature() -> None:
    columns = schema(age=("int64", ()), w=("float64", ()), h=("int32", ()))
    (binding,) = bind(PARSES, columns, {"size": ("w", "h")})
    assert binding.columns == ("age", "w", "h")
    assert [(feature.name, names) for feature, names in binding.columns_of_features()] == [
        ("age", ("age",)),
        ("size", ("w", "h")),
    ]
    with pytest.raises(InputError, match="stacked"):
        bind(PARSES, {**columns, **schema(text=(STRING, ()))}, {"size": ("w", "text")})
    with pytest.raises(InputError, match="does not take the shape"):
        bind(PARSES, columns, {"size": ("w", "h", "age")})


def test_a_column_that_is_used_already_is_never_proposed() -> None:
    with pytest.raises(InputError) as caught:
        bind(PARSES, schema(age=("int64", ()), sizes=("float32", (2,))), {})
    assert "--input size=sizes" in (caught.value.hint or "")
    with pytest.raises(InputError) as caught:
        bind(PARSES, schema(age=("int64", ()), siz0=("float32", ())), {})
    assert "'size=prefix*'" in (caught.value.hint or "")


def test_stacked_columns_are_one_feature_of_the_record() -> None:
    source = InMemory({"age": np.array([7, 8]), "w": np.array([0.5, 1.5]), "h": np.array([2.5, 3.5])})
    columns = schema(age=("int64", ()), w=("float64", ()), h=("float64", ()))
    job = Job(source, bind(PARSES, columns, {"size": ("w", "h")}), (), 2)
    (batch,) = load_batches(job, Span(0, 0, 2, ()))
    size = parse(batch.arrays["records"][1], is_sequence=False).features[b"size"]
    assert np.frombuffer(bytes(size.packed), "<f4").tolist() == [1.5, 3.5]
