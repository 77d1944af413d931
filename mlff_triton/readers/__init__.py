"""Readers of structure files, record by record, without loading a file as a whole.

`FORMATS` are text formats whose records are separated before they are parsed, so that a damaged
record affects no other, and workers can parse. ASE reads all other formats.
"""

from mlff_triton.readers.files import (
    Frame,
    FrameName,
    ase_frames,
    frames_of,
    name_of_frame,
    read_frame,
    texts_of,
)
from mlff_triton.readers.formats import COMPRESSED, FORMATS, Format, find_format, is_structure_file
from mlff_triton.readers.pdb import ASYMMETRIC_UNIT

__all__ = [
    "ASYMMETRIC_UNIT",
    "COMPRESSED",
    "FORMATS",
    "Format",
    "Frame",
    "FrameName",
    "ase_frames",
    "find_format",
    "frames_of",
    "is_structure_file",
    "name_of_frame",
    "read_frame",
    "texts_of",
]
