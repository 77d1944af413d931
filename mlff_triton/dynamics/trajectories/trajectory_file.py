"""The interface of trajectory files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from mlff_triton.dynamics.trajectories.append_only import AppendOnlyFile
from mlff_triton.dynamics.trajectories.frame import Frame


class TrajectoryFile(ABC):
    """A trajectory that grows by complete frames.

    Parameters
    ----------
    path : path
        The file. The first frame creates it.
    size : int
        Number of bytes to keep of an existing file; `cut` removes the rest.

    Raises
    ------
    OutputError
        If an existing file is shorter than ``size``, or cannot be read.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._file = AppendOnlyFile(path, size)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    @property
    def size(self) -> int:
        """Size in bytes after the last frame, which a restart file records."""
        return self._file.size

    def cut(self) -> None:
        """Remove everything after the frames to keep; until then, an existing file takes no frames.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._file.cut()

    def append(self, frame: Frame) -> None:
        """Append a frame, completely or not at all.

        Raises
        ------
        InputError
            If the format cannot represent the frame.
        OutputError
            If it cannot be written, or something else has written to the file.
        """
        self._file.append(self._encode(frame))

    @abstractmethod
    def _encode(self, frame: Frame) -> bytes:
        """Return the bytes of a frame."""
