"""Modules that commands and runs import late, imported once for all cases."""

import importlib

LATE = (
    "MDAnalysis.coordinates.DCD",
    "MDAnalysis.coordinates.XTC",
    "ase.io.cif",
    "ase.io.extxyz",
    "ase.io.proteindatabank",
    "ase.io.vasp",
    "ase.io.xyz",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "mlff_triton.bio.alignment.command",
    "mlff_triton.bio.models.families",
    "mlff_triton.dynamics.summary",
    "mlff_triton.engine.cpu_steps",
    "mlff_triton.engine.dispatch",
    "mlff_triton.kernels.tensornet.cpu.operators",
    "mlff_triton.kernels.tensornet2.cpu.operators",
    "rich.live",
    "rich.progress",
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "transformers.models.esm.modeling_esm",
)
for name in LATE:
    importlib.import_module(name)
