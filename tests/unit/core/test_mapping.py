"""Which columns feed which input of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from penstock.core.columns import OPAQUE
from penstock.core.mapping import as_named, bind, describe, describe_all, misfit, wire_dtype
from penstock.core.records import STRING, Binding, Shape, Signature, TensorSpec
from penstock.errors import InputError

Kind = tuple[str, Shape | None]


def schema_of(**columns: Kind) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, *kind) for name, kind in columns.items()}


def model(**inputs: Kind) -> Signature:
    return Signature(tuple(schema_of(**inputs).values()), ())


def columns_of(
    signature: Signature,
    schema: Mapping[str, TensorSpec],
    requested: Mapping[str, Sequence[str]] | None = None,
    keep: Sequence[str] = (),
) -> dict[str, tuple[str, ...]]:
    return {binding.input: binding.columns for binding in bind(signature, schema, requested or {}, keep)}


def refusal(
    signature: Signature,
    schema: Mapping[str, TensorSpec],
    requested: Mapping[str, Sequence[str]] | None = None,
    keep: Sequence[str] = (),
) -> InputError:
    with pytest.raises(InputError) as caught:
        bind(signature, schema, requested or {}, keep)
    return caught.value


FLOAT, UINT8, INT, TEXT = "float32", "uint8", "int64", STRING


class TestGuesses:
    def test_column_of_the_same_name_feeds_the_input(self) -> None:
        chosen = columns_of(model(x=(FLOAT, (4,))), schema_of(y=(FLOAT, (4,)), x=(FLOAT, (4,))))
        assert chosen == {"x": ("x",)}

    def test_several_inputs_take_the_columns_of_their_names(self) -> None:
        schema = schema_of(b=(FLOAT, (2,)), id=(INT, ()), a=(FLOAT, (4,)))
        assert columns_of(model(a=(FLOAT, (4,)), b=(FLOAT, (2,))), schema) == {"a": ("a",), "b": ("b",)}

    def test_bindings_come_in_the_order_of_the_model(self) -> None:
        schema = schema_of(a=(FLOAT, ()), b=(FLOAT, ()))
        assert [b.input for b in bind(model(b=(FLOAT, ()), a=(FLOAT, ())), schema, {})] == ["b", "a"]

    def test_only_column_that_fits_is_taken(self) -> None:
        schema = schema_of(label=(INT, ()), name=(TEXT, ()), pixels=(UINT8, (784,)))
        assert columns_of(model(image=(FLOAT, (784,))), schema) == {"image": ("pixels",)}

    def test_flat_column_fits_an_input_of_as_many_values(self) -> None:
        schema = schema_of(pixels=(UINT8, (784,)))
        (binding,) = bind(model(image=(FLOAT, (28, 28, 1))), schema, {})
        assert binding == Binding("image", ("pixels",), "uint8", (28, 28, 1))

    def test_numbers_are_stacked_where_their_names_have_one_pattern_and_their_number_fits(self) -> None:
        schema = schema_of(f0=(FLOAT, ()), name=(TEXT, ()), f1=(INT, ()), age=(FLOAT, ()), f2=(UINT8, ()))
        (binding,) = bind(model(x=(FLOAT, (3,))), schema, {})
        assert binding.columns == ("f0", "f1", "f2")
        assert binding.shape == (3,)

    @pytest.mark.parametrize("name", ["label", "target", "y", "id", "user_id", "Label", "f2"])
    def test_label_beside_the_numbers_is_never_stacked(self, name: str) -> None:
        schema = schema_of(f0=(FLOAT, ()), f1=(FLOAT, ()), **{name: ("bool" if name == "f2" else INT, ())})
        assert columns_of(model(x=(FLOAT, (2,))), schema) == {"x": ("f0", "f1")}

    def test_column_that_is_called_like_a_label_is_taken_only_where_it_is_named(self) -> None:
        schema = schema_of(label=(INT, ()), name=(TEXT, ()))
        assert refusal(model(x=(FLOAT, (1,))), schema).problem == "no column fits the input 'x'"
        assert columns_of(model(x=(FLOAT, (1,))), schema, {"x": ["label"]}) == {"x": ("label",)}
        assert columns_of(model(label=(FLOAT, ())), schema) == {"label": ("label",)}
        assert columns_of(model(x=(FLOAT, ())), schema_of(age=(INT, ()), id=(INT, ()))) == {"x": ("age",)}
        assert columns_of(model(x=(FLOAT, ())), schema_of(y=(INT, ()))) == {"x": ("y",)}  # there is no other

    def test_kept_columns_are_never_guessed(self) -> None:
        schema = schema_of(f9=(INT, ()), f0=(FLOAT, ()), f1=(FLOAT, ()))
        assert columns_of(model(x=(FLOAT, (2,))), schema, keep=["f9"]) == {"x": ("f0", "f1")}
        schema = schema_of(old=(FLOAT, (4,)), new=(FLOAT, (4,)))
        assert columns_of(model(x=(FLOAT, (4,))), schema, keep=["old"]) == {"x": ("new",)}

    def test_columns_that_feed_another_input_are_not_guessed(self) -> None:
        schema = schema_of(a=(FLOAT, (4,)), other=(FLOAT, (4,)))
        assert columns_of(model(a=(FLOAT, (4,)), b=(FLOAT, (4,))), schema) == {"a": ("a",), "b": ("other",)}

    def test_a_column_feeds_one_input_alone_unless_the_user_says_otherwise(self) -> None:
        signature = model(a=(FLOAT, (4,)), b=(FLOAT, (4,)))
        for schema in (schema_of(a=(FLOAT, (4,))), schema_of(a=(FLOAT, (4,)), other=(INT, ()))):
            with pytest.raises(InputError, match="no column fits the input 'b'"):
                bind(signature, schema, {})
        schema = schema_of(q=(FLOAT, (4,)))
        with pytest.raises(InputError, match="no column fits the input 'b'"):
            bind(signature, schema, {"a": ["q"]})
        assert columns_of(signature, schema, {"a": ["q"], "b": ["q"]}) == {"a": ("q",), "b": ("q",)}

    def test_kept_column_is_meant_where_nothing_else_is_there(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (4,))), schema_of(v=(FLOAT, (4,))), {}, ["v"])
        assert binding.columns == ("v",)

    def test_scalar_column_feeds_an_input_of_one_value(self) -> None:
        schema = schema_of(age=(INT, ()))
        for shape in ((), (1,), (None,)):
            (binding,) = bind(model(x=(FLOAT, shape)), schema, {})
            assert binding.columns == ("age",)
            assert binding.shape == (() if shape == () else (1,))

    def test_text_feeds_a_text_input(self) -> None:
        schema = schema_of(id=(INT, ()), review=(TEXT, ()))
        (binding,) = bind(model(text=(TEXT, ())), schema, {})
        assert binding == Binding("text", ("review",), STRING, ())

    def test_input_of_unknown_rank_takes_the_shape_of_its_column(self) -> None:
        (binding,) = bind(model(x=(FLOAT, None)), schema_of(v=(FLOAT, (3, 2))), {})
        assert binding.shape == (3, 2)

    def test_dimensions_that_one_side_leaves_open_come_from_the_other(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (None, 3))), schema_of(x=(FLOAT, (7, None))), {})
        assert binding.shape == (7, 3)

    def test_every_binding_is_told_with_what_it_follows_from(self) -> None:
        schema = schema_of(p=(UINT8, (4,)), b=(FLOAT, (2,)), q=(FLOAT, (3,)))
        bindings = bind(model(a=(FLOAT, (4,)), b=(FLOAT, (2,)), c=(FLOAT, (3,))), schema, {"c": ["q"]})
        assert describe_all(bindings, {"c": ("q",)}, schema, is_positional=False) == [
            "a ← p, uint8[4] (guessed)",
            "b ← b, float32[2] (by name)",
            "c ← q, float32[3] (as given)",
        ]
        assert describe_all(bindings[:1], {}, schema, is_positional=True) == ["a ← p, uint8[4] (by position)"]

    def test_nothing_is_guessed_where_an_input_takes_the_only_images(self) -> None:
        schema = schema_of(path=(TEXT, ()), label=(INT, ()))
        schema["image"] = TensorSpec("image", UINT8, (None, None, 3), encoding="image")
        bindings = bind(model(x=(FLOAT, (8, 8, 3))), schema, {})
        assert describe_all(bindings, {}, schema, is_positional=False) == ["x ← image, uint8[8, 8, 3]"]
        two = schema | {"other": replace(schema["image"], name="other")}
        assert describe_all(bindings, {}, two, is_positional=False) == ["x ← image, uint8[8, 8, 3] (guessed)"]

    def test_long_list_of_columns_is_shortened(self) -> None:
        binding = Binding("x", tuple(f"c{i}" for i in range(30)), "float32", (30,))
        assert describe(binding) == "x ← c0, c1, … 27 more …, c29, float32[30]"


class TestRequests:
    def test_named_column_feeds_the_input(self) -> None:
        schema = schema_of(a=(FLOAT, (4,)), b=(FLOAT, (4,)))
        assert columns_of(model(x=(FLOAT, (4,))), schema, {"x": ["b"]}) == {"x": ("b",)}

    def test_request_is_stronger_than_the_same_name(self) -> None:
        schema = schema_of(x=(FLOAT, (4,)), y=(FLOAT, (4,)))
        assert columns_of(model(x=(FLOAT, (4,))), schema, {"x": ["y"]}) == {"x": ("y",)}

    def test_named_columns_are_stacked_in_the_order_given(self) -> None:
        schema = schema_of(a=(UINT8, ()), b=(UINT8, ()), c=(UINT8, ()))
        (binding,) = bind(model(x=(FLOAT, (2,))), schema, {"x": ["c", "a"]})
        assert binding == Binding("x", ("c", "a"), "uint8", (2,))

    def test_prefix_takes_its_columns_in_the_order_of_the_input(self) -> None:
        schema = schema_of(f2=(FLOAT, ()), id=(INT, ()), f10=(FLOAT, ()), f1=(FLOAT, ()))
        assert columns_of(model(x=(FLOAT, (3,))), schema, {"x": ["f*"]}) == {"x": ("f2", "f10", "f1")}

    def test_column_whose_name_ends_in_a_star_can_be_named(self) -> None:
        schema = {"f*": TensorSpec("f*", FLOAT, (4,)), "f1": TensorSpec("f1", FLOAT, (4,))}
        assert columns_of(model(x=(FLOAT, (4,))), schema, {"x": ["f*"]}) == {"x": ("f*",)}

    def test_names_and_prefixes_mix(self) -> None:
        schema = schema_of(age=(FLOAT, ()), f1=(FLOAT, ()), f2=(FLOAT, ()))
        assert columns_of(model(x=(FLOAT, (3,))), schema, {"x": ["age", "f*"]}) == {"x": ("age", "f1", "f2")}

    def test_one_column_may_feed_two_inputs(self) -> None:
        schema = schema_of(v=(FLOAT, (4,)))
        requested = {"a": ["v"], "b": ["v"]}
        assert columns_of(model(a=(FLOAT, (4,)), b=(FLOAT, (4,))), schema, requested) == {"a": ("v",), "b": ("v",)}

    def test_column_may_be_fed_and_kept(self) -> None:
        schema = schema_of(v=(FLOAT, (4,)))
        assert columns_of(model(x=(FLOAT, (4,))), schema, {"x": ["v"]}, keep=["v"]) == {"x": ("v",)}

    def test_stacked_numbers_take_the_shape_of_the_input(self) -> None:
        schema = schema_of(**{f"p{i}": (UINT8, ()) for i in range(4)})
        (binding,) = bind(model(x=(FLOAT, (2, 2))), schema, {"x": ["p*"]})
        assert binding.shape == (2, 2)

    def test_stacked_numbers_share_the_dtype_that_holds_them_all(self) -> None:
        schema = schema_of(a=(UINT8, ()), b=("int16", ()))
        assert bind(model(x=(FLOAT, (2,))), schema, {"x": ["a", "b"]})[0].dtype == "int16"
        schema = schema_of(a=(UINT8, ()), b=("float64", ()))
        assert bind(model(x=(FLOAT, (2,))), schema, {"x": ["a", "b"]})[0].dtype == "float32"


class TestRefusals:
    def test_several_columns_that_fit_are_ambiguous(self) -> None:
        error = refusal(model(x=(FLOAT, (4,))), schema_of(a=(FLOAT, (4,)), b=(UINT8, (4,)), id=(INT, ())))
        assert error.problem == "several columns could feed the input 'x'"
        assert error.received == "a, b"
        assert error.allowed == "one column of float32[4]"
        assert error.hint == "choose one: --input x=a"

    def test_several_scalars_for_an_input_of_one_value_are_ambiguous(self) -> None:
        assert "several columns" in refusal(model(x=(FLOAT, (1,))), schema_of(a=(FLOAT, ()), b=(FLOAT, ()))).problem

    def test_no_column_that_fits_is_told_with_what_is_there(self) -> None:
        error = refusal(model(image=(FLOAT, (784,))), schema_of(label=(INT, ()), name=(TEXT, ())))
        assert error.problem == "no column fits the input 'image'"
        assert error.received == "label int64[], name string[]"
        assert "float32[784]" in (error.allowed or "")
        assert "--input image=COLUMN" in (error.hint or "")
        assert "--input image=prefix*" in (error.hint or "")

    def test_numbers_without_a_pattern_are_not_stacked_but_the_hint_names_them(self) -> None:
        error = refusal(model(x=(FLOAT, (3,))), schema_of(a=(FLOAT, ()), b=(FLOAT, ()), label=(INT, ()), c=(INT, ())))
        assert error.problem == "no column fits the input 'x'"
        assert "--input x=a,b,c," in (error.hint or "")
        error = refusal(model(x=(FLOAT, (2,))), schema_of(a=(FLOAT, ()), b=(FLOAT, ()), c=(FLOAT, ())))
        assert "--input x=COLUMN" in (error.hint or "")

    def test_typo_in_a_header_is_told_by_counting(self) -> None:
        names = [f"f{number}" if number != 10 else "f_10" for number in range(64)]
        error = refusal(model(x=(FLOAT, (64,))), schema_of(**dict.fromkeys([*names, "label"], (FLOAT, ()))))
        assert error.problem == "64 columns are needed for the input 'x', 63 match"
        assert error.received == "f0, f1, … 60 more …, f63; there is no f10"
        assert "is 'f_10' meant to be 'f10'?" in (error.hint or "")

    def test_column_that_is_there_but_kept_or_no_number_is_not_called_a_typo(self) -> None:
        plain = {f"f{number}": (FLOAT, ()) for number in range(3)}
        kept = refusal(model(x=(FLOAT, (3,))), schema_of(**plain), keep=["f0"])
        for error in (kept, refusal(model(x=(FLOAT, (3,))), schema_of(**plain | {"f0": (OPAQUE, ())}))):
            assert error.received == "f1, f2"
            assert (error.hint or "").startswith("f0: a column that is kept, or is no number, feeds an input only by")

    def test_too_many_numbers_are_told_by_counting(self) -> None:
        schema = schema_of(**{f"f{number}": (FLOAT, ()) for number in range(5)})
        assert refusal(model(x=(FLOAT, (4,))), schema).problem == "4 columns are needed for the input 'x', 5 match"

    def test_numbers_that_are_not_in_order_are_not_stacked(self) -> None:
        gap = refusal(model(x=(FLOAT, (3,))), schema_of(f0=(FLOAT, ()), f1=(FLOAT, ()), f3=(FLOAT, ())))
        assert "leave out a number: f1 is followed by f3" in gap.problem
        error = refusal(model(x=(FLOAT, (3,))), schema_of(f1=(FLOAT, ()), f10=(FLOAT, ()), f2=(FLOAT, ())))
        assert "not in the order of their numbers" in error.problem
        assert "--input x=f*" in (error.hint or "")

    def test_one_number_is_not_guessed_beside_inputs_that_are_found_by_name(self) -> None:
        error = refusal(model(age=(FLOAT, ()), fare=(FLOAT, ())), schema_of(age=(INT, ()), fair=(FLOAT, ())))
        assert error.problem == "no column has the name of the input 'fare'"
        assert error.hint == "choose one: --input fare=fair"

    def test_several_inputs_without_a_column_are_asked_for_by_name(self) -> None:
        error = refusal(model(a=(FLOAT, (4,)), b=(FLOAT, (2,))), schema_of(p=(FLOAT, (4,)), q=(FLOAT, (2,))))
        assert error.problem == "these inputs of the model have no column of the same name"
        assert error.received == "columns p, q"
        assert error.allowed == "a float32[4], b float32[2]"
        assert error.hint == "say which column feeds which input: --input a=COLUMN --input b=COLUMN"

    def test_unknown_input_is_told_with_the_closest(self) -> None:
        error = refusal(model(image=(FLOAT, (4,))), schema_of(a=(FLOAT, (4,))), {"imgae": ["a"]})
        assert error.problem == "the model has no such input"
        assert error.received == "--input imgae=…"
        assert error.allowed == "image float32[4]"
        assert error.hint == "did you mean 'image'?"

    def test_unknown_column_is_told_with_the_closest(self) -> None:
        error = refusal(model(x=(FLOAT, (4,))), schema_of(pixels=(FLOAT, (4,))), {"x": ["pixel"]})
        assert error.problem == "the input has no such column"
        assert error.received == "--input x=…: 'pixel'"
        assert error.allowed == "pixels"
        assert error.hint == "did you mean 'pixels'?"

    def test_unknown_kept_column_is_told(self) -> None:
        error = refusal(model(x=(FLOAT, (4,))), schema_of(x=(FLOAT, (4,))), keep=["zzz"])
        assert error.problem == "the input has no such column"
        assert error.received == "--keep: 'zzz'"
        assert error.hint is None

    def test_prefix_without_columns_is_told(self) -> None:
        error = refusal(model(x=(FLOAT, (4,))), schema_of(a=(FLOAT, ())), {"x": ["f*"]})
        assert error.problem == "no column starts with this prefix"
        assert error.received == "--input x=f*"
        assert error.allowed == "a"

    def test_long_list_of_columns_is_cut(self) -> None:
        error = refusal(model(x=(FLOAT, (4,))), schema_of(**{f"c{i}": (FLOAT, ()) for i in range(20)}), {"x": ["q"]})
        assert (error.allowed or "").endswith("c11, … (20 in all)")

    @pytest.mark.parametrize("kind", [(TEXT, ()), (FLOAT, (2,)), (OPAQUE, ())])
    def test_only_single_numbers_are_stacked(self, kind: Kind) -> None:
        error = refusal(model(x=(FLOAT, (2,))), schema_of(a=(FLOAT, ()), b=kind), {"x": ["a", "b"]})
        assert error.problem == "only columns of single numbers can be stacked into one input"
        assert (error.received or "").startswith("b ")
        assert error.hint == "leave it out of --input x=…"

    def test_stack_of_another_length_is_refused(self) -> None:
        error = refusal(model(x=(FLOAT, (3,))), schema_of(a=(FLOAT, ()), b=(FLOAT, ())), {"x": ["a", "b"]})
        assert error.problem == "3 columns are needed for the input 'x', 2 match"
        assert error.allowed == "x float32[3]"

    def test_column_of_another_shape_is_refused(self) -> None:
        error = refusal(model(x=(FLOAT, (784,))), schema_of(x=(UINT8, (100,))))
        assert error.problem == "the input 'x' does not take the shape uint8[100]"
        assert error.received == "x uint8[100]"
        assert error.allowed == "x float32[784]"

    def test_column_of_another_dtype_is_refused(self) -> None:
        error = refusal(model(x=(INT, (4,))), schema_of(x=(FLOAT, (4,))))
        assert error.problem == "the input 'x' does not take the dtype float32"

    def test_image_with_its_channels_in_the_wrong_place_is_refused(self) -> None:
        error = refusal(model(image=(FLOAT, (224, 224, 3))), schema_of(image=(UINT8, (3, 224, 224))))
        assert error.problem == "the input 'image' does not take the shape uint8[3, 224, 224]"

    def test_no_columns_at_all_is_told(self) -> None:
        assert refusal(model(x=(FLOAT, (4,))), {}).received == "nothing"


@pytest.mark.parametrize(
    ("column", "wanted", "fits"),
    [
        (("float32", (4,)), ("float32", (4,)), True),
        (("float64", (4,)), ("float32", (4,)), True),
        (("uint8", (4,)), ("float32", (4,)), True),
        (("bool", (4,)), ("float32", (4,)), True),
        (("uint8", (4,)), ("bfloat16", (4,)), True),
        (("float32", (4,)), ("bfloat16", (4,)), True),
        (("int64", (4,)), ("int32", (4,)), True),
        (("bool", (4,)), ("int32", (4,)), True),
        (("int32", (4,)), ("bool", (4,)), True),
        (("float32", (4,)), ("int32", (4,)), False),
        (("float32", (4,)), ("bool", (4,)), False),
        ((STRING, ()), (STRING, ()), True),
        ((STRING, ()), ("float32", ()), False),
        (("int64", ()), (STRING, ()), False),
        ((OPAQUE, ()), ("float32", ()), False),
        ((OPAQUE, ()), (STRING, ()), False),
        (("uint8", (None,)), ("float32", (784,)), True),
        (("uint8", (784,)), ("float32", (None,)), True),
        (("uint8", (784,)), ("float32", (28, 28, 1)), True),
        (("uint8", (28, 28)), ("float32", (28, 28, 1)), True),
        (("uint8", (28, 28)), ("float32", (784,)), True),
        (("uint8", (28, 28, 1)), ("float32", (28, 28)), True),
        (("uint8", (28, 28)), ("float32", (None, None, 1)), False),
        (("uint8", (32, 32, 3)), ("float32", (None, None, 3)), True),
        (("uint8", (32, 32, 1)), ("float32", (None, None, 3)), False),
        (("uint8", (100,)), ("float32", (784,)), False),
        (("float32", (2, 3)), ("float32", (3, 2)), False),
        (("uint8", (7, 5)), ("float32", None), True),
        (("float32", ()), ("float32", (1,)), True),
        (("float32", ()), ("float32", (None,)), True),
        (("float32", ()), ("float32", (2,)), False),
        (("datetime64[D]", ()), ("float32", ()), False),
    ],
)
def test_what_fits_and_what_does_not(column: Kind, wanted: Kind, fits: bool) -> None:
    assert (misfit(TensorSpec("c", *column), TensorSpec("x", *wanted)) is None) == fits


@pytest.mark.parametrize(
    ("column", "wanted", "wire"),
    [
        ("uint8", "float32", "uint8"),
        ("int16", "float32", "int16"),
        ("float32", "float32", "float32"),
        ("float16", "float32", "float16"),
        ("float64", "float32", "float32"),
        ("int64", "float32", "float32"),
        ("int64", "float64", "float64"),
        ("int32", "float64", "int32"),
        ("int64", "bfloat16", "float64"),
        ("bool", "float32", "bool"),
        ("int64", "int32", "int32"),
        ("uint8", "int8", "int8"),
        ("int8", "uint64", "uint64"),
        ("uint32", "int64", "uint32"),
        ("uint8", "int32", "uint8"),
        ("uint8", "bfloat16", "uint8"),
        ("float32", "bfloat16", "float32"),
        ("float64", "float16", "float16"),
        (STRING, STRING, STRING),
    ],
)
def test_numbers_cross_as_they_are_unless_the_models_own_are_smaller(column: str, wanted: str, wire: str) -> None:
    assert wire_dtype(column, wanted) == wire


def test_binding_of_a_reordered_shape_is_never_made_silently() -> None:
    with pytest.raises(InputError):
        bind(model(x=(FLOAT, (3, 2))), schema_of(x=(FLOAT, (2, 3))), {})


def lists(name: str, dtype: str, *shape: int | None) -> TensorSpec:
    return TensorSpec(name, dtype, shape, varies=True)


class TestRowsOfDifferentLengths:
    def test_lists_feed_an_input_of_any_length_as_they_are(self) -> None:
        (binding,) = bind(model(tokens=(INT, (None,))), {"tokens": lists("tokens", INT, 5)}, {})
        assert binding == Binding("tokens", ("tokens",), INT, (None,))

    def test_lists_for_an_input_of_one_length_have_that_length(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (5,))), {"x": lists("x", FLOAT, 5)}, {})
        assert binding.shape == (5,)

    def test_vectors_of_one_length_keep_it_where_the_model_takes_any(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (None,))), schema_of(x=(FLOAT, (7,))), {})
        assert binding.shape == (7,)

    def test_only_the_first_dimension_varies(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (None, 3))), {"x": lists("x", FLOAT, 5, 3)}, {})
        assert binding.shape == (None, 3)

    def test_mask_that_has_no_column_is_made_from_the_lengths_of_the_other_input(self) -> None:
        signature = model(tokens=(INT, (None,)), attention_mask=("int32", (None,)))
        tokens, mask = bind(signature, {"tokens": lists("tokens", INT, 5)}, {})
        assert tokens.mask_of is None
        assert mask == Binding("attention_mask", ("tokens",), "int32", (None,), mask_of="tokens")
        assert describe(mask) == "attention_mask ← ones where tokens is not padding"

    def test_mask_that_comes_first_is_made_too(self) -> None:
        signature = model(mask=("bool", (None,)), tokens=(INT, (None,)))
        mask, tokens = bind(signature, {"tokens": lists("tokens", INT, 5)}, {})
        assert (mask.input, mask.mask_of, tokens.input) == ("mask", "tokens", "tokens")

    def test_mask_with_a_column_of_its_own_is_read(self) -> None:
        signature = model(tokens=(INT, (None,)), mask=(INT, (None,)))
        schema = {"tokens": lists("tokens", INT, 5), "mask": lists("mask", INT, 5)}
        assert [binding.mask_of for binding in bind(signature, schema, {})] == [None, None]

    def test_mask_of_nothing_that_varies_is_refused(self) -> None:
        signature = model(x=(FLOAT, (4,)), mask=("bool", (None,)))
        error = refusal(signature, schema_of(x=(FLOAT, (4,))))
        assert "no other input has rows of different lengths" in error.problem
        assert "--input mask=COLUMN" in (error.hint or "")

    def test_only_input_of_a_model_is_no_mask_whatever_its_name(self) -> None:
        assert columns_of(model(mask=(FLOAT, (None,))), schema_of(x=(FLOAT, (7,)))) == {"mask": ("x",)}


class TestEncodedColumns:
    PHOTO: ClassVar = {"photo": TensorSpec("photo", UINT8, (None, None, 3), encoding="image")}

    def test_images_take_the_size_that_the_model_wants(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (224, 224, 3))), self.PHOTO, {})
        assert binding == Binding("x", ("photo",), UINT8, (224, 224, 3))

    def test_model_that_decodes_by_itself_gets_the_bytes(self) -> None:
        (binding,) = bind(model(x=(TEXT, ())), self.PHOTO, {})
        assert binding == Binding("x", ("photo",), TEXT, ())

    def test_images_of_any_size_vary_where_the_model_takes_any(self) -> None:
        (binding,) = bind(model(x=(FLOAT, (None, None, 3))), self.PHOTO, {})
        assert binding.shape == (None, None, 3)


def test_what_a_model_without_declared_inputs_gets_is_named_by_the_user() -> None:
    columns = {name: TensorSpec(name, "float64", ()) for name in ("f0", "f1", "label")}
    columns["pixels"] = TensorSpec("pixels", "uint8", (64,))
    assert as_named("image", ("pixels",), columns) == TensorSpec("image", "uint8", (64,))
    assert as_named("x", ("f*",), columns) == TensorSpec("x", "float64", (2,))
    with pytest.raises(InputError, match="single numbers"):
        as_named("x", ("f0", "pixels"), columns)
