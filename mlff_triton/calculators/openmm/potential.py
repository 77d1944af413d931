"""The potential that openmm-ml adds to systems, made by the factory in `openmm_ml`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from openmmml.mlpotential import MLPotentialImpl

from mlff_triton.calculators.openmm.atoms import Selection, box_of, check_same_structure
from mlff_triton.calculators.openmm.decoupling_checks import check_stays_decoupled
from mlff_triton.calculators.openmm.embedding import (
    EMBEDDING,
    Request,
    create_embedded_system,
    warn_of_charge,
)
from mlff_triton.calculators.openmm.force import FORCE_NAME, force_of_selection
from mlff_triton.calculators.openmm.molecules import bonds_of_selection
from mlff_triton.calculators.openmm.recipe import Options, lasting_model, load_lasting
from mlff_triton.engine.batch import check_charge
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.prediction import Ensemble, members_of
from mlff_triton.model.tensornet import TensorNet

if TYPE_CHECKING:
    import openmm
    from openmm.app import Topology

OPTIONS = ("charge", "device", "dtype", "backend", "route", "skin", "periodic", "remove_references")
"""Options of `createSystem` and `createMixedSystem`, the same as for `create_openmm_force`."""

NOT_OURS = ("linkAtomDistances", "mlLongRange")
"""Options that openmm-ml's embeddings read themselves, but pass on as well."""


class TensorNetPotential(MLPotentialImpl):
    """A TensorNet for a whole system, or for the machine-learning part of a mixed one.

    Parameters
    ----------
    model : str, path, TensorNet or Ensemble
        Same as for `create_openmm_force`.
    """

    def __init__(self, model: str | Path | TensorNet | Ensemble) -> None:
        self.model = model

    def addForces(
        self,
        topology: Topology,
        system: openmm.System,
        atoms: Iterable[int] | None,
        forceGroup: int,
        **args: Any,
    ) -> None:
        """Add the force to a system; openmm-ml calls this after capping the bonds that it cut.

        Parameters
        ----------
        topology : openmm.app.Topology
            All atoms.
        system : openmm.System
            A system of these atoms, or an empty one.
        atoms : iterable of int, optional
            Indices of the machine-learning part.
        forceGroup : int
            Group of the force.
        args
            Some of `OPTIONS`, the same as for `create_openmm_force`.

        Raises
        ------
        InputError
            If there are other arguments, or as for `create_openmm_force`.
        BackendError
            If route "torch" is requested to interpolate, or as for `create_openmm_force`.

        Warns
        -----
        EmbeddingWarning
            If the part has another total charge in the force field than in the model, unless
            openmm-ml adds the force to an empty system, to interpolate.
        """
        unknown = [name for name in args if name not in (*OPTIONS, *NOT_OURS)]
        if unknown:
            raise InputError(
                f"{', '.join(unknown)} is unknown: the options are {', '.join(OPTIONS)}"
            )
        if system.getNumParticles():
            check_same_structure(topology, system.getNumParticles())
        given = {name: args[name] for name in OPTIONS if name in args}
        if atoms is not None and not system.getNumParticles():
            given["route"] = _route_of_copies(given.get("route", "auto"))
        elif atoms is not None:
            check_stays_decoupled(system, atoms, sums_images=_uses_mesh(self.model))
        box = box_of(topology)
        if given.get("periodic") is None:
            given["periodic"] = box is not None
        options = Options(model=self.model, force_group=forceGroup, **given)
        selection = Selection.of_topology(topology, atoms)
        _check_single(system, selection)
        system.addForce(force_of_selection(_with_caps(selection, topology), options, box))
        if selection.particles is not None:
            warn_of_charge(system, selection.particles, int(check_charge(options.charge)[0]))
        if len(selection.bonds):
            system.addForce(bonds_of_selection(selection))

    def getSupportedEmbeddings(self) -> list[str]:
        """Return the embedding in which the model's charges interact with the force field's."""
        return [EMBEDDING]

    def createMixedSystem(
        self,
        topology: Topology,
        system: openmm.System,
        atoms: list[int],
        forceGroup: int,
        interpolate: bool,
        embedding: str,  # noqa: ARG002 (there is one)
        returnInfo: bool = False,  # noqa: ARG002 (atoms stay as they are)
        **args: Any,
    ) -> openmm.System:
        """Make a mixed system in which the model's charges interact with the force field's.

        Parameters
        ----------
        topology : openmm.app.Topology
            All atoms.
        system : openmm.System
            A classical system of these atoms, which is not changed. A part that
            `mlff_triton.calculators.decouple` has decoupled stays decoupled in the mixed system.
        atoms : list of int
            Indices of the machine-learning part, which consists of whole molecules.
        forceGroup : int
            Group of the model's force.
        interpolate : bool
            If True, the global parameter "lambda_interpolate" leads from the force field, at 0, to
            the mixed system, at 1.
        embedding : str
            "ml-charges".
        returnInfo : bool
            The topology stays as it is.
        args
            ``damping``: damping length in nm, 0.1 by default, or 0 for point charges.
            ``pme_error``: relative error of Coulomb forces between both parts, 1e-4 by default.
            Others as for `create_openmm_force`: see `embedding.OPTIONS`.

        Raises
        ------
        InputError
            If an option is unknown or invalid, a bond leaves the part, the model predicts no
            charges, or the system has something that is not supported.
        BackendError
            If a route or backend does not support this embedding.

        Warns
        -----
        EmbeddingWarning
            If the part has another total charge in the force field than in the model, or the model
            scales its Coulomb energy.
        """
        _check_single(system, Selection.of_topology(topology, atoms))
        request = Request.of(self.model, forceGroup, interpolate, args)
        return create_embedded_system(topology, system, atoms, request)

    def getMLLongRange(self) -> bool:
        """Return True if the model sums charges over periodic images, by particle-mesh Ewald.

        Then openmm-ml takes away what the force field computes between images of the part.
        """
        return _uses_mesh(self.model)


