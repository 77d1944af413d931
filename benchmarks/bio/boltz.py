"""Workloads of bench ``models``: Boltz-2 and blocks of its trunk, with random weights.

None of the weights is zero, unlike in a new model, whose output maps and gates start as zeros.
Updates are smaller the more blocks there are, so that their sums do not grow. In half precision,
blocks run under autocast, as the package runs them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bio.boltz_features import protein_features
from benchmarks.bio.boltz_model import RECYCLES, STEPS, build_boltz2
from benchmarks.bio.comparison import largest_error
from benchmarks.bio.structures import CHECKED, FEW_STEPS, PASSES, outermost, shorter

SEQUENCES = 1024
TOKEN_CHANNELS, PAIR_CHANNELS, HEADS = 384, 128, 16
OUTPUTS = ("p_out", "linear_o", "fc3", "proj_o")
"""Maps whose results are added to tokens or pairs."""


class Autocast(nn.Module):
    """Module that runs another one under autocast."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Call the module."""
        device = next(self.inner.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            return self.inner(*args, **inputs)


def randomize(model: nn.Module, blocks: int) -> nn.Module:
    """Draw new weights, none of which is zero, for one of ``blocks`` blocks in a row."""
    rng: torch.Generator | None = None
    with torch.no_grad():
        for name, p in model.named_parameters():
            rng = rng or torch.Generator(p.device).manual_seed(blocks)
            noise = torch.randn(p.shape, generator=rng, device=p.device)
            if p.dim() > 1:
                size = blocks**-0.5 if name.split(".")[-2] in OUTPUTS else 1
                p.copy_(noise * size * p.shape[1] ** -0.5)
            else:
                p.add_(noise / 4)
    return model


def enable_kernels(model: nn.Module) -> None:
    """Let a model call cuEquivariance's kernels."""
    for module in model.modules():
        if hasattr(module, "use_kernels"):
            module.use_kernels = True


@dataclass(frozen=True)
class Trunk:
    """Tokens and pairs of one protein. The error is half the largest squared relative one."""

    blocks: int
    length: int
    package = "boltz"
    limit = 1e-4
    runs_in_graphs = compiles = True
    has_half = True
    has_kernels = True
    is_checked = True
    short = other = cheaper = None
    enable_kernels = staticmethod(enable_kernels)

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"boltz2-{self.blocks}x{self.length}"

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.length

    def build(self, device: torch.device) -> nn.Module:
        """Build the blocks with random weights, in the sizes of the package."""
        from boltz.model.layers.pairformer import PairformerModule

        torch.manual_seed(0)
        model: Any = PairformerModule(TOKEN_CHANNELS, PAIR_CHANNELS, 1, HEADS, v2=True)
        model.use_kernels = False  # which the package passes to each call
        (block,) = model.layers  # the package takes half a second to initialize each
        model.layers = nn.ModuleList(copy.deepcopy(block) for _ in range(self.blocks))
        model.to(device)
        return randomize(model, self.blocks).eval()

    def half(self, model: nn.Module) -> nn.Module:
        """Run the blocks under autocast."""
        return Autocast(model)

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the arguments of ``forward``, without padding."""
        rng = torch.Generator().manual_seed(self.length)
        n = self.length
        made = {
            "s": torch.randn(1, n, TOKEN_CHANNELS, generator=rng),
            "z": torch.randn(1, n, n, PAIR_CHANNELS, generator=rng),
            "mask": torch.ones(1, n),
            "pair_mask": torch.ones(1, n, n),
        }
        return {name: value.to(device) for name, value in made.items()}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Update tokens and pairs."""
        s, z = model(**inputs, use_kernels=outermost(model, "PairformerModule").use_kernels)
        return {"s": s, "z": z}

    def error(self, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        """Return half the squared relative error of tokens or of pairs, whichever is larger."""
        return largest_error(actual, expected)


@dataclass(frozen=True)
class Forward:
    """Whole prediction of one protein with an alignment of 1,024 sequences.

    The trunk runs once and then again for each recycling. One sample is drawn, and its confidence
    predicted. The error is half the square of the largest relative one of tokens, pairs and
    positions.
    """

    length: int
    recycles: int = RECYCLES
    steps: int = STEPS
    package = "boltz"
    limit = 1e-2
    runs_in_graphs = compiles = False
    has_half = True
    has_kernels = True
    enable_kernels = staticmethod(enable_kernels)

    @property
    def is_checked(self) -> bool:
        """True if the cheaper call takes seconds in float32."""
        return self.length <= CHECKED

    @property
    def cheaper(self) -> Forward:
        """Prediction of the same protein in fewer steps, with recycling if there is any."""
        few = min(self.recycles, PASSES - 1), min(self.steps, FEW_STEPS)
        return Forward(self.length, *few)

    @property
    def short(self) -> Forward:
        """Pass through the trunk, and as many steps as it takes to capture one."""
        return Forward(self.length, recycles=0, steps=4)

    @property
    def other(self) -> Forward:
        """Short prediction of a shorter protein."""
        return Forward(shorter(self.length), recycles=0, steps=4)

    @property
    def name(self) -> str:
        """Name in the results, with what is not run by default."""
        shortened = (self.recycles, self.steps) != (RECYCLES, STEPS)
        return f"boltz2-forward-{self.length}" + (
            f"-{self.recycles}-recycles-{self.steps}-steps" if shortened else ""
        )

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.length

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with random weights, in the sizes of the published one."""
        return copy.deepcopy(build_boltz2(device))

    def half(self, model: nn.Module) -> nn.Module:
        """Run the model under autocast."""
        return Autocast(model)

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the features."""
        return protein_features(self.length, SEQUENCES, device)

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Predict a structure, always from the same random numbers."""
        torch.manual_seed(0)
        found = model(
            inputs,
            recycling_steps=self.recycles,
            num_sampling_steps=self.steps,
            diffusion_samples=1,
            max_parallel_samples=5,
            run_confidence_sequentially=True,
        )
        return {name: found[name] for name in ("s", "z", "sample_atom_coords")}

    def error(self, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        """Return half the largest squared relative error."""
        return largest_error(actual, expected)


LENGTHS = 256, 512, 768, 1024
LONG = 3072
WORKLOADS = (
    *(Trunk(blocks, length) for blocks in (1, 64) for length in LENGTHS),
    *(Forward(length) for length in LENGTHS),
    *(Forward(length, recycles=0, steps=20) for length in (*LENGTHS, LONG)),
)
