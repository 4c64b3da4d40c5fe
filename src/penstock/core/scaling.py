"""Scaling that runs on the device, inside the compiled step: pixels cross the bus as bytes."""

from penstock.core.records import Scaling, Signature, TensorSpec
from penstock.errors import UsageError

_TORCH_MEAN, _TORCH_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE_MEAN = (103.939, 116.779, 123.68)


PRESETS = {
    "imagenet-torch": Scaling(
        tuple(1 / (255 * std) for std in _TORCH_STD),
        tuple(-mean / std for mean, std in zip(_TORCH_MEAN, _TORCH_STD, strict=True)),
    ),
    "imagenet-tf": Scaling((1 / 127.5,), (-1.0,)),
    "imagenet-caffe": Scaling((1.0,), tuple(-mean for mean in _CAFFE_MEAN), is_reversed=True),
    "scale-0-1": Scaling((1 / 255,)),
    "scale-1-1": Scaling((1 / 127.5,), (-1.0,)),
}


def scaled_inputs(scaling: Scaling, signature: Signature) -> tuple[str, ...]:
    """The inputs that are scaled: those that look like images, or else the only input of floats.

    Raises:
        UsageError: There is no such input, there are several that are not images, or one has another number of
            channels.
    """
    floats = [spec for spec in signature.inputs if "float" in spec.dtype]
    images = [spec for spec in floats if spec.shape is not None and len(spec.shape) == 3]
    chosen = images or floats
    if not signature.inputs:
        return ()
    if not chosen or (not images and len(chosen) > 1):
        raise UsageError(
            "it is not clear which input is to be scaled",
            received=", ".join(f"{spec.name} {spec}" for spec in signature.inputs),
            allowed="inputs of floats with height, width and channels, or a single input of floats",
            hint="scale in a function instead: --preprocess module:function",
        )
    for spec in chosen:
        _check_channels(scaling, spec)
    return tuple(spec.name for spec in chosen)


def _check_channels(scaling: Scaling, spec: TensorSpec) -> None:
    last = spec.shape[-1] if spec.shape else None
    if scaling.channels is not None and last is not None and last != scaling.channels:
        raise UsageError(
            "the scaling has another number of channels than the input",
            received=f"{scaling.channels} channels for {spec.name} {spec}",
            allowed="a single number, or one for each channel",
        )
