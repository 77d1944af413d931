"""Errors and speeds that others published, by benchmark. Nothing here was measured by us.

A number is here only if the linked source states it, or if it follows from such a number by the
conversion of its benchmark. Models keep the names that the source gives them. Of longer lists, the
families AceFF, AIMNet2, CHGNet, DPA, eSEN, MACE, Orb and UMA are here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Error and time of one model.

    Attributes
    ----------
    model : str
        Name in the source, and release.
    error : float or None
        Error in the unit of the benchmark; None if none was found.
    time : float or None
        Time as the source states it; None if it states none.
    source : str or None
        Address of the error; None for the address of the benchmark.
    """

    model: str
    error: float | None
    time: float | None = None
    source: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """Models that one source, or one test set, compares.

    Attributes
    ----------
    name, address : str
        Name, and address of the errors.
    error : str
        Definition of the error, with its unit.
    speed : str
        Unit of speeds after conversion, hardware, precision and system.
    speed_address : str
        Address of the times.
    factor : float
        Factor from a time in the source to a speed in that unit.
    models : tuple of Published
        Models, by error.
    """

    name: str
    address: str
    error: str
    speed: str
    speed_address: str
    factor: float
    models: tuple[Published, ...]

    def speed_of(self, model: Published) -> float | None:
        """Return the time of a model in the unit of the benchmark; None without one."""
        return None if model.time is None else model.time * self.factor


_CHEMINFORMER = (
    "https://github.com/frgoe003/cheminformer/tree/b20bda6a0b803b2e9288115743c432b1e324481b/"
    "aws_results/g7e.4xlarge"
)
_LAMBENCH = (
    "https://github.com/deepmodeling/LAMBench/blob/c20f07d2f823260b44319d78d98f1218a9717324/"
    "lambench/metrics/results"
)
_MATBENCH = (
    "https://github.com/janosh/matbench-discovery/tree/2c7f9fc42d018711dc2f5df573d225ea6d2d17b2"
)
_MATGL = (
    "https://github.com/materialsvirtuallab/matgl/tree/e9cde2291acd0b4c4a342428e7dd5e4d596b7bf9/"
    "pretrained_models"
)
_MATPES = (
    "https://github.com/materialsvirtuallab/matpes/tree/0b611c0365bddefdc2798e1b50406d7b6fc408bd/"
    "pages"
)
_MATERIALYZE = "https://huggingface.co/materialyze"

SPICE_ATOMS = 2224  # of the protein 1ZG4
MD_STEPS = 17 * 80_000  # systems, and steps of each

