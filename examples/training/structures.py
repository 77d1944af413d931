"""Build the start geometries of the training set and write them to one extended-XYZ file.

Usage: ``python structures.py --out structures.xyz``

Only this step needs RDKit.  The sampler (``make_data.py``) reads the file back with
:func:`read_structures`, and reuses :func:`attach` to bring molecules into contact.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from ase.build import molecule
from ase.data import chemical_symbols, vdw_radii
from ase.io import read

LIQUID_VOLUME = 29.9  # Å^3 per water molecule at ambient density
CHARGE = 0  # every structure of this set is neutral


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _mixtures(text: str) -> list[list[str]]:
    return [word.split("+") for word in text.split()]


MD17 = _pairs("""
    aspirin CC(=O)Oc1ccccc1C(=O)O  ethanol CCO  malonaldehyde C(/C=O)=C/O
    naphthalene c1ccc2ccccc2c1
    salicylic_acid OC(=O)c1ccccc1O  toluene Cc1ccccc1  benzene c1ccccc1  uracil O=c1cc[nH]c(=O)[nH]1
    paracetamol CC(=O)Nc1ccc(O)cc1  azobenzene c1ccc(/N=N/c2ccccc2)cc1
""")

SIDE_CHAINS = _pairs("""
    ala C  val C(C)C  leu CC(C)C  ile [C@@H](C)CC  ser CO  thr [C@@H](C)O  asn CC(N)=O  asp CC(=O)O
    gln CCC(N)=O  glu CCC(=O)O  lys CCCCN  arg CCCNC(N)=N  his Cc1c[nH]cn1  phe Cc1ccccc1
    tyr Cc1ccc(O)cc1  trp Cc1c[nH]c2ccccc12  cys CS  met CCSC
""")
RESIDUES = {
    "ac-gly-nme": "CC(=O)NCC(=O)NC",
    "ac-pro-nme": "CC(=O)N1CCC[C@H]1C(=O)NC",
    **{f"ac-{name}-nme": f"CC(=O)N[C@@H]({r})C(=O)NC" for name, r in SIDE_CHAINS.items()},
}

CHAINS = _pairs("""
    ac-ala2-nme CC(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)NC
    ac-gly-ala-nme CC(=O)NCC(=O)N[C@@H](C)C(=O)NC
    ac-gly2-nme CC(=O)NCC(=O)NCC(=O)NC
    ac-ala3-nhme CC(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)NC
