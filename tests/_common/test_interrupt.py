"""Signals during a command."""

from __future__ import annotations

import signal

from mlff_triton._common.interrupt import StopRequest


def test_a_second_signal_is_not_held_back():
    previous = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        assert signal.getsignal(signal.SIGINT) is previous
    assert signal.getsignal(signal.SIGINT) is previous
