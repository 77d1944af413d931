"""Workloads of bench ``models``: Enformer and AlphaGenome, with random weights and sequences.

Outputs are compared head by head, by the squared relative error of all values of a head.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bio.comparison import largest_error

BASES = 4
N_SITES = 512  # of each kind, as many as AlphaGenome chooses


def random_sequence(length: int, device: torch.device) -> Tensor:
    """Return a random sequence as one-hot rows, float32 [1, length, 4]."""
    rng = torch.Generator().manual_seed(zlib.crc32(str(length).encode()))
    bases = torch.randint(BASES, (1, length), generator=rng)
    return nn.functional.one_hot(bases, BASES).float().to(device)


def randomize(model: nn.Module) -> None:
    """Set what is constant in a new model to random values whose mean is the constant.

    These are normalizations, factors of residuals and tracks, and zero weights. Logits of pooling,
    which begin as twice the values that they pool, get a random part too.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values = tensor.data
        rng = torch.Generator(values.device).manual_seed(zlib.crc32(name.encode()))
        if name.endswith("running_var"):
            values.uniform_(0.5, 1.5, generator=rng)
        elif name.endswith("to_attn_logits.weight"):
            values += torch.empty_like(values).normal_(0, _spread(values), generator=rng)
        elif values.is_floating_point() and (values == values.flatten()[0]).all():
            is_map = values.dim() > 1 and name.endswith("weight")
            spread = _spread(values) if is_map else 0.1
            values.normal_(float(values.flatten()[0]), spread, generator=rng)


def _spread(weight: Tensor) -> float:
    """Return the standard deviation of weights that keep the size of what they multiply."""
    return float((weight.numel() / len(weight)) ** -0.5)


@dataclass(frozen=True)
class Enformer:
    """Human and mouse tracks of a sequence; by default, in the size of the published model."""

    length: int = 196_608
    target: int = 896
    dim: int = 1536
    depth: int = 11
    package = "enformer_pytorch"
    limit = 1e-5
    runs_in_graphs = compiles = True
    has_half = True
    has_kernels = False
    is_checked = True
    short = other = cheaper = None

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
        model: nn.Module = Model.from_hparams(**sizes, heads=8, output_heads=heads)
        for layer in model.modules():
            if isinstance(layer, nn.Conv1d | nn.Linear):
                # Outputs hardly depend on sequences with usual weights, which shrink their inputs.
                nn.init.kaiming_normal_(layer.weight)
        model.to(device)
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
        return largest_error(actual, expected)


@dataclass(frozen=True)
class AlphaGenome:
    """All outputs for a human sequence, with reads of junctions between given splice sites.

    With random weights, TF32 alone makes an error of 1.3e-5 in the model as shipped.
    """

    length: int
    package = "alphagenome_pytorch"
    limit = 1e-4
    runs_in_graphs = False
    compiles = True
    has_half = True
    has_kernels = False
    is_checked = True
    short = other = cheaper = None

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
        rng = torch.Generator().manual_seed(self.length)
        # The model would choose other sites in half precision, with reads that cannot be compared.
        sites = torch.randint(self.length, (1, 4, N_SITES), generator=rng).sort().values
        return {
            "dna_sequence": random_sequence(self.length, device),
            "organism_index": torch.zeros(1, dtype=torch.long, device=device),
            "splice_site_positions": sites.to(device),
        }

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Predict all tracks."""
        return model(**inputs)

    def error(self, actual: Any, expected: Any) -> float:
        """Compare the heads."""
        return largest_error(actual, expected)


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