""")

FRAGMENTS = _pairs("""
    hydrogen [H][H]  methane C  ethane CC  propane CCC  butane CCCC  isobutane CC(C)C  hexane CCCCCC
    neopentane CC(C)(C)C  ethylene C=C  propene CC=C  butadiene C=CC=C  allene C=C=C  acetylene C#C
    propyne CC#C  cyclopropane C1CC1  cyclobutane C1CCC1  cyclopentane C1CCCC1  cyclohexane C1CCCCC1
    cyclohexene C1CCC=CC1  styrene C=Cc1ccccc1  methanol CO  propanol CCCO  isopropanol CC(C)O
    glycol OCCO  glycerol OCC(O)CO  dimethyl_ether COC  diethyl_ether CCOCC  dimethoxyethane COCCOC
    thf C1CCOC1  dioxane C1COCCO1  oxirane C1CO1  formaldehyde C=O  acetaldehyde CC=O
    acetone CC(C)=O  malonaldehyde_e O=C/C=C/O  propanedial O=CCC=O  acrolein C=CC=O
    cyclohexanone O=C1CCCCC1  benzaldehyde O=Cc1ccccc1
    ketene C=C=O  vinyl_alcohol C=CO  formic_acid OC=O  acetic_acid CC(=O)O  propionic_acid CCC(=O)O
    oxalic_acid OC(=O)C(=O)O  lactic_acid C[C@H](O)C(=O)O  benzoic_acid OC(=O)c1ccccc1
    glycine NCC(=O)O  alanine N[C@@H](C)C(=O)O  methyl_formate COC=O  methyl_acetate COC(C)=O
    acetic_anhydride CC(=O)OC(C)=O  carbonic_acid OC(=O)O  formamide NC=O  acetamide CC(N)=O
    nmf CNC=O  dmf CN(C)C=O  nma CC(=O)NC  dma CC(=O)N(C)C  pyrrolidone O=C1CCCN1
    acrylamide C=CC(N)=O  urea NC(N)=O  methylurea CNC(N)=O  methyl_carbamate COC(N)=O
    guanidine NC(N)=N  methylguanidine CNC(N)=N  acetamidine CC(N)=N  ammonia N  methylamine CN
    dimethylamine CNC  trimethylamine CN(C)C  ethylamine CCN  butylamine CCCCN  ethanolamine NCCO
    piperidine C1CCNCC1  morpholine C1COCCN1  piperazine C1CNCCN1  hydrazine NN  hydroxylamine NO
    hydrogen_peroxide OO  methanimine C=N  acetoxime CC(C)=NO  hydrogen_cyanide C#N
    acetonitrile CC#N  benzonitrile N#Cc1ccccc1  nitromethane C[N+](=O)[O-]
    nitrobenzene O=[N+]([O-])c1ccccc1  carbon_monoxide [C-]#[O+]  carbon_dioxide O=C=O  nitrogen N#N
    phenol Oc1ccccc1  cresol Cc1ccc(O)cc1  anisole COc1ccccc1  aniline Nc1ccccc1
    catechol Oc1ccccc1O  pyridine c1ccncc1  pyrimidine c1cncnc1  pyrazine c1cnccn1
    pyrrole c1cc[nH]c1  furan c1ccoc1  imidazole c1c[nH]cn1  methylimidazole Cc1c[nH]cn1
    pyrazole c1cn[nH]c1  oxazole c1cocn1  triazole c1c[nH]nn1  indole c1ccc2[nH]ccc2c1
    cytosine Nc1cc[nH]c(=O)n1
    thymine Cc1c[nH]c(=O)[nH]c1=O  adenine Nc1ncnc2[nH]cnc12  hypoxanthine O=c1[nH]cnc2nc[nH]c12
    nicotinamide NC(=O)c1cccnc1  benzamide NC(=O)c1ccccc1  phenethylamine NCCc1ccccc1
    succinimide O=C1CCC(=O)N1  glyceraldehyde OC[C@@H](O)C=O
    glucose OC[C@H]1O[C@@H](O)[C@H](O)[C@@H](O)[C@@H]1O  methanethiol CS  dimethyl_sulfide CSC
    ethanethiol CCS  hydrogen_sulfide S  dimethyl_disulfide CSSC  thiophene c1ccsc1
""")

HYDRATED = {
    "nma": (1, 2, 3, 6),
    "ac-ala-nme": (1, 2, 4, 6, 8),
    "ac-gly-nme": (2, 4),
    "ac-ser-nme": (2,),
    "methanol": (1, 2, 4),
    "ethanol": (3,),
    "acetamide": (1, 2, 4),
    "formamide": (3,),
    "acetic_acid": (1, 3),
    "acetone": (2,),
    "methylamine": (1, 3),
    "ammonia": (2, 4),
    "imidazole": (2, 4),
    "phenol": (1, 3),
    "benzene": (1, 3),
    "methane": (4,),
    "urea": (4,),
    "methylguanidine": (3,),
    "glycine": (4,),
    "indole": (2,),
    "pyridine": (2,),
    "methanethiol": (2,),
    "dimethyl_sulfide": (2,),
}

COMPLEXES = _mixtures("""
    methanol+methanol  methanol+methanol+methanol  ammonia+ammonia  nma+nma  nma+methanol
    benzene+benzene  benzene+methane  methane+methane  ethane+propane  imidazole+formic_acid
    phenol+nma  acetamide+acetic_acid  benzene+nma  indole+methane  methylamine+methanol
    pyridine+phenol  uracil+adenine  cytosine+formamide  acetone+acetonitrile  urea+urea
    acetamide+acetamide+acetamide  butane+butane  methanethiol+nma  guanidine+acetic_acid
