"""A thread that writes frames while the simulation goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mlff_triton.dynamics.trajectories.frame import Frame
from mlff_triton.dynamics.trajectories.trajectory_file import TrajectoryFile


class Recorder:
    """Writer of one or more trajectories, such as one per replica, in a thread of its own.

    Frames are written in the order in which they are appended. After an error, nothing more is
    written, and every call raises it. If the program ends early, even by an exception, Python waits
    until all appended frames are written. All calls must come from the same thread.

    Parameters
    ----------
    files : sequence of TrajectoryFile
        The trajectories, which nobody else may append to.
    max_bytes : int, optional
        Memory for frames that wait to be written. A frame beyond it waits for others, unless it is
        alone.

    Examples
    --------
    See the package `mlff_triton.dynamics.trajectories`.
    """

    def __init__(self, files: Sequence[TrajectoryFile], max_bytes: int = 256 * 2**20) -> None:
        self._files = tuple(files)
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[Future[None], int]] = deque()  # results and their memory
        self._waiting_bytes = 0
        self._error: Exception | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlff-triton-recorder")

    def append(self, frame: Frame, index: int = 0) -> None:
        """Have a frame written, and return at once unless too many frames are waiting.

        Parameters
        ----------
        frame : Frame
            The frame, which must not change any more.
        index : int, optional
            Position of its trajectory in ``files``.

        Raises
        ------
        InputError
            If the format cannot represent this or an earlier frame.
        OutputError
            If an earlier frame could not be written.
        """
        file = self._files[index]
        self._submit(lambda: file.append(frame), frame.nbytes)

    def call(self, action: Callable[[tuple[int, ...]], None]) -> None:
        """Have a function called in the thread once all frames appended so far are written.

        A restart file that is written this way includes these frames, and no one waits for it.

        Parameters
        ----------
        action : callable
            Function of the sizes of all files in bytes.

        Raises
        ------
        InputError
            If the format cannot represent an earlier frame.
        OutputError
            If an earlier frame could not be written.
        """
        self._submit(lambda: action(self._sizes()), 0)

    def flush(self) -> tuple[int, ...]:
        """Wait until everything is written, and return the sizes of all files in bytes.

        Written means handed to the operating system: it survives the end of the process, but a
        power failure may lose it.

        Raises
        ------
        InputError
            If the format cannot represent a frame.
        OutputError
            If a frame could not be written.
        """
        sizes = self._thread.submit(self._sizes).result()
        self._raise_error()
        return sizes

    def close(self) -> None:
        """Write what is waiting and end the thread.

        Raises
        ------
        InputError
            If the format cannot represent a frame.
        OutputError
            If a frame could not be written.
        """
        self._thread.shutdown()
        self._raise_error()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._thread.shutdown()

    def _sizes(self) -> tuple[int, ...]:
        return tuple(file.size for file in self._files)

    def _submit(self, work: Callable[[], None], nbytes: int) -> None:
        while self._waiting:
            future, done_bytes = self._waiting[0]
            if self._waiting_bytes + nbytes <= self._max_bytes and not future.done():
                break
            future.result()  # waits
            self._waiting.popleft()
            self._waiting_bytes -= done_bytes
        self._raise_error()
        self._waiting.append((self._thread.submit(self._do, work), nbytes))
        self._waiting_bytes += nbytes

    def _do(self, work: Callable[[], None]) -> None:
        """Work in the thread, unless earlier work failed."""
        if self._error is not None:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised in the simulating thread
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
