"""Facts about the named models: elements, charges, license, published accuracy.

``mlff-triton models`` and ``info`` print them, and the page "Choosing a model" of the documentation
is checked against them. A number is here only if a source states it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from mlff_triton.model.config import SYMBOLS

MOST_LISTED = 20  # elements that are named one by one


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that has a name.

    Attributes
    ----------
    suits : str
        Systems that the model was made for.
    elements : tuple of str
        Symbols of the elements it knows, by atomic number.
    charge : str
        Total charges that it supports.
    periodic : str
        Boundary conditions that it supports.
    reference : str
        Method and data that it was trained on.
    license : str
        License of its weights.
    accuracy : str
        Published errors, or a sentence that none were found.
    dispersion : str
        Dispersion in the reference, such as "VV10", or the correction that fits a reference
        without it, such as "d3bj:pbe".
    source : str
        File of the repository, or address, that states accuracy and reference.
    caveat : str
        The most important reason not to use it.
    """

    suits: str
    elements: tuple[str, ...]
    charge: str
    periodic: str
    reference: str
    license: str
    accuracy: str
    dispersion: str
    source: str
    caveat: str

    def rows(self) -> list[tuple[str, str]]:
        """Return names and texts of all facts, in the order in which they are shown."""
        return [
            ("for", self.suits),
            ("elements", _listed(self.elements)),
            ("total charge", self.charge),
            ("cell", self.periodic),
            ("trained on", self.reference),
            ("dispersion", self._dispersion),
            ("license", self.license),
            ("accuracy", self.accuracy),
            ("source", self.source),
            ("caveat", self.caveat),
        ]

    @property
    def lacks_dispersion(self) -> bool:
        """True if the reference has no dispersion, so that a correction fits."""
        return ":" in self.dispersion

    @property
    def _dispersion(self) -> str:
        if self.lacks_dispersion:
            return f"none in the reference: --dispersion {self.dispersion} adds it"
        return f"as in the reference, {self.dispersion}: add no correction"


def _listed(elements: tuple[str, ...]) -> str:
    """List elements, or only the ends of each range of atomic numbers if there are many."""
    if len(elements) <= MOST_LISTED:
        return ", ".join(elements)
    numbers = enumerate(map(SYMBOLS.index, elements))
    ranges = [[z for _, z in run] for _, run in groupby(numbers, lambda pair: pair[1] - pair[0])]
    parts = [f"{SYMBOLS[run[0]]} to {SYMBOLS[run[-1]]}" for run in ranges]
    return f"{len(elements)}: {' and '.join(parts)}"


_ORGANIC = ("H", "B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Br", "I")
_MATPES = (*SYMBOLS[1:84], *SYMBOLS[89:95])
_MATPES_SUITS = "crystals: metals, salts, oxides and other inorganic solids"
_MATPES_DATA = "structures of MatPES: dynamics at 300 K and ground states of the Materials Project"
_MATPES_ERRORS = (
    "no published errors found for this release; mean absolute errors of the one before it, "
    "v2025.1, in its test set: {} per atom, {}, {}"
)
_MATPES_CARD = (
    "https://github.com/materialsvirtuallab/matgl/blob/{}/pretrained_models/"
    "TensorNet-MatPES-{}-v2025.1-PES/README.md"
)
_WB97M = "wB97M-V/def2-TZVPPD, molecules from PubChem"
_ALL_PAIRS_CELL = "vacuum; a box needs --coulomb pme, or a Coulomb cutoff, which changes energies"

