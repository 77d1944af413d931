"""TensorNet as a potential of openmm-ml: ``MLPotential("mlff-triton", modelPath=...)``.

openmm-ml loads this module by its entry point, while it is being imported itself. The module must
therefore not import openmm-ml, and the factory merely has the method that openmm-ml calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlff_triton.errors import InputError

if TYPE_CHECKING:
    from mlff_triton.calculators.openmm.potential import TensorNetPotential


class TensorNetPotentialFactory:
    """Factory of potentials for the name "mlff-triton"."""

    def createImpl(self, name: str, **args: Any) -> TensorNetPotential:
        """Make a potential.

        Parameters
        ----------
        name : str
            "mlff-triton".
        args
            ``modelPath``: name or path of a model, or a model, the same as for
            `create_openmm_force`; the shipped model by default.

        Raises
        ------
        InputError
            If there are other arguments.
        """
        from mlff_triton.calculators.openmm.potential import OPTIONS, TensorNetPotential

        model = args.pop("modelPath", "default")
        if args:
            raise InputError(
                f"MLPotential({name!r}) does not know {', '.join(args)}: it takes modelPath; "
                f"createSystem takes {', '.join(OPTIONS)}"
            )
        return TensorNetPotential(model)