def _uses_mesh(model: str | Path | TensorNet | Ensemble) -> bool:
    return any(member.uses_mesh for member in members_of(load_lasting(lasting_model(model))))


def _route_of_copies(route: str) -> str:
    """Return the route of forces that openmm-ml copies, for example to interpolate.

    To copy a TorchForce, OpenMM writes and reads it, which ends the process.
    """
    if route == "torch":
        raise BackendError(
            "with interpolate=True, openmm-ml copies the force, and OpenMM-Torch crashes when one "
            "of its forces is copied: use route='python'"
        )
    return "python" if route == "auto" else route


def _with_caps(selection: Selection, topology: Topology) -> Selection:
    """Return a selection in which the hydrogen atoms that cap cut bonds are bonded.

    openmm-ml adds one for each cut bond, in the order of the topology's bonds, but no bonds.
    """
    if selection.particles is None:
        return selection
    index_of = {int(particle): k for k, particle in enumerate(selection.particles)}
    ends = [[index_of.get(atom.index) for atom in bond] for bond in topology.bonds()]
    cut = [
        second if first is None else first
        for first, second in ends
        if (first is None) != (second is None)
    ]
    atoms = np.arange(len(selection.numbers))
    caps = atoms[len(atoms) - len(cut) :]
    has_bonds = np.isin(caps, selection.bonds).any()
    if len(caps) != len(cut) or has_bonds or (selection.numbers[caps] != 1).any():
        return selection  # from an embedding that caps differently
    of_caps = np.stack([np.array(cut, dtype=np.int64), caps], axis=1)
    return replace(selection, bonds=np.concatenate([selection.bonds, of_caps]))


def _check_single(system: openmm.System, selection: Selection) -> None:
    """Raise `InputError` if a force of the system already computes some of the selected atoms."""
    for force in system.getForces():
        if force.getName() != FORCE_NAME:
            continue
        # A TorchForce does not list its particles, so it counts as a force on all atoms.
        theirs = force.getParticles() if hasattr(force, "getParticles") else ()
        ours = selection.particles
        if not theirs or ours is None or not set(theirs).isdisjoint(ours.tolist()):
            raise InputError(
                "the System already has a force of mlff_triton for these atoms, so that the model "
                "would count twice: remove it, or use either MLPotential or create_openmm_force"
            )
