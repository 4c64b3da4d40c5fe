"""Digits, and 4 virtual devices: import this before TensorFlow is used; JAX is told so by XLA_FLAGS."""

import keras

from tests.support.digits import load_digits

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

X, Y = load_digits()
X = (X / 16).astype("float32")