""")

HELD_OUT = {
    "paracetamol", "azobenzene", "ac-val-nme", "ac-ala2-nme", "nicotinamide", "morpholine",
    "acetoxime", "phenethylamine", "ac-gly-nme+4w", "uracil+adenine",
}  # fmt: skip


@dataclass(frozen=True)
class Structure:
    """One start geometry with the little topology that the sampler needs.

    Attributes
    ----------
    name, conformer
        Molecule name, and the index of this geometry among those of the molecule.
    group
        Family of the molecule: md17, peptide, chain, fragment, water, hydrated or complex.
    split
        ``train`` or ``test_molecule`` (never used in training).
    numbers, positions
        Atomic numbers and coordinates in Å.
    bonds
        Pairs of bonded atoms.
    torsions
        Index quadruples, one for each rotatable bond.
    wall
        Radius in Å of the sphere that keeps a cluster together while sampling; 0 for none.
    charge
        Total charge in units of the elementary charge.
    """

    name: str
    conformer: int
    group: str
    split: str
    numbers: np.ndarray
    positions: np.ndarray
    bonds: tuple[tuple[int, ...], ...]
    torsions: tuple[tuple[int, ...], ...] = ()
    wall: float = 0.0
    charge: int = CHARGE


def read_structures(path: Path) -> list[Structure]:
    """Read the structures that :func:`write_structures` wrote."""
    return [
        Structure(
            name=atoms.info["name"],
            conformer=int(atoms.info["conformer"]),
            group=atoms.info["group"],
            split=atoms.info["split"],
            numbers=atoms.numbers,
            positions=atoms.positions,
            bonds=_decode(atoms.info.get("bonds", "")),
            torsions=_decode(atoms.info.get("torsions", "")),
            wall=float(atoms.info["wall"]),
            charge=int(atoms.info["charge"]),
        )
        for atoms in read(path, ":", format="extxyz")
    ]


def write_structures(path: Path, structures: list[Structure]) -> None:
    """Write extended XYZ with four decimals, which keeps the file small."""
    with path.open("w") as file:
        for s in structures:
            file.write(f"{len(s.numbers)}\n{_header(s)}\n")
            for number, (x, y, z) in zip(s.numbers, s.positions, strict=True):
                file.write(f"{chemical_symbols[number]} {x:.4f} {y:.4f} {z:.4f}\n")


def attach(
    rng: np.random.Generator,
    host: Structure,
    guest: Structure,
    contact: float,
    direction: np.ndarray | None = None,
) -> Structure:
    """Place ``guest`` beside ``host``, randomly oriented.

    Parameters
    ----------
    rng
        Source of the orientation and, unless given, of the direction.
    host, guest
        The two molecules or clusters.
    contact
        Smallest interatomic distance between the two, in units of the sum of van der Waals radii.
    direction
        Direction from the centre of ``host`` in which to place ``guest``.

    Returns
    -------
    Structure
        The union, with the name, group and split of ``host``.
    """
    if direction is None:
        direction = rng.normal(size=3)
    direction = direction / np.linalg.norm(direction)
    start = _centred(host.positions)
    moved = _centred(guest.positions) @ random_rotation(rng).T
    reach = contact * (vdw_radii[host.numbers][:, None] + vdw_radii[guest.numbers])
    return _union(host, guest, start, moved + _touching_shift(start, moved, reach, direction))


def random_rotation(rng: np.random.Generator) -> np.ndarray:
    """Draw a uniformly distributed proper rotation matrix."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.linalg.det(q)


