"""The functions of TensorFlow that a model's description may call by name without being trusted.

Keras 2 wrote `tf.math.multiply(x, 2)` into a model as the name of the function and its arguments, whatever they are.
So only functions that compute are listed: all others could open files, load libraries or connect to other machines.
"""

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMESPACE = re.compile(
    r"(?:math|nn|image|linalg|strings|signal|ragged|sparse|random|sets|bitwise|quantization|dtypes|audio|__operators__"
    r"|math\.special|(?:linalg|nn|random)\.experimental|keras\.(?:activations|losses|metrics))\.[a-z][a-z0-9_]*"
)
"""Namespaces in which every function with a lower-case name only computes. Names with a capital are classes."""
_NOT_OF_THEM = _names(
    # reads a file of words; the others change what follows in the process
    """fixed_unigram_candidate_sampler set_seed set_random_seed set_global_generator deserialize serialize get
    raw_rnn dynamic_rnn bidirectional_dynamic_rnn static_rnn"""
)
_DECODING = re.compile(
    r"io\.(?:decode_(?:and_crop_jpeg|base64|bmp|compressed|csv|gif|image|jpeg|json_example|jxl|png|raw|webp)"
    r"|encode_(?:base64|jpeg|png)|extract_jpeg_shape|is_jpeg|parse_tensor|serialize_tensor)"
)
_AT_THE_TOP = _names(
    """abs accumulate_n acos acosh add add_n angle arg_max arg_min argmax argmin argsort as_string asin asinh atan atan2
    atanh batch_gather batch_to_space batch_to_space_nd betainc bincount bitcast boolean_mask broadcast_dynamic_shape
    broadcast_static_shape broadcast_to cast ceil check_numerics cholesky cholesky_solve clip_by_average_norm
    clip_by_global_norm clip_by_norm clip_by_value complex concat conj constant convert_to_tensor cos cosh count_nonzero
    cross cumprod cumsum decode_base64 decode_compressed decode_csv decode_raw depth_to_space dequantize diag diag_part
    digamma div div_no_nan divide dynamic_partition dynamic_stitch edit_distance eig eigvals einsum encode_base64
    ensure_shape equal erf erfc exp expand_dims expm1 extract_image_patches extract_volume_patches eye
    fake_quant_with_min_max_args fake_quant_with_min_max_vars fake_quant_with_min_max_vars_per_channel fft fft2d fft3d
    fftnd fill fingerprint floor floor_div floordiv floormod gather gather_nd global_norm greater greater_equal
    histogram_fixed_width histogram_fixed_width_bins identity identity_n ifft ifft2d ifft3d ifftnd igamma igammac imag
    invert_permutation irfftnd is_finite is_inf is_nan is_tensor lbeta less less_equal lgamma lin_space linspace log
    log1p log_sigmoid logical_and logical_not logical_or logical_xor matmul matrix_band_part matrix_determinant
    matrix_diag matrix_diag_part matrix_inverse matrix_set_diag matrix_solve matrix_solve_ls matrix_square_root
    matrix_transpose matrix_triangular_solve maximum meshgrid minimum mod multinomial multiply negative norm not_equal
    one_hot ones ones_like pad parallel_stack polygamma pow qr quantize quantize_v2 random_crop random_gamma
    random_index_shuffle random_normal random_poisson random_shuffle random_uniform range rank real realdiv reciprocal
    reduce_all reduce_any reduce_join reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum
    regex_replace repeat required_space_to_batch_paddings reshape reverse reverse_sequence reverse_v2 rfftnd rint roll
    round rsqrt saturate_cast scalar_mul scatter_nd searchsorted segment_max segment_mean segment_min segment_prod
    segment_sum self_adjoint_eig self_adjoint_eigvals sequence_mask setdiff1d shape shape_n sigmoid sign sin sinh size
    slice sort space_to_batch space_to_batch_nd space_to_depth sparse_add sparse_concat sparse_fill_empty_rows
    sparse_mask sparse_matmul sparse_maximum sparse_minimum sparse_reduce_max sparse_reduce_sum sparse_reorder
    sparse_reshape sparse_retain sparse_segment_mean sparse_segment_sqrt_n sparse_segment_sum sparse_slice
    sparse_softmax sparse_split sparse_tensor_dense_matmul sparse_tensor_to_dense sparse_to_dense sparse_to_indicator
    sparse_transpose split sqrt square squared_difference squeeze stack stop_gradient strided_slice string_join
    string_split string_strip string_to_hash_bucket string_to_hash_bucket_fast string_to_hash_bucket_strong
    string_to_number substr subtract svd tan tanh tensor_scatter_add tensor_scatter_nd_add tensor_scatter_nd_max
    tensor_scatter_nd_min tensor_scatter_nd_sub tensor_scatter_nd_update tensor_scatter_sub tensor_scatter_update
    tensordot tile to_bfloat16 to_complex128 to_complex64 to_double to_float to_int32 to_int64 trace transpose truediv
    truncated_normal truncatediv truncatemod unique unique_with_counts unravel_index unsorted_segment_max
    unsorted_segment_mean unsorted_segment_min unsorted_segment_prod unsorted_segment_sqrt_n unsorted_segment_sum
    unstack verify_tensor_all_finite where where_v2 zeros zeros_like zeta"""
)
_OF_THE_BACKEND = _names(
    """abs all any arange argmax argmin batch_dot batch_flatten batch_normalization bias_add binary_crossentropy
    binary_focal_crossentropy cast cast_to_floatx categorical_crossentropy categorical_focal_crossentropy clip
    concatenate constant conv1d conv2d conv2d_transpose conv3d cos ctc_batch_cost ctc_decode ctc_label_dense_to_sparse
    cumprod cumsum depthwise_conv2d dot dropout elu equal exp expand_dims eye flatten gather greater greater_equal
    hard_sigmoid in_top_k int_shape is_sparse l2_normalize less less_equal local_conv1d local_conv2d log max maximum
    mean min minimum ndim not_equal one_hot ones ones_like permute_dimensions pool2d pool3d pow prod random_bernoulli
    random_binomial random_normal random_uniform relu repeat repeat_elements reshape resize_images resize_volumes
    reverse round separable_conv2d shape sigmoid sign sin softmax softplus softsign sparse_categorical_crossentropy
    spatial_2d_padding spatial_3d_padding sqrt square squeeze stack std stop_gradient sum switch tanh temporal_padding
    tile to_dense transpose truncated_normal var zeros zeros_like"""
)
_MAKES_RAGGED = re.compile(
    "from_(?:row_splits|row_lengths|row_starts|row_limits|value_rowids|uniform_row_length|tensor|sparse"
    "|nested_row_splits|nested_row_lengths|nested_value_rowids)"
)
_OF_TENSORS = _names(
    """bounding_shape dense_shape dtype flat_values get_shape indices merge_dims nested_row_lengths nested_row_splits
    nested_value_rowids nrows numpy_shape ragged_rank rank row_lengths row_limits row_splits row_starts shape
    to_sparse to_tensor uniform_row_length value_rowids values with_flat_values with_row_splits_dtype with_values"""
)
"""The attributes and methods of ragged and sparse tensors that give tensors."""


def path_of(symbol: str) -> str:
    """A function's path in TensorFlow without the prefixes of its older interfaces."""
    return symbol.removeprefix("tf.").removeprefix("_api.v2.").removeprefix("compat.v1.")


def only_computes(symbol: str) -> bool:
    """Whether a function, named as TensorFlow exports it, does nothing but compute, whatever its arguments are."""
    path = path_of(symbol)
    namespace, _, name = path.rpartition(".")
    if not namespace:
        return name in _AT_THE_TOP
    if namespace == "keras.backend":
        return name in _OF_THE_BACKEND
    return (_NAMESPACE.fullmatch(path) is not None and name not in _NOT_OF_THEM) or bool(_DECODING.fullmatch(path))


def makes_a_tensor(symbol: str, method: str) -> bool:
    """Whether a method of a class only makes a tensor, as those of `RaggedTensor` do."""
    return path_of(symbol) == "RaggedTensor" and _MAKES_RAGGED.fullmatch(method) is not None


def is_of_tensors(name: str) -> bool:
    """Whether an attribute or a method of a tensor gives tensors and nothing that leads further."""
    return name in _OF_TENSORS
