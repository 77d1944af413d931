from __future__ import annotations

import pytest
import torch

from mlff_triton.bio.models.diffdock.edges import Edges, mean_factors

RECEIVERS = torch.tensor([2, 0, 2, 2, 0])
SENDERS = torch.tensor([1, 3, 0, 3, 1])


def test_edges_of_a_receiver_keep_their_order():
    edges = Edges.of(RECEIVERS, SENDERS, 3, 4)
    assert edges.order.tolist() == [1, 4, 0, 2, 3]
    assert edges.row_ptr.tolist() == [0, 2, 2, 5]
    assert torch.equal(edges.receivers, RECEIVERS[edges.order])
    assert torch.equal(edges.senders, SENDERS[edges.order])
    assert edges.are_valid


def test_reversed_edges_are_those_from_receivers_to_senders():
    edges = Edges.of(RECEIVERS, SENDERS, 3, 4)
    back, expected = edges.reversed(4), Edges.of(edges.senders, edges.receivers, 4, 3)
    assert all(map(torch.equal, back, expected))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_edges_that_do_not_exist_make_both_directions_nan(wrong):
    for receivers, senders in ((RECEIVERS.clone(), SENDERS), (RECEIVERS, SENDERS.clone())):
        (receivers if receivers is not RECEIVERS else senders)[2] = wrong
        edges = Edges.of(receivers, senders, 3, 4)
        assert edges.receivers.max() < 3
        assert edges.senders.max() < 4
        for each in (edges, edges.reversed(4)):
            assert mean_factors([each], torch.float32)[0].isnan().all()


def test_means_are_over_all_groups():
    groups = [Edges.of(RECEIVERS, SENDERS, 3, 4), Edges.of(RECEIVERS[:1], SENDERS[:1], 3, 4)]
    first, second = mean_factors(groups, torch.float64)
    assert first[:, 0].tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert second.tolist() == [[0.25]]
    assert all((x == 1).all() for x in mean_factors(groups, torch.float64, mean=False))