# Averages over 798 to 800 molecules, as some calculators fail or lack elements
SPICE = Benchmark(
    name="SPICE v3 test molecules",
    address=_CHEMINFORMER,
    error="mean absolute error of energy differences between conformers, kcal/mol",
    speed="µs per atom and step: NVIDIA RTX PRO 6000, float32 with TF32 allowed, dynamics of "
    f"{SPICE_ATOMS:,} atoms through ASE",
    speed_address=_CHEMINFORMER,
    factor=1e3 / SPICE_ATOMS,  # from ms per step
    models=(
        Published("UMA-m-1.1", 0.5317, 1704.34),  # UMA-m-1 in the files, and corrected later
        Published("UMA-s-1.2", 0.5833, 269.22),  # UMA-s-1 in the files
        Published("Orb-v3-omol", 0.7041, 71.73),
        Published("MACE-OMOL-0", 0.7914),
        Published("MACE-MH-1", 1.4223, 253.42),
        Published("MACE-OFF23(L)", 1.6862, 328.38),
        Published("MACE-OFF24(M)", 1.9137, 173.59),
        Published("AIMNet2", 2.5553, 42.59),
        Published("AceFF-2.0", 3.5522, 21.85),
        Published("AceFF-1.1", 3.6369, 10.33),
        Published("GFN2-xTB", 3.6896),
        Published("MACE-OFF23(S)", 3.7166, 80.83),
    ),
)
LAMBENCH = Benchmark(
    name="LAMBench, force field prediction",
    address=f"{_LAMBENCH}/final_rankings.json",
    error="energies, forces and virials of 15 test sets, relative to a model that knows the "
    "composition only (1); no unit",
    speed="µs per atom and call: NVIDIA V100, the default of its tasks, precision not stated, "
    "800 to 1,000 atoms",
    speed_address=f"{_LAMBENCH}/results.json",
    factor=1.0,
    models=(
        Published("DPA-3.2-5M", 0.145, 499.483),
        Published("MACE-MH-1", 0.174, 616.607),
        Published("DPA-3.1-3M", 0.195, 399.669),
        Published("Orb-v3-omat", 0.198, 256.721),
        Published("DPA-2.4-7M", 0.240, 162.044),
        Published("SevenNet-MF-ompa", 0.244, 1177.610),
        Published("Orb-v2", 0.261, 74.561),
        Published("GRACE-2L-OAM", 0.263, 156.479),
        Published("MatterSim-v1-5M", 0.286, 254.233),
        Published("MACE-MPA-0", 0.298, 341.399),
    ),
)
MATBENCH = Benchmark(
    name="Matbench Discovery, molecular dynamics",
    address=f"{_MATBENCH}/models",
    error="root mean square error of forces in 17 ab initio trajectories of solids, meV/Å",
    speed="ms per step, not per atom: NVIDIA H200, precision not stated, mean over 17 systems of "
    "at most some 500 atoms",
    speed_address=f"{_MATBENCH}/site/src/lib/labels.ts",
    factor=1e3 / MD_STEPS,  # from s for all systems
    models=(
        Published("eSEN-30M-OAM", 50.7907, 213187.13, f"{_MATBENCH}/models/esen/esen-30m-oam.yml"),
        Published(
            "DPA-4.0.1-Pro-MPtrj",
            59.3963,
            263604.28,
            f"{_MATBENCH}/models/deepmd/dpa-4.0.1-pro-mptrj.yml",
        ),
        Published(
            "DPA-3.1-3M-FT", 68.9079, 93116.24, f"{_MATBENCH}/models/deepmd/dpa-3.1-3m-ft.yml"
        ),
        Published("ORB v2 MPA", 102.4366, 9380.96, f"{_MATBENCH}/models/orb/orb-v2.yml"),
        Published("MACE-MPA-0", 109.7301, 31786.33, f"{_MATBENCH}/models/mace/mace-mpa-0.yml"),
        Published("MACE-MP-0", 165.6567, 29398.56, f"{_MATBENCH}/models/mace/mace-mp-0.yml"),
        Published("CHGNet", 202.2351, 87023.78, f"{_MATBENCH}/models/chgnet/chgnet-0.3.0.yml"),
    ),
)
MATPES = Benchmark(
    name="MatPES test set, PBE",
    address=_MATGL,
    error="mean absolute error of forces, meV/Å",
    speed="µs per atom and step: one core of an Intel Xeon Gold, precision not stated, dynamics of "
    "64 atoms of silicon through LAMMPS",
    speed_address=_MATPES,
    factor=1e3,  # from ms per atom and step
    models=(
        Published(
            "TensorNet 2025.2-m",
            125.499,
            source=f"{_MATERIALYZE}/TensorNet-PES-MatPES-PBE-2025.2-m",
        ),
        Published("QET 2025.2", 132.441, source=f"{_MATERIALYZE}/QET-PES-MatPES-PBE-2025.2"),
        Published(
            "CHGNet 2025.2.10", 136.0, 4.92, f"{_MATERIALYZE}/CHGNet-PES-MatPES-PBE-2025.2.10"
        ),
        Published(
            "TensorNet v2025.1",
            146.0,
            source=f"{_MATGL}/TensorNet-MatPES-PBE-v2025.1-PES/README.md",
        ),
        Published(
            "TensorNet v2025.1 (DGL)",
            148.0,
            3.01,
            f"{_MATGL}/TensorNetDGL-MatPES-PBE-v2025.1-PES/README.md",
        ),
        Published(
            "M3GNet v2025.1", 181.0, 1.96, f"{_MATGL}/M3GNet-MatPES-PBE-v2025.1-PES/README.md"
        ),
        Published(
            "TensorNet 2025.2",
            None,
            source=f"{_MATERIALYZE}/TensorNet-PES-MatPES-PBE-2025.2",
        ),
    ),
)
BENCHMARKS = (SPICE, LAMBENCH, MATBENCH, MATPES)
