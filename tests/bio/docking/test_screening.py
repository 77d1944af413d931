"""Docking of many ligands at once, compared with each one alone, and with DiffDock's sampler."""

from __future__ import annotations

import copy
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mlff_triton import bio
from mlff_triton.errors import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TorchScript, which e3nn compiles when it is imported
    e3nn = pytest.importorskip("e3nn", reason="e3nn is not installed")
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    from tests.bio.docking import complexes, sampler
    from tests.bio.models.diffdock import batches, neighbors, support
    from tests.bio.models.diffdock.conftest import quick_products
    from tests.bio.models.diffdock.test_diffdock import checkout

from mlff_triton.bio.docking import screening
from mlff_triton.bio.docking.poses import Layout
from mlff_triton.bio.docking.sampler import Noise, draw, first_positions, repaired, sample
from mlff_triton.bio.docking.screening import Judge, dock, gather, torsions_of
from mlff_triton.bio.models.diffdock import network

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures(quick_products.__name__),
]

SAMPLES = 2
KINDS = {
    "v1": ("CGOldModel", {}),
    "L": ("CGModel", {"smooth_edges": True}),
    "rigid": ("CGModel", {"no_torsion": True}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 2.0},
    "fewer steps": {"actual_steps": 2, "noisy_end": True},
}


