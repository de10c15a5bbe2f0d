"""Writes official.safetensors with the official library, next to this file:

    python3 -m venv venv && venv/bin/pip install safetensors numpy
    venv/bin/python tests/golden/safetensors/make.py
"""
import pathlib
import numpy as np
from safetensors.numpy import save_file

save_file(
    {
        "f32": np.arange(15, dtype=np.float32).reshape(3, 5) / 4,
        "f64": np.array([[1.5], [-2.25]]),
        "i64": np.array([2**62, -1, 7]),
        "u8": np.arange(3, dtype=np.uint8),
        "f16": np.arange(2, dtype=np.float16),
        "bool": np.array([True, False, True]),
        "scalar": np.array(0.5, dtype=np.float32),
        "empty": np.zeros((0, 4), dtype=np.float32),
        'na\u00efve "name"\\': np.ones((1, 2, 1, 2), dtype=np.int32),
    },
    pathlib.Path(__file__).parent / "official.safetensors",
    metadata={"format": "np", "who": "the official library"},
)
