"""Batches: accepted input, its converted form, changes, and refused input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton.engine.batch import Batch, check_charge, same
from mlff_triton.errors import InputError

NUMBERS = [8, 1, 1]
POSITIONS = [[0.0, 0.0, 0.1], [0.0, 0.8, -0.5], [0.0, -0.8, -0.5]]
CELL = [[9.0, 0.0, 0.0], [1.0, 8.0, 0.0], [0.0, 2.0, 7.0]]
TWO = [0, 0, 1]  # systems of the three atoms


def test_one_system_by_default():
    batch = Batch.of(NUMBERS, POSITIONS)
    assert batch.numbers.tolist() == NUMBERS
    assert batch.positions.tolist() == POSITIONS
    assert batch.system.tolist() == [0, 0, 0]
    assert batch.counts.tolist() == [3]
    assert batch.charge.tolist() == [0.0]
    (box,) = batch.boxes
    assert not box.pbc.any()


def test_dtypes_are_always_the_same():
    batch = Batch.of(
        np.array(NUMBERS, np.uint8),
        np.array(POSITIONS, np.float32),
        batch=np.array(TWO, np.int32),
        charge=np.array([1, -1], np.int16),
    )
    integers = batch.numbers, batch.system, batch.counts
    assert {a.dtype for a in integers} == {np.dtype(np.int64)}
    assert {a.dtype for a in (batch.positions, batch.charge)} == {np.dtype(np.float64)}


@pytest.mark.parametrize("form", [np.array, torch.from_numpy], ids=["array", "tensor"])
def test_arrays_and_tensors_are_as_good_as_lists(form):
    given = NUMBERS, POSITIONS, CELL, [True, True, False], TWO, [1, -2]
    batch = Batch.of(*(form(np.array(values)) for values in given))
    expected = Batch.of(*given)
    for name in ("numbers", "positions", "system", "charge"):
        assert np.array_equal(getattr(batch, name), getattr(expected, name)), name
    for box, expected_box in zip(batch.boxes, expected.boxes, strict=True):
        assert np.array_equal(box.cell, expected_box.cell)
        assert box.pbc.tolist() == [True, True, False]


def test_tensors_may_require_gradients():
    positions = torch.tensor(POSITIONS, requires_grad=True)
    assert np.allclose(Batch.of(NUMBERS, positions).positions, POSITIONS)


def test_a_batch_consists_of_its_systems():
    batch = Batch.of(NUMBERS, POSITIONS, [CELL, np.eye(3) * 9], True, TWO, [1, -2])
    systems = batch.systems()
    assert [system.numbers.tolist() for system in systems] == [[8, 1], [1]]
    whole = Batch.concatenate(systems)
    assert whole.same_atoms(batch)
    assert np.array_equal(whole.positions, batch.positions)
    assert whole.boxes == batch.boxes


def test_systems_share_one_cell():
    batch = Batch.of(NUMBERS, POSITIONS, CELL, True, TWO)
    first, second = batch.boxes
    assert first is second
    assert first.cell.tolist() == CELL


def test_systems_have_cells_of_their_own():
    batch = Batch.of(NUMBERS, POSITIONS, [CELL, np.eye(3) * 20], True, TWO)
    assert [box.cell[0, 0] for box in batch.boxes] == [9.0, 20.0]


def test_systems_have_periodic_directions_of_their_own():
    batch = Batch.of(NUMBERS, POSITIONS, CELL, [[True, True, True], [False] * 3], TWO)
    assert [bool(box.pbc.any()) for box in batch.boxes] == [True, False]
    assert batch.boxes[0].cell.tolist() == CELL


def test_cells_of_their_own_with_directions_of_their_own():
    batch = Batch.of(NUMBERS, POSITIONS, [CELL, CELL], [[True] * 3, [True, True, False]], TWO)
    assert [box.pbc.tolist() for box in batch.boxes] == [[True] * 3, [True, True, False]]


@pytest.mark.parametrize(
    ("charge", "expected"), [(None, [0, 0]), (-1, [-1, -1]), ([2], [2, 2]), ([1, -2.0], [1, -2])]
)
def test_charges(charge, expected):
    assert Batch.of(NUMBERS, POSITIONS, batch=TWO, charge=charge).charge.tolist() == expected


def test_counts():
    batch = Batch.of([1] * 6, np.arange(18.0).reshape(6, 3), batch=[0, 1, 1, 1, 2, 2])
    assert batch.counts.tolist() == [1, 3, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": [8, 1]}, "3 atoms need 3 whole atomic numbers"),
        ({"numbers": [8.0, 1.0, 1.0]}, "whole atomic numbers, not float64"),
        ({"numbers": [True, True, True]}, "whole atomic numbers, not bool"),
        ({"numbers": "OHH"}, "whole atomic numbers"),
        ({"numbers": [[8, 1, 1]]}, r"whole atomic numbers, not int64 \[1, 3\]"),
        ({"positions": np.zeros((3, 2))}, r"shape \[N, 3\], not \[3, 2\]"),
        ({"positions": np.zeros(9)}, r"shape \[N, 3\], not \[9\]"),
        ({"positions": np.zeros((0, 3)), "numbers": []}, "no atoms"),
        ({"positions": "here"}, "array of real numbers"),
        ({"positions": [[0, 0, 0], [0, 0, np.nan], [1, 1, 1]]}, "atom 1 is NaN or infinite"),
        ({"positions": [[0, 0, 0], [0, 0, 1], [np.inf, 1, 1]]}, "atom 2 is NaN or infinite"),
        ({"batch": [0, 0]}, "without gaps"),
        ({"batch": [[0, 0, 1]]}, "without gaps"),
        ({"batch": [1, 1, 1]}, "without gaps"),
        ({"batch": [0, 0, 2]}, "without gaps"),
        ({"batch": [0, 1, 0]}, "without gaps"),
        ({"cell": np.eye(2), "pbc": True}, r"shape \[3, 3\], not \[2, 2\]"),
        ({"cell": [9.0, 9.0, 9.0], "pbc": True}, r"cells \[1, 3, 3\]"),
        ({"cell": np.stack([np.eye(3)] * 2), "pbc": True}, r"1 systems need cells \[1, 3, 3\]"),
        ({"cell": np.full((3, 3), np.nan), "pbc": True}, "the cell holds NaN"),
        ({"pbc": True}, "no independent cell vector"),
        ({"cell": CELL, "pbc": [True, False]}, "one bool or three"),
        ({"cell": CELL, "pbc": [[True] * 3] * 2}, r"1 systems need pbc \[1, 3\]"),
        ({"charge": 0.5}, "must be an integer, or a list of 1, not 0.5"),
        ({"charge": np.float64(0.5)}, r"or a list of 1, not 0\.5$"),
        ({"charge": np.nan}, "must be an integer"),
        ({"charge": [0, 0]}, r"a list of 1, not \[0, 0\]"),
        ({"charge": "positive"}, "not 'positive'"),
        ({"charge": [[1, 2], [3]]}, "must be an integer"),
    ],
)
def test_wrong_input_is_refused(change, message):
    given = {"numbers": NUMBERS, "positions": POSITIONS} | change
    with pytest.raises(InputError, match=message):
        Batch.of(**given)


def test_an_infinite_charge_is_refused():
    with pytest.raises(InputError, match="must be an integer"):
        Batch.of(NUMBERS, POSITIONS, charge=np.inf)


def test_fractions_do_not_number_systems():
    with pytest.raises(InputError, match="without gaps"):
        Batch.of(NUMBERS, POSITIONS, batch=[0, 0.7, 1])


@pytest.mark.parametrize("name", ["numbers", "positions", "cell", "pbc", "batch"])
def test_ragged_lists_are_refused(name):
    given = {"numbers": NUMBERS, "positions": POSITIONS, name: [[1, 2], [3]]}
    with pytest.raises(InputError):
        Batch.of(**given)


def test_later_changes_of_the_users_arrays_do_not_matter():
    arrays = {
        "numbers": np.array(NUMBERS),
        "cell": np.array(CELL),
        "pbc": np.array([True, True, False]),
        "batch": np.array(TWO),
        "charge": np.array([1.0, -2.0]),
    }
    batch, expected = (Batch.of(positions=POSITIONS, **arrays) for _ in range(2))
    for array in arrays.values():
        array[...] = 0
    assert batch.numbers.tolist() == NUMBERS
    assert batch.system.tolist() == TWO
    assert batch.boxes[0].cell.tolist() == expected.boxes[0].cell.tolist()
    assert batch.boxes[0].pbc.tolist() == [True, True, False]
    assert batch.charge.tolist() == [1.0, -2.0]


# Changes


def test_an_unchanged_box_is_shared():
    batch = Batch.of(NUMBERS, POSITIONS, CELL, [True, True, False])
    assert batch.with_box(CELL, [True, True, False]) is batch
    assert batch.with_box(np.array(CELL, np.float32)) is batch
    assert batch.with_box([*CELL[:2], [7.0, 8.0, 9.0]]) is batch  # not a periodic direction
    assert batch.with_positions(np.ones((3, 3))).boxes is batch.boxes
    vacuum = Batch.of(NUMBERS, POSITIONS)
    for cell in (None, np.zeros((3, 3)), CELL):
        assert vacuum.with_box(cell, False) is vacuum


@pytest.mark.parametrize(
    ("cell", "pbc"),
    [
        ([[9.0, 0.0, 0.0], [1.0, 8.0, 1e-9], [0.0, 2.0, 7.0]], None),
        (CELL, True),
        (CELL, [1, 1, 2]),
        (None, False),
    ],
)
def test_a_changed_box_is_checked_and_replaced(cell, pbc):
    batch = Batch.of(NUMBERS, POSITIONS, CELL, [True, True, False])
    changed = batch.with_box(cell, pbc)
    expected = Batch.of(NUMBERS, POSITIONS, cell, [True, True, False] if pbc is None else pbc)
    assert changed.boxes is not batch.boxes
    assert np.array_equal(changed.boxes[0].cell, expected.boxes[0].cell)
    assert np.array_equal(changed.boxes[0].pbc, expected.boxes[0].pbc)
    assert changed.numbers is batch.numbers


@pytest.mark.parametrize(
    ("cell", "pbc", "message"),
    [
        (np.full((3, 3), np.nan), None, "the cell holds NaN"),
        ([*CELL[:2], [0, 0, np.inf]], None, "the cell holds NaN"),
        (np.zeros((3, 3)), None, "no independent cell vector"),
        (None, None, "no independent cell vector"),
        (np.eye(2), None, r"shape \[3, 3\]"),
        ("cell", None, "array of real numbers"),
        (CELL, [True, False], "one bool or three"),
    ],
)
def test_a_wrong_box_is_refused(cell, pbc, message):
    batch = Batch.of(NUMBERS, POSITIONS, CELL, [True, True, False])
    with pytest.raises(InputError, match=message):
        batch.with_box(cell, pbc)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.zeros((2, 3)), r"3 atoms need positions \[3, 3\], not \[2, 3\]"),
        ([[0, 0, 0], [0, 0, np.nan], [1, 1, 1]], "atom 1 is NaN or infinite"),
    ],
)
def test_wrong_positions_are_refused(positions, message):
    with pytest.raises(InputError, match=message):
        Batch.of(NUMBERS, POSITIONS).with_positions(positions)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"positions": np.ones((3, 3)), "cell": CELL, "pbc": True}, True),
        ({"numbers": [8, 1, 6]}, False),
        ({"batch": [0, 1, 1], "charge": [1, 0]}, False),
        ({"charge": [1, 1]}, False),
    ],
)
def test_the_same_atoms(change, same):
    given = {"numbers": NUMBERS, "positions": POSITIONS, "batch": TWO, "charge": [1, 0]}
    assert Batch.of(**given).same_atoms(Batch.of(**(given | change))) is same


@pytest.mark.parametrize("n_rows", [1, 64, 65, 5000])
@pytest.mark.parametrize("row", [0, -1])
def test_equal_arrays(n_rows, row):
    array = np.random.default_rng(0).normal(size=(n_rows, 3))
    other = array.copy()
    assert same(array, other)
    other[row, 2] += 1.0
    assert not same(array, other)
    assert not same(array, array[:, :2])


def test_batches_are_concatenated():
    one = Batch.of(NUMBERS, POSITIONS, CELL, True, charge=1)
    two = Batch.of(NUMBERS, POSITIONS, batch=TWO, charge=[0, -1])
    both = Batch.concatenate([one, two])
    assert both.numbers.tolist() == 2 * NUMBERS
    assert both.system.tolist() == [0, 0, 0, 1, 1, 2]
    assert both.charge.tolist() == [1.0, 0.0, -1.0]
    assert both.boxes == (*one.boxes, *two.boxes)
    assert np.array_equal(both.positions, 2 * POSITIONS)


@pytest.mark.parametrize("charge", [1 + 0j, np.complex128(1 + 5j), np.ones((4, 300))])
def test_odd_charges_are_refused_in_one_line(charge):
    with pytest.raises(InputError, match="must be an integer") as raised:
        check_charge(charge)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()