@cache
def model_of(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    name, options = KINDS[kind]
    return complexes.make_model(name, **options).to(dtype)


def layout_of(found: list[Any], samples: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout.of([torsions_of(data) for data in found], samples, torch.device("cpu"), dtype)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_follow_the_sampler(kind: str, settings: str) -> None:
    """Ligands of one batch get the poses that the sampler written for one of them gives."""
    diffusion = complexes.diffusion(**SETTINGS[settings], no_torsion=kind == "rigid")
    model, found = model_of(kind), complexes.screen()
    torsions = [torsions_of(data, rigid=diffusion.no_torsion) for data in found]
    counts = [len(each.bonds) for each in torsions]
    start, noise = draw([3, 4, 5], counts, diffusion.count, SAMPLES)
    layout = Layout.of(torsions, SAMPLES, torch.device("cpu"), torch.float32)
    batch = gather(found, SAMPLES, torch.device("cpu"), torch.float32)
    pos = batch["ligand"].pos = first_positions(batch, layout, diffusion, start)
    with bio.accelerated(model, backend="torch"), torch.inference_mode():
        screening.share_receptors(model, batch, found, SAMPLES)
        moved = sample(model, batch, layout, diffusion, noise)
    sizes = [len(data["ligand"].pos) * SAMPLES for data in found]
    torsions = noise.torsions.split([count * SAMPLES for count in counts], 1)
    for k, (own, result) in enumerate(zip(pos.split(sizes), moved.split(sizes), strict=True)):
        at = slice(k * SAMPLES, (k + 1) * SAMPLES)
        angles = torsions[k].unflatten(1, (SAMPLES, counts[k]))
        alone = sampler.sample(
            model,
            found[k],
            diffusion,
            own.double().numpy().reshape(SAMPLES, -1, 3),
            (noise.translations[:, at], noise.rotations[:, at], angles),
        )
        assert np.abs(result.numpy().reshape(alone.shape) - alone).max() < 2e-4


@pytest.mark.parametrize("kind", ["v1", "L"])
def test_poses_do_not_depend_on_the_batch(kind: str) -> None:
    model, found, diffusion = model_of(kind), complexes.screen(), complexes.diffusion()
    with bio.accelerated(model, backend="torch"):
        together = dock(model, found, diffusion, samples=SAMPLES)
        pairs = dock(model, found, diffusion, samples=SAMPLES, poses=2 * SAMPLES)
        last = dock(model, found[2:], diffusion, samples=SAMPLES, seeds=[2])
    for first, second in zip([*together, together[2]], [*pairs, *last], strict=True):
        assert first.positions.shape == second.positions.shape
        assert np.abs(first.positions - second.positions).max() < 1e-4
    other = dock(model, found[:1], diffusion, samples=SAMPLES, seeds=[7])
    assert np.abs(other[0].positions - together[0].positions).max() > 0.1


def test_noise_does_not_depend_on_the_default_dtype() -> None:
    expected = draw([3], [4], 2, SAMPLES)
    with support.default_dtype(torch.float64):
        found = draw([3], [4], 2, SAMPLES)
    for parts, others in zip(found, expected, strict=True):
        assert all(map(torch.equal, parts, others))


def test_receptors_are_embedded_once() -> None:
    """Complexes of one receptor share its embedding, which is as in the original."""
    model, found = model_of("L"), complexes.screen()
    batch = gather(found, SAMPLES, torch.device("cpu"), torch.float32)
    truth = gather(found, SAMPLES, torch.device("cpu"), torch.float32)
    embedded: list[int] = []
    with bio.accelerated(model, backend="torch"), torch.inference_mode():
        layer = model.forward.share
        model.forward.share = lambda receptors, *rest: (
            embedded.append(receptors.num_graphs),
            layer(receptors, *rest),
        )
        screening.share_receptors(model, batch, found, SAMPLES)
    assert embedded == [2]
    for data in (batch, truth):
        complexes.set_time(data, 0.5)
    with torch.inference_mode():
        model(truth)
    for store, name in (
        ("receptor", "rec_node_attr"),
        (("receptor", "receptor"), "rec_edge_attr"),
        (("receptor", "receptor"), "edge_sh"),
        (("receptor", "receptor"), "edge_weight"),
    ):
        assert torch.allclose(batch[store][name], truth[store][name], atol=1e-5), name


def test_receptors_send_their_first_messages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first release, they depend on the time, but not on the ligand."""
    model, found, sizes = model_of("v1"), complexes.screen(), []
    convolve = network.convolve

    def noted(*args: Any) -> torch.Tensor:
        sizes.append(args[2][0].edges.size)
        return convolve(*args)

    monkeypatch.setattr(network, "convolve", noted)
    scores, n_edges = [], []
    with bio.accelerated(model, backend="torch"), torch.inference_mode():
        for shares in (False, True):
            batch = gather(found, SAMPLES, torch.device("cpu"), torch.float32)
            if shares:
                screening.share_receptors(model, batch, found, SAMPLES)
            for time in (0.5, 0.2):
                complexes.set_time(batch, time)
                model.forward.prepare(batch, time)
                scores += model(batch)
            n_edges.append(sum(sizes))
            sizes.clear()
    for own, shared in zip(scores[:6], scores[6:], strict=True):
        assert torch.allclose(own, shared, rtol=1e-4, atol=1e-5)
    n_contacts = batch["receptor", "receptor"].edge_index.shape[1]
    n_unique = batch["receptor"].shared.data["receptor", "receptor"].edge_index.shape[1]
    assert n_unique < n_contacts
    assert n_edges[0] - n_edges[1] == 2 * (n_contacts - n_unique)


def test_confidences_rank_poses() -> None:
    model, found, diffusion = model_of("L"), complexes.screen(), complexes.diffusion()
    judge = complexes.make_model("CGOldModel", confidence_mode=True)
    plain = dock(model, found, diffusion, samples=4)
    ranked = dock(model, found, diffusion, samples=4, judge=Judge(judge))
    for before, after, data in zip(plain, ranked, found, strict=True):
        assert before.confidences is None
        assert after.confidences is not None
        assert (np.diff(after.confidences) <= 0).all()
        assert sorted(map(tuple, before.positions[:, 0])) == sorted(
            map(tuple, after.positions[:, 0])
        )
        batch = gather([data], 4, torch.device("cpu"), torch.float32)
        batch["ligand"].pos = torch.tensor(after.positions).flatten(0, 1)
        complexes.set_time(batch, 0.0)
        with torch.inference_mode():
            assert np.abs(judge(batch).numpy() - after.confidences).max() < 1e-5


def test_batches_that_do_not_fit_are_smaller_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, diffusion = model_of("v1"), complexes.diffusion(1)
    found = complexes.screen([*complexes.SIZES, *complexes.SIZES])
    expected = dock(model, found, diffusion, samples=1)
    whole, sizes = screening.gather, []

    def gather_some(given: list[Any], *rest: Any) -> Any:
        sizes.append(len(given))
        if len(given) > 2:
            raise torch.OutOfMemoryError
        return whole(given, *rest)

    monkeypatch.setattr(screening, "gather", gather_some)
    found_poses = dock(model, found, diffusion, samples=1, poses=5)
    assert sizes == [5, 2, 2, 2]
    for x, y in zip(found_poses, expected, strict=True):
        assert np.abs(x.positions - y.positions).max() < 1e-4


def test_a_complex_that_does_not_fit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather_none(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(screening, "gather", gather_none)
    with pytest.raises(torch.OutOfMemoryError):
        dock(model_of("v1"), complexes.screen(), complexes.diffusion(1), samples=1)


def test_scores_that_are_not_numbers_are_replaced() -> None:
    """As in DiffDock's sampler, for each ligand on its own."""
    found = complexes.screen()
    layout, n_bonds = layout_of(found, 2), [4, 0, 7]
    scores = [torch.randn(6, 3), torch.randn(6, 3), torch.randn(2 * sum(n_bonds))]
    kept = [x.clone() for x in scores]
    scores[0][1, 2] = scores[1][0, 0] = scores[1][4, 1] = torch.nan
    scores[1][1, 1], scores[2][3] = -torch.inf, torch.nan
    counts = [2 * len(torsions_of(data).bonds) for data in found]
    scores[2] = scores[2][: sum(counts)]
    result = repaired([x.clone() for x in scores], layout)
    means = scores[0][:2].abs().nanmean(), scores[2][: counts[0]].abs().nanmean()
    assert torch.isclose(result[0][1, 2], 0.01 * means[0])
    assert torch.isclose(result[2][3], 0.01 * means[1])
    assert result[1][4, 1].isnan()  # no translation of the third ligand is NaN
    assert torch.equal(result[0][2:], kept[0][2:])


@pytest.mark.parametrize("is_all_atom", [False, True])
def test_far_residues_are_left_out(is_all_atom: bool) -> None:
    from torch_geometric.utils import subgraph

    from mlff_triton.bio.docking.cropping import ATOM_CONTACTS, ATOM_RESIDUES, cropped

    found = [complexes.make(*size, seed) for seed, size in enumerate(complexes.SIZES)]
    if is_all_atom:
        for data in found:
            complexes.add_atoms(data)
    batch = gather(found, 1, torch.device("cpu"), torch.float32)
    result = cropped(batch, layout_of(found, 1), 7.0)
    n_nodes = n_edges = 0
    for k, data in enumerate(found):
        pos = data["receptor"].pos
        keep = (torch.cdist(pos, data["ligand"].pos) < 7.0).any(1)
        assert keep.any()
        assert not keep.all()
        own = result["receptor"].batch == k
        assert torch.equal(result["receptor"].pos[own], pos[keep])
        edges = data["receptor", "receptor"].edge_index
        edges = subgraph(keep, edges, relabel_nodes=True)[0] + n_nodes
        at = slice(n_edges, n_edges + edges.shape[1])
        assert torch.equal(result["receptor", "rec_contact", "receptor"].edge_index[:, at], edges)
        n_nodes, n_edges = n_nodes + int(keep.sum()), at.stop
    assert n_edges == result["receptor", "rec_contact", "receptor"].edge_index.shape[1]
    assert len(batch["receptor"].pos) > n_nodes
    if is_all_atom:
        atoms, owners = result["atom"], result[ATOM_RESIDUES].edge_index
        assert torch.equal(owners[0], torch.arange(len(atoms.pos)))
        assert torch.equal(atoms.x[:, 0], result["receptor"].x[owners[1], 0])
        assert torch.equal(atoms.batch, result["receptor"].batch[owners[1]])
        ends = atoms.batch[result[ATOM_CONTACTS].edge_index]
        assert torch.equal(ends[0], ends[1])


WRONG: dict[str, tuple[Callable[[Any, dict[str, Any]], Any], str]] = {
    "samples": (lambda _, options: options.update(samples=0), "samples=0"),
    "seeds": (lambda _, options: options.update(seeds=[1]), "one seed"),
    "masks": (
        lambda data, _: setattr(data["ligand"], "mask_rotate", ~data["ligand"].mask_rotate),
        "turns on the wrong side",
    ),
    "graph": (lambda data, _: delattr(data["ligand"], "edge_mask"), "no ligand"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    found, options = complexes.screen(), {"samples": 1}
    change(found[0], options)
    with pytest.raises(InputError, match=message):
        dock(model_of("v1"), found, complexes.diffusion(1), **options)


@pytest.mark.parametrize(("steps", "actual"), [(0, None), (3, 4), (3, 0)])
def test_wrong_numbers_of_steps_are_refused(steps: int, actual: int | None) -> None:
    with pytest.raises(InputError, match="steps="):
        complexes.diffusion(steps, actual_steps=actual)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["v1", "L"])
def test_gpu(kind: str) -> None:
    """Poses are those of the CPU."""
    found, diffusion = complexes.screen(), complexes.diffusion()
    expected = dock(model_of(kind), found, diffusion, samples=SAMPLES)
    model = copy.deepcopy(model_of(kind)).cuda()
    model.device = "cuda"
    with bio.accelerated(model):
        result = dock(model, found, diffusion, samples=SAMPLES)
        assert bio.report(model)[0].state == "fast"
    for x, y in zip(result, expected, strict=True):
        assert np.abs(x.positions - y.positions).max() < 2e-3


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", ["v1", "L", "rigid"])
def test_steps_wait_for_nothing_but_neighbors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = {"radius": 0, "radius_graph": 0}

    def allowed(name: str) -> Callable[..., Any]:
        search = getattr(support.models, name)

        def call(*arguments: Any, **options: Any) -> Any:
            searches[name] += 1
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("default")
            try:
                return search(*arguments, **options)
            finally:
                torch.cuda.set_sync_debug_mode(before)

        return call

    for name in searches:
        monkeypatch.setattr(support.models, name, allowed(name))
    model, found = copy.deepcopy(model_of(kind)).cuda(), complexes.screen()
    model.device = "cuda"
    diffusion = complexes.diffusion(4, no_torsion=kind == "rigid")
    torsions = [torsions_of(data, rigid=diffusion.no_torsion) for data in found]
    device, counts = torch.device("cuda"), [len(each.bonds) for each in torsions]
    _, noise = draw([3, 4, 5], counts, diffusion.count, SAMPLES)
    noise = Noise(*(x.cuda() for x in noise))
    layout = Layout.of(torsions, SAMPLES, device, torch.float32)
    batch = gather(found, SAMPLES, device, torch.float32)
    with bio.accelerated(model), torch.inference_mode():
        screening.share_receptors(model, batch, found, SAMPLES)
        start = batch["ligand"].pos
        sample(model, batch, layout, diffusion, noise)  # compiles, and makes tables of products
        batch["ligand"].pos = start
        searches |= dict.fromkeys(searches, 0)
        torch.cuda.set_sync_debug_mode("error")
        try:
            sample(model, batch, layout, diffusion, noise)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert bio.report(model)[0].state == "fast"
    assert searches == {"radius": 4 if kind == "rigid" else 8, "radius_graph": 4}


@pytest.fixture
def original() -> Iterator[ModuleType]:
    """DiffDock's sampler in a checkout."""
    with checkout():
        root = Path(os.environ["DIFFDOCK"])
        sys.modules["utils"].__path__ = [str(root / "utils")]
        for name, value in (("so3", neighbors.so3), ("torus", neighbors.torus)):
            sys.modules[f"utils.{name}"] = value  # type: ignore[assignment]
        module = sys.modules["utils.utils"] = ModuleType("utils.utils")
        vars(module)["crop_beyond"] = None
        yield importlib.import_module("utils.sampling")


@pytest.mark.parametrize("settings", SETTINGS)
def test_original_sampler(
    original: ModuleType, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same random numbers give the poses of DiffDock's own sampler."""
    model, data = model_of("v1"), complexes.make(6, 9, 0)
    diffusion = complexes.diffusion(**SETTINGS[settings])
    parts = diffusion.translation, diffusion.rotation, diffusion.torsion
    names = "tr", "rot", "tor"
    arguments = {"no_torsion": False, "all_atoms": False}
    for name, part in zip(names, parts, strict=True):
        arguments |= {f"{name}_sigma_min": part.smallest, f"{name}_sigma_max": part.largest}
    schedule = np.linspace(1, 0, diffusion.steps + 1)[:-1]
    cold = {
        f"temp_{name}": [getattr(part, ours) for part in parts]
        for name, ours in (("sampling", "temperature"), ("psi", "psi"), ("sigma_data", "data"))
    }
    if "temp_psi" not in original.sampling.__code__.co_varnames:
        if settings == "cold":
            pytest.skip("this release has no low-temperature sampling")
        cold = {}
        faster = replace(diffusion.rotation, speed=2**0.5)
        diffusion = replace(diffusion, rotation=faster)
    samples = [copy.deepcopy(data) for _ in range(3)]
    for each in samples:
        each["ligand"].mask_rotate = [each["ligand"].mask_rotate]  # as a data loader leaves it
        each.name = "ligand"
    drawn, normal = [], torch.normal
    monkeypatch.setattr(torch, "normal", lambda **to: drawn.append(normal(**to)) or drawn[-1])
    moved, _ = original.sampling(
        data_list=samples,
        model=model,
        inference_steps=diffusion.count,
        tr_schedule=schedule,
        rot_schedule=schedule,
        tor_schedule=schedule,
        device=torch.device("cpu"),
        t_to_sigma=batches.to_sigma,
        model_args=Arguments(**arguments),
        batch_size=3,
        no_final_step_noise=not diffusion.noisy_end,
        **cold,
    )
    layout = layout_of([data], 3)
    rows = [drawn[k : k + 3] for k in range(0, len(drawn), 3)]
    if not diffusion.noisy_end:
        rows.append([torch.zeros_like(x) for x in rows[0]])
    assert len(rows) == diffusion.count
    noise = Noise(*(torch.stack(parts) for parts in zip(*rows, strict=True)))
    batch = gather([data], 3, torch.device("cpu"), torch.float32)
    with bio.accelerated(model, backend="torch"), torch.inference_mode():
        result = sample(model, batch, layout, diffusion, noise)
    expected = torch.cat([each["ligand"].pos for each in moved])
    assert (result - expected).abs().max() < 2e-4


class Arguments(SimpleNamespace):
    """Settings of a model, as DiffDock's scripts read them."""

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)