def _touching_shift(
    host: np.ndarray, guest: np.ndarray, reach: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Shift of ``guest`` along ``direction`` at which the first pair comes within its reach.

    Every pair touches where |offset + t direction| = reach; the largest such t is the first contact
    met on the way in from infinity.
    """
    offset = guest[None, :, :] - host[:, None, :]
    along = offset @ direction
    discriminant = along**2 - (offset**2).sum(-1) + reach**2
    met = discriminant >= 0
    if not met.any():
        return np.zeros(3)
    return direction * (np.sqrt(discriminant[met]) - along[met]).max()


def _union(
    host: Structure, guest: Structure, host_xyz: np.ndarray, guest_xyz: np.ndarray
) -> Structure:
    n = len(host.numbers)
    positions = _centred(np.concatenate([host_xyz, guest_xyz]))
    return replace(
        host,
        numbers=np.concatenate([host.numbers, guest.numbers]),
        positions=positions,
        bonds=host.bonds + tuple((i + n, j + n) for i, j in guest.bonds),
        wall=float(np.linalg.norm(positions, axis=1).max()) + 1.0,
    )


def _centred(positions: np.ndarray) -> np.ndarray:
    return positions - positions.mean(0)


def _decode(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in item.split("-")) for item in text.split())


def _encode(items: tuple[tuple[int, ...], ...]) -> str:
    return " ".join("-".join(map(str, item)) for item in items)


def _header(s: Structure) -> str:
    fields = [
        "Properties=species:S:1:pos:R:3",
        f"name={s.name} conformer={s.conformer} group={s.group} split={s.split}",
        f"charge={s.charge} wall={s.wall:.3f}",
    ]
    fields += [f'bonds="{_encode(s.bonds)}"'] if s.bonds else []
    fields += [f'torsions="{_encode(s.torsions)}"'] if s.torsions else []
    return " ".join(fields + ['pbc="F F F"'])


def embed(name: str, smiles: str, group: str, conformers: int, seed: int) -> list[Structure]:
    """Embed up to ``conformers`` distinct conformers with ETKDG and relax them with MMFF."""
    # Imported here because the sampler reads this module on machines without RDKit.
    from rdkit import Chem
    from rdkit.Chem import AllChem

    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    options = AllChem.ETKDGv3()
    options.randomSeed = seed
    options.pruneRmsThresh = 0.3
    ids = list(AllChem.EmbedMultipleConfs(mol, conformers, options))
    if not ids:
        raise RuntimeError(f"no geometry for {name} ({smiles})")
    if AllChem.MMFFHasAllMoleculeParams(mol):
        AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=2000)
    rotatable = Chem.MolFromSmarts("[!$(*#*);!D1]-&!@[!$(*#*);!D1]")
    bonds = tuple((b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds())
    torsions = tuple(_quadruple(bonds, j, k) for j, k in mol.GetSubstructMatches(rotatable))
    return [
        Structure(
            name=name,
            conformer=i,
            group=group,
            split="test_molecule" if name in HELD_OUT else "train",
            numbers=np.array([a.GetAtomicNum() for a in mol.GetAtoms()]),
            positions=_centred(mol.GetConformer(conf).GetPositions()),
            bonds=bonds,
            torsions=torsions,
        )
        for i, conf in enumerate(ids)
    ]


def _quadruple(bonds: tuple[tuple[int, int], ...], j: int, k: int) -> tuple[int, int, int, int]:
    def neighbour(atom: int, other: int) -> int:
        return next(a + b - atom for a, b in bonds if atom in (a, b) and other not in (a, b))

    return neighbour(j, k), j, k, neighbour(k, j)


def water(name: str = "water") -> Structure:
    """Build one water molecule."""
    atoms = molecule("H2O")
    bonds = ((0, 1), (0, 2))
    return Structure(name, 0, "water", "train", atoms.numbers, _centred(atoms.positions), bonds)


def grown_cluster(rng: np.random.Generator, n: int, conformer: int) -> Structure:
    """Grow an open cluster by adding one water after the other at contact distance."""
    cluster = replace(water(f"water{n}"), conformer=conformer)
    for _ in range(n - 1):
        cluster = attach(rng, cluster, water(), contact=0.7)
    return cluster


def liquid_droplet(rng: np.random.Generator, n: int, conformer: int, squeeze: float) -> Structure:
    """Pack ``n`` waters at random in the sphere they fill in the liquid.

    Parameters
    ----------
    rng
        Source of the packing.
    n, conformer
        Number of molecules, and the index of the packing.
    squeeze
        Factor on the radius of the sphere; below 1 the droplet is compressed.
    """
    radius = squeeze * (3 * n * LIQUID_VOLUME / (4 * np.pi)) ** (1 / 3)
    centres = _spread_points(rng, n, radius)
    name = f"droplet{n}" if squeeze == 1 else f"dense{n}"
    single = water(name)
    xyz = [single.positions @ random_rotation(rng).T + centre for centre in centres]
    droplet = replace(single, conformer=conformer)
    for k in range(1, n):
        droplet = _union(droplet, single, np.concatenate(xyz[:k]), xyz[k])
    return replace(droplet, wall=radius)


def _spread_points(rng: np.random.Generator, n: int, radius: float) -> np.ndarray:
    """Draw ``n`` points in a sphere, no two closer than 2.5 Å (less when it gets crowded)."""
    points = np.empty((0, 3))
    for attempt in count():
        point = rng.uniform(-radius, radius, 3)
        apart = 2.5 * 0.999 ** (attempt / 10)
        far = np.all(np.linalg.norm(points - point, axis=1) > apart)
        if far and np.linalg.norm(point) < radius:
            points = np.vstack([points, point])
        if len(points) == n:
            break
    return points


def waters(rng: np.random.Generator) -> Iterator[Structure]:
    """Yield the water monomer, open clusters and liquid-like droplets."""
    yield water()
    for n in (2, 3, 4, 5, 6, 7, 8, 10, 12):
        for conformer in range(3):
            yield grown_cluster(rng, n, conformer)
    for n in (8, 10, 12, 14, 16, 18, 20):
        for conformer in range(3):
            yield liquid_droplet(rng, n, conformer, squeeze=1.0)
        yield liquid_droplet(rng, n, 0, squeeze=0.92)


def hydrated(
    rng: np.random.Generator, find: Callable[[str, int], Structure]
) -> Iterator[Structure]:
    """Yield solutes with a few waters around them."""
    for solute, counts in HYDRATED.items():
        for n in counts:
            for conformer in range(2):
                cluster = _renamed(find(solute, conformer), f"{solute}+{n}w", "hydrated", conformer)
                for _ in range(n):
                    cluster = attach(rng, cluster, water(), contact=0.72)
                yield cluster


def complexes(
    rng: np.random.Generator, find: Callable[[str, int], Structure]
) -> Iterator[Structure]:
    """Yield dimers and trimers of small molecules, and the cyclic hydrogen-bonded ones."""
    for names in COMPLEXES:
        for conformer in range(2):
            first = find(names[0], conformer)
            cluster = _renamed(first, "+".join(names), "complex", conformer)
            for name in names[1:]:
                cluster = attach(rng, cluster, find(name, conformer), contact=0.78)
            yield cluster
    for name in ("formic_acid", "acetic_acid", "formamide", "acetamide"):
        yield cyclic_dimer(find(name, 0))


def cyclic_dimer(monomer: Structure) -> Structure:
    """Join two acids or amides by two equal hydrogen bonds, related by inversion."""
    oxygen, donor, hydrogen = _facing_bond(monomer)
    xyz = monomer.positions
    along = xyz[hydrogen] - xyz[donor]
    acceptor = xyz[hydrogen] + 1.8 * along / np.linalg.norm(along)
    image = acceptor + xyz[oxygen] - xyz
    name = f"{monomer.name}_cyclic_dimer"
    return _union(_renamed(monomer, name, "complex", 0), monomer, xyz, image)


def _facing_bond(monomer: Structure) -> tuple[int, int, int]:
    """Find the carbonyl oxygen, and the donor and hydrogen of the X-H bond that faces it."""
    numbers = monomer.numbers
    bonds = [b if numbers[b[1]] == 1 else b[::-1] for b in monomer.bonds]
    donors = [(d, h) for d, h in bonds if numbers[h] == 1 and numbers[d] in (7, 8)]
    bonded = [i for bond in monomer.bonds for i in bond]
    oxygen = next(i for i in np.flatnonzero(numbers == 8) if bonded.count(i) == 1)
    gap = [np.linalg.norm(monomer.positions[h] - monomer.positions[oxygen]) for _, h in donors]
    return oxygen, *donors[int(np.argmin(gap))]


def _renamed(s: Structure, name: str, group: str, conformer: int) -> Structure:
    split = "test_molecule" if name in HELD_OUT else s.split
    return replace(s, name=name, group=group, conformer=conformer, split=split, torsions=())


def build(seed: int) -> list[Structure]:
    """Build every structure of the training set."""
    rng = np.random.default_rng(seed)
    families = (
        (MD17, "md17", 3),
        (RESIDUES, "peptide", 4),
        (CHAINS, "chain", 6),
        (FRAGMENTS, "fragment", 2),
    )
    single = [
        structure
        for table, group, conformers in families
        for name, smiles in table.items()
        for structure in embed(name, smiles, group, conformers, seed)
    ]

    def find(name: str, conformer: int) -> Structure:
        found = [s for s in single if s.name == name]
        return found[conformer % len(found)]

    return [*single, *waters(rng), *hydrated(rng, find), *complexes(rng, find)]


def main() -> None:
    """Write the structures to the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("structures.xyz"))
    parser.add_argument("--seed", type=int, default=2024)
    args = parser.parse_args()
    structures = build(args.seed)
    write_structures(args.out, structures)
    print(f"{len(structures)} structures of {len({s.name for s in structures})} molecules")


if __name__ == "__main__":
    main()
