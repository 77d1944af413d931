from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mlff_triton.kernels.common.cpu import threads as module
from mlff_triton.kernels.common.cpu.threads import in_parallel, n_threads, own_threads

IN_A_PROCESS = """
import atexit, os, sys
import torch
from mlff_triton.kernels.common.cpu.threads import in_parallel

def check():
    done = torch.zeros(40)
    in_parallel(lambda k: done[k].fill_(1), [(k,) for k in range(40)])
    assert (done == 1).all()

torch.set_num_threads(3)
atexit.register(check)
check()
if hasattr(os, "fork"):
    child = os.fork()
    check()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
check()
"""


@pytest.fixture(params=[1, 2, 3])
def count(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_each_piece_is_done_once_by_products_of_one_thread(count):
    done, threads = torch.zeros(20), set()

    def work(first, last):
        assert torch.get_num_threads() == 1
        assert n_threads() == (count if threading.current_thread() is caller else 1)
        done[first:last] += 1
        threads.add(threading.get_ident())

    caller = threading.current_thread()
    in_parallel(work, [(k, k + 1) for k in range(20)])
    assert (done == 1).all()
    assert 1 <= len(threads) <= count
    assert torch.get_num_threads() == n_threads() == count


def test_numbers_of_threads_are_given_back(count):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_parallel(fail, [(), ()])
    with own_threads(), own_threads():
        assert (torch.get_num_threads(), n_threads()) == (1, count)
    assert torch.get_num_threads() == count


@pytest.mark.usefixtures("count")
def test_products_of_few_rows_have_the_same_bits():
    """PyTorch's own threads sum in another order, with 2 to 3 threads and 5 to 11 rows."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(9, 128, generator=generator) for _ in range(2))
    found = torch.empty(9, 9)
    in_parallel(lambda: torch.mm(a, b.T, out=found), [()])
    torch.set_num_threads(1)
    assert torch.equal(found, torch.mm(a, b.T))


def test_errors_of_any_thread_are_raised():
    caller, other = threading.current_thread(), threading.Event()

    def fail_elsewhere():
        if threading.current_thread() is caller:
            other.wait(10)
        else:
            other.set()
            raise ZeroDivisionError

    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError):
            in_parallel(fail_elsewhere, [(), ()])
    finally:
        torch.set_num_threads(1)


def test_nobody_waits_for_a_thread_that_is_late(count):
    """Keep all others busy with the work of another caller."""
    free = threading.Event()

    def wait():
        if threading.current_thread() is not blocker:
            free.wait(10)

    def block():
        torch.set_num_threads(count)
        in_parallel(wait, [()] * 5)

    blocker = threading.Thread(target=block)
    blocker.start()
    time.sleep(0.05)
    begin, done = time.monotonic(), []
    in_parallel(done.append, [(k,) for k in range(10)])
    assert sorted(done) == list(range(10))
    assert time.monotonic() - begin < 5
    free.set()
    blocker.join()


@pytest.mark.timeout(20)
def test_helpers_may_call_loops_themselves():
    before, both = torch.get_num_threads(), threading.Barrier(2, timeout=10)
    done = []

    def piece(k):
        both.wait()  # until a helper has the other piece
        in_parallel(done.append, [(2 * k,), (2 * k + 1,)])

    torch.set_num_threads(2)
    try:
        in_parallel(piece, [(0,), (1,)])
    finally:
        torch.set_num_threads(before)
    assert sorted(done) == [0, 1, 2, 3]


def test_many_threads_call_at_once(count):
    def work(_):
        torch.set_num_threads(count)
        done = [0] * 50

        def add(j):
            done[j] += 1
            in_parallel(lambda: None, [(), ()])  # as a loop within another one would

        in_parallel(add, [(j,) for j in range(50)])
        return done

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [[1] * 50] * 40


def test_work_is_done_where_threads_cannot_be_started(monkeypatch, count):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_queues", {})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    in_parallel(done.append, [(k,) for k in range(2 * count)])
    assert done == list(range(2 * count))


def test_processes_fork_and_end():
    command = [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
    )
    assert (done.returncode, done.stderr) == (0, "")


def numbers_in_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.usefixtures("count")
def test_steps_of_two_threads_leave_the_number_of_the_process_alone():
    torch.set_num_threads(2)
    has_begun, may_end, second = threading.Event(), threading.Event(), []

    def first():
        torch.set_num_threads(2)
        with own_threads():
            has_begun.set()
            may_end.wait(10)

    def later():
        with own_threads():
            second.append((may_end.is_set(), n_threads(), torch.get_num_threads()))

    steps = [threading.Thread(target=step) for step in (first, later)]
    steps[0].start()
    assert has_begun.wait(10)
    steps[1].start()
    time.sleep(0.05)
    may_end.set()
    for step in steps:
        step.join(10)
    assert second == [(True, 2, 1)]
    assert numbers_in_a_new_thread() == torch.get_num_threads() == 2


@pytest.mark.usefixtures("count")
def test_steps_of_one_thread_each_run_at_the_same_time():
    both = threading.Barrier(2, timeout=10)

    def step():
        torch.set_num_threads(1)
        with own_threads():
            both.wait()

    with ThreadPoolExecutor(2) as pool:
        before = torch.get_num_threads()
        for future in [pool.submit(step) for _ in range(2)]:
            future.result()
    torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("count")
def test_a_fork_does_not_wait_for_the_step_of_another_thread():
    has_begun, may_end = threading.Event(), threading.Event()

    def step():
        torch.set_num_threads(2)
        with own_threads():
            has_begun.set()
            may_end.wait(10)

    thread = threading.Thread(target=step)
    thread.start()
    assert has_begun.wait(10)
    child = os.fork()
    if child == 0:
        with own_threads():
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    thread.join(10)