FACTS = {
    "tensornet-wb97m": ModelFacts(
        suits="neutral organic and drug-like molecules, and clusters of a few, in vacuum",
        elements=_ORGANIC,
        charge="0 only",
        periodic="any, but trained on molecules in vacuum",
        reference="AIMNet2 for wB97M-D3, 12,396 molecules and clusters of them",
        license="MIT",
        accuracy="mean absolute errors from AIMNet2 for molecules with held-out scaffolds: 2.2 meV "
        "per atom, 57 meV/Å; interaction energies of S22: 0.90 kcal/mol from CCSD(T)",
        dispersion="D3",
        source="mlff_triton/weights/tensornet-wb97m.md",
        caveat="not for liquids and molecular crystals, which are too dense by 16 to 36 %, and "
        "not for O2 and transfers of protons",
    ),
    "tensornet2-wb97m": ModelFacts(
        suits="organic and drug-like molecules and their ions, and clusters of a few, in vacuum",
        elements=_ORGANIC,
        charge="-2 to 2",
        periodic=_ALL_PAIRS_CELL,
        reference="AIMNet2 for wB97M-D3, 16,465 molecules and ions and clusters of them",
        license="MIT",
        accuracy="mean absolute errors from AIMNet2 for molecules with held-out scaffolds: 2.6 meV "
        "per atom, 66 meV/Å, 0.009 e; interaction energies of S22: 0.60 kcal/mol from CCSD(T)",
        dispersion="D3",
        source="mlff_triton/weights/tensornet2-wb97m.md",
        caveat="not for liquids; forces of neutral molecules are less exact than those of the "
        "default, and two ions that are far apart attract each other too much",
    ),
    "tensornet-gfn2": ModelFacts(
        suits="what was begun with it, as the former default: small organic molecules, peptides, "
        "and both in droplets of water",
        elements=("H", "C", "N", "O", "S"),
        charge="0 only",
        periodic="any",
        reference="GFN2-xTB, 249 molecules and clusters",
        license="MIT",
        accuracy="mean absolute errors in trajectories it was not trained on: 0.022 kcal/mol per "
        "atom, 0.49 kcal/mol/Å; in molecules it was not trained on: 0.101 and 1.07",
        dispersion="D4",
        source="mlff_triton/weights/tensornet-gfn2.md",
        caveat="a model to start with, not one to publish with: functional groups that it never "
        "saw come out wrong, and liquid water at 1 bar is much too dense",
    ),
    "aceff-1.1": ModelFacts(
        suits="drug-like molecules: the release before AceFF-2.0",
        elements=_ORGANIC,
        charge="in its card; that of AceFF-1.0 says -1, 0 and 1",
        periodic="any, but trained on molecules in vacuum",
        reference=f"in its card; that of AceFF-1.0 says {_WB97M} with at most 20 atoms",
        license="in its card, and printed when it is fetched",
        accuracy="no published errors found",
        dispersion="VV10",
        source="https://huggingface.co/Acellera/AceFF-1.1",
        caveat="atoms beyond its cutoff do not interact, unlike in AceFF-2.0",
    ),
    "aceff-2.0": ModelFacts(
        suits="drug-like molecules and their ions",
        elements=_ORGANIC,
        charge="charged molecules too; the range is in its card",
        periodic=_ALL_PAIRS_CELL,
        reference=f"{_WB97M} with at most 30 atoms",
        license="Apache 2.0",
        accuracy="errors on the strained conformers of Wiggle150 are in its card, and were not "
        "measured again here",
        dispersion="VV10",
        source="https://huggingface.co/Acellera/AceFF-2.0, https://arxiv.org/abs/2601.00581",
        caveat="proteins and water are not in its training set: describe them classically, in a "
        "mixed system",
    ),
    "tensornet-matpes-pbe": ModelFacts(
        suits=_MATPES_SUITS,
        elements=_MATPES,
        charge="0 only",
        periodic="any, but trained on periodic solids",
        reference=f"PBE, {_MATPES_DATA}",
        license="none stated: ask its authors",
        accuracy=_MATPES_ERRORS.format("42 meV", "146 meV/Å", "0.627 GPa"),
        dispersion="d3bj:pbe",
        source=_MATPES_CARD.format("0e17dee620e9968cb9eb0d060be785fec6b7eff8", "PBE"),
        caveat="not for molecules or surfaces without a test of your own; PBE has no dispersion",
    ),
    "tensornet-matpes-r2scan": ModelFacts(
        suits=_MATPES_SUITS,
        elements=_MATPES,
        charge="0 only",
        periodic="any, but trained on periodic solids",
        reference=f"r2SCAN, {_MATPES_DATA}",
        license="in its card, and printed when it is fetched",
        accuracy=_MATPES_ERRORS.format("34 meV", "163 meV/Å", "0.754 GPa"),
        dispersion="d3bj:r2scan",
        source=_MATPES_CARD.format("21cbe4ed722dcb08bd71cdca5761ac81af0862c8", "r2SCAN"),
        caveat="not for molecules or surfaces without a test of your own",
    ),
}
"""Facts about the shipped models and those in `mlff_triton.checkpoints.hub.NAMED`."""
