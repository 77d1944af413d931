"""TensorNet as a potential of openmm-ml: ``MLPotential("mlff-triton", modelPath=...)``.

openmm-ml loads this module while it is being imported itself, by the entry point: so nothing here
may need it, and a factory is what has its method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlff_triton.errors import InputError

if TYPE_CHECKING:
    from mlff_triton.calculators.openmm.potential import TensorNetPotential

OPTIONS = ("charge", "device", "dtype", "backend", "route", "skin", "periodic", "remove_references")
"""Of `createSystem` and `createMixedSystem`; as for `create_openmm_force`."""


class TensorNetPotentialFactory:
    """Makes potentials for the name "mlff-triton"."""

    def createImpl(self, name: str, **args: Any) -> TensorNetPotential:
        """A potential.

        Parameters
        ----------
        name : str
            "mlff-triton".
        args
            ``modelPath``: name or path of a model, or a model, as for `create_openmm_force`; the
            shipped model by default.

        Raises
        ------
        InputError
            If there are other arguments.
        """
        from mlff_triton.calculators.openmm.potential import TensorNetPotential

        model = args.pop("modelPath", "default")
        if args:
            raise InputError(
                f"MLPotential({name!r}) does not know {', '.join(args)}: it takes modelPath; "
                f"createSystem takes {', '.join(OPTIONS)}"
            )
        return TensorNetPotential(model)
