"""Writes Megatron's indexed files."""

import struct

import numpy as np

CODES = {np.uint8: 1, np.int8: 2, np.int16: 3, np.int32: 4, np.int64: 5, np.float64: 6, np.float32: 7, np.uint16: 8}


def write_field(prefix, field, rows, kind=np.int32, per_row=1):
    """One field; each row in `per_row` sequences."""
    parts = [part for row in rows for part in np.array_split(np.array(row, kind), per_row)]
    start = np.cumsum([0, *(part.nbytes for part in parts)])[: len(parts)]
    name = f"{prefix}_packed_{field}_document"
    with open(f"{name}.bin", "wb") as file:
        file.writelines(part.tobytes() for part in parts)
    with open(f"{name}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, CODES[kind]))
        file.write(struct.pack("<QQ", len(parts), len(rows) + 1))
        file.write(np.array([len(part) for part in parts], np.int32).tobytes())
        file.write(np.array(start, np.int64).tobytes())
        file.write(np.arange(0, len(parts) + 1, per_row, dtype=np.int64).tobytes())
    return f"{name}.idx"
