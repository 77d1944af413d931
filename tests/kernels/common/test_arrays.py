"""Arrays of tensors are kept, and never those of another tensor or of memory it had before."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from mlff_triton.kernels.common.cpu.arrays import OfTensors, as_array
from mlff_triton.kernels.common.cpu.packed import transposed_weight


def test_an_array_is_the_memory_of_its_tensor():
    x = torch.zeros(3, 4)
    array = as_array(x)
    x[1, 2] = 5
    array[0, 0] = 7
    assert array[1, 2] == 5
    assert x[0, 0] == 7
    assert as_array(x) is array


def test_views_and_copies_have_arrays_of_their_own():
    x = torch.arange(6.0).reshape(2, 3)
    as_array(x)
    assert as_array(x[1:]).tolist() == [[3, 4, 5]]
    assert as_array(x.T).shape == (3, 2)
    other = copy.deepcopy(x)
    as_array(other)[0, 0] = 9
    assert other[0, 0] == 9
    assert x[0, 0] == 0


def test_other_memory_is_seen():
    x = torch.zeros(3)
    as_array(x)
    x.data = torch.ones(3)
    assert as_array(x).tolist() == [1, 1, 1]
    x.set_(torch.full((2,), 2.0))
    assert as_array(x).tolist() == [2, 2]


def test_nothing_is_kept_of_deleted_tensors():
    computed = []
    kept = OfTensors(lambda x: computed.append(1) or x.numpy().copy(), version)
    x = torch.zeros(3)
    array = weakref.ref(kept(x))
    assert kept(x) is array()
    x += 1
    assert kept(x).tolist() == [1, 1, 1]
    assert len(computed) == 2
    del x
    gc.collect()
    assert array() is None
    assert not kept._kept


def version(x):
    return x._version


def test_another_tensor_with_the_same_identity():
    for k in range(2000):
        x = torch.full((2,), float(k))
        assert as_array(x)[0] == k
        del x


def test_tensors_of_several_threads():
    shared = torch.arange(5.0)

    def work(k):
        for _ in range(300):
            own = torch.full((3,), float(k))
            assert as_array(own)[2] == k
            assert as_array(shared)[4] == 4

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_packed_parameters_follow_changes_in_place():
    weight = torch.arange(6.0).reshape(2, 3)
    before = transposed_weight(weight)
    assert before.shape == (1, 3, 2)
    assert transposed_weight(weight) is before
    weight.mul_(2)
    np.testing.assert_array_equal(transposed_weight(weight), 2 * before)
