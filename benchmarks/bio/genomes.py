"""Workloads of bench ``models``: Enformer and AlphaGenome, with random weights and sequences.

Outputs are compared head by head, by one minus the cosine similarity of all values of a head.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BASES = 4


def random_sequence(length: int, device: torch.device) -> Tensor:
    """Return a random sequence as one-hot rows, float32 [1, length, 4]."""
    rng = torch.Generator().manual_seed(zlib.crc32(str(length).encode()))
    bases = torch.randint(BASES, (1, length), generator=rng)
    return nn.functional.one_hot(bases, BASES).float().to(device)


def randomize(model: nn.Module) -> None:
    """Set what is constant in a new model to random values: normalizations, and zero weights."""
    for name, parameter in model.named_parameters():
        rng = torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()))
        if parameter.dim() < 2 or not parameter.any():
            mean = float(name.endswith("weight") and parameter.dim() < 2)
            spread = 0.1 if parameter.dim() < 2 else (parameter.numel() / len(parameter)) ** -0.5
            parameter.data.normal_(mean, spread, generator=rng)
    for name, buffer in model.named_buffers():
        rng = torch.Generator(buffer.device).manual_seed(zlib.crc32(name.encode()))
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1, generator=rng)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=rng)


def leaves(outputs: Any, name: str = "") -> dict[str, Tensor]:
    """List all floating-point tensors in nested dictionaries of outputs, by path."""
    if isinstance(outputs, Tensor):
        return {name: outputs} if outputs.is_floating_point() else {}
    found: dict[str, Tensor] = {}
    if isinstance(outputs, dict):
        for key, value in outputs.items():
            found |= leaves(value, f"{name}/{key}")
    return found


def largest_angle(actual: Any, expected: Any) -> float:
    """Return one minus the smallest cosine similarity of an output, with NaN as the largest."""
    errors = [0.0]
    others = leaves(actual)
    for name, values in leaves(expected).items():
        a, b = others[name].double().flatten(), values.to(others[name].device).double().flatten()
        errors.append(float((1 - torch.dot(a, b) / (a.norm() * b.norm())).clamp(min=0)))
    return float(torch.tensor(errors, dtype=torch.float64).max())


@dataclass(frozen=True)
class Enformer:
    """A sequence of so many bases in the size of the published model."""

    length: int = 196_608
    target: int = 896
    dim: int = 1536
    depth: int = 11
    package = "enformer_pytorch"
    limit = 1e-5
    runs_in_graphs = True
    has_half = True

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"enformer-{self.length}"

    @property
    def size(self) -> int:
        """Number of bases."""
        return self.length

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with random weights."""
        from enformer_pytorch import Enformer as Model

        torch.manual_seed(0)
        heads = {"human": 5313, "mouse": 1643}
        sizes = {"dim": self.dim, "depth": self.depth, "target_length": self.target}
        model: nn.Module = Model.from_hparams(**sizes, heads=8, output_heads=heads).to(device)
        randomize(model)
        return model.eval()

    def half(self, model: nn.Module) -> nn.Module:
        """Convert the model to half precision."""
        return model.half()

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the argument of ``forward``."""
        return {"x": random_sequence(self.length, device)}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Predict all tracks."""
        dtype = next(model.parameters()).dtype
        return model(inputs["x"].to(dtype))

    def error(self, actual: Any, expected: Any) -> float:
        """Compare the heads."""
        return largest_angle(actual, expected)


@dataclass(frozen=True)
class AlphaGenome:
    """A human sequence of so many bases."""

    length: int
    package = "alphagenome_pytorch"
    limit = 1e-5
    runs_in_graphs = False
    has_half = True

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"alphagenome-{self.length}"

    @property
    def size(self) -> int:
        """Number of bases."""
        return self.length

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with random weights."""
        from alphagenome_pytorch import AlphaGenome as Model

        torch.manual_seed(0)
        with torch.device(device):
            model: nn.Module = Model()
        randomize(model)
        return model.to(device).eval()

    def half(self, model: nn.Module) -> nn.Module:
        """Let the model compute in bfloat16, as its authors do."""
        return Autocast(model)

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the arguments of ``forward``."""
        organism = torch.zeros(1, dtype=torch.long, device=device)
        return {"dna_sequence": random_sequence(self.length, device), "organism_index": organism}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Predict all tracks."""
        return model(**inputs)

    def error(self, actual: Any, expected: Any) -> float:
        """Compare the heads."""
        return largest_angle(actual, expected)


class Autocast(nn.Module):
    """A model that computes in bfloat16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        """Call the model under autocast."""
        kind = next(iter(inputs.values())).device.type
        with torch.autocast(kind, torch.bfloat16):
            return self.model(**inputs)


WORKLOADS = (Enformer(), *map(AlphaGenome, (16_384, 131_072, 524_288, 1_048_576)))
