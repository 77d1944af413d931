from __future__ import annotations

import threading

import pytest
import torch

from mlff_triton.kernels.common.cpu.threads import in_parallel, n_threads, own_threads


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
