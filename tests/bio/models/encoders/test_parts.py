"""Parts of encoders that no adapter supports as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton.bio.core.fast_forward import FallbackWarning, Options
from mlff_triton.bio.models.encoders.sequence_parts import resembles_encoder
from mlff_triton.bio.models.encoders.torch_modules import trace_mlp
from mlff_triton.bio.models.families import FAMILIES
from mlff_triton.testing import assert_close

CHANNELS, HEADS = 48, 4
LENGTHS = (7, 3, 5)
BFLOAT16 = pytest.param(
    "bf16",
    marks=pytest.mark.skipif(
        not torch.cuda.is_available(), reason="Triton's interpreter multiplies bfloat16 as integers"
    ),
)
PADDING = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None]

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")


def replaced(module: nn.Module, options: Options, path: str = "") -> Iterator[str]:
    """Replace all known parts, outermost first, and yield their paths."""
    for adapter in (adapter for family in FAMILIES for adapter in family.parts):
        if adapter.fits(module):
            module.forward = adapter(module, options)
            yield f"{path}: {adapter.__name__}"
            return
    for name, child in module.named_children():
        yield from replaced(child, options, f"{path}.{name}".lstrip("."))


def replace(module: nn.Module, backend: str = "torch", precision: str | None = None) -> list[str]:
    return list(replaced(module, Options(precision=precision, backend=backend)))


def torch_encoder(**options: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        CHANNELS, HEADS, 80, activation="gelu" if options["norm_first"] else "relu", **options
    )
    norm = nn.LayerNorm(CHANNELS)
    encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    return randomized(encoder)


def randomized(module: nn.Module) -> nn.Module:
    """Convert a module to float64 and give all its parts different weights."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.15 * torch.randn(parameter.shape) + (parameter == 1))
    return module.double().eval().requires_grad_(False)


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x)


class Mlp(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.fc1, self.act = nn.Linear(CHANNELS, width), Gelu()
        self.drop, self.fc2 = nn.Dropout(0.1), nn.Linear(width, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.attn = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)
        self.mlp = Mlp()

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        y, _ = self.attn(y, y, y, key_padding_mask=padding, need_weights=False)
        x = x + y
        return x + self.mlp(self.norm2(x))


class HomeMade(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, CHANNELS)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(
            nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 20), nn.SiLU(), nn.Linear(20, 9)
        )

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, padding)
        return self.head(x)


def sequences(dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    return torch.randn(len(LENGTHS), max(LENGTHS), CHANNELS).to(device, dtype)


@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_of_torch(norm_first, batch_first, padding):
    model = torch_encoder(norm_first=norm_first, batch_first=batch_first)
    x = sequences()
    given = x if batch_first else x.transpose(0, 1)
    with torch.inference_mode():
        expected = model(given, src_key_padding_mask=padding)
        assert replace(model) == [": TransformerEncoderForward"]
        actual = model(given, src_key_padding_mask=padding)
    assert actual.shape == expected.shape
    assert actual.is_contiguous()
    there = ~PADDING if padding is not None else torch.ones_like(PADDING)
    there = there if batch_first else there.T
    assert_close(actual[there], expected[there], 0)
    assert not actual[~there].any()


@pytest.mark.parametrize("norm_first", [True, False])
def test_single_layers(norm_first):
    model = nn.ModuleList(torch_encoder(norm_first=norm_first, batch_first=True).layers)
    x = sequences()
    with torch.inference_mode():
        expected = model[1](model[0](x, src_key_padding_mask=PADDING), None, PADDING)
        assert replace(model) == ["0: TransformerEncoderForward", "1: TransformerEncoderForward"]
        actual = model[1](model[0](x, src_key_padding_mask=PADDING), None, PADDING)
    assert_close(actual[~PADDING], expected[~PADDING], 0)


def test_layers_with_other_parts_are_left_alone_and_so_are_subclasses():
    class Special(nn.TransformerEncoderLayer):
        def forward(self, src: Tensor) -> Tensor:
            return -super().forward(src)

    odd = nn.TransformerEncoderLayer(CHANNELS, HEADS, activation=functional.softplus)
    paths = ["self_attn: AttentionForward", "norm1: LayerNormForward", "norm2: LayerNormForward"]
    assert replace(odd) == paths
    assert replace(Special(CHANNELS, HEADS)) == paths


@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
def test_home_made_encoder(padding):
    model = randomized(HomeMade())
    tokens = torch.randint(9, (len(LENGTHS), max(LENGTHS)))
    with torch.inference_mode():
        expected = model(tokens, padding)
        paths = replace(model)
        actual = model(tokens, padding)
    inner = ["norm1: LayerNorm", "norm2: LayerNorm", "attn: Attention", "mlp: MLP"]
    blocks = [f"blocks.{n}.{part}Forward" for n in range(2) for part in inner]
    assert paths == [*blocks, "head: MLPForward"]
    there = torch.ones_like(PADDING) if padding is None else ~padding
    assert_close(actual[there], expected[there], 0)


def test_weights_are_read_again_after_they_changed():
    model = randomized(Mlp())
    replace(model)
    other, x = randomized(Mlp()), sequences()
    model(x)
    model.load_state_dict(other.state_dict())
    assert_close(model(x), other(x), 0)


def test_what_changed_its_structure_computes_as_it_is():
    model, x = randomized(Mlp()), sequences()
    replace(model)
    before = model(x)
    model.act = nn.Softplus().eval()
    expected = model.fc2(functional.softplus(model.fc1(x)))
    with pytest.warns(FallbackWarning, match="its structure has changed"):
        assert_close(model(x), expected, 0)
    model.act = Gelu().eval()
    assert_close(model(x), before, 0)


def test_nothing_changes_without_a_gpu_by_default():
    model, x = randomized(HomeMade()), torch.randint(9, (2, 5))
    with torch.inference_mode():
        expected = model(x)
        assert replace(model, "auto")
        assert torch.equal(model(x), expected)


def test_chains():
    a, b = nn.Linear(8, 16), nn.Linear(16, 8)
    for activation, name in (
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), "gelu_tanh"),
        (nn.ReLU(), "relu"),
        (nn.SiLU(), "silu"),
        (Gelu(), "gelu"),
    ):
        steps = trace_mlp(nn.Sequential(a, activation, nn.Dropout(0.1), b, nn.Dropout(0.1)))
        assert steps == [(a, name), (b, "none")]
    norm = nn.LayerNorm(16)
    assert trace_mlp(nn.Sequential(a, norm, nn.ReLU(), b)) == [
        (a, "none"),
        (norm, "relu"),
        (b, "none"),
    ]


def test_what_is_no_chain():
    class Gated(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(self.act(self.fc1(x)) * self.fc1(x))

    class Added(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    class Branched(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(self.fc1(x)) if x.sum() > 0 else x

    class Scaled(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    class Casting(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    class CastingPart(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.fc1(x)
            return self.fc2(x)

    hooked = Mlp()
    hooked.fc1.forward = lambda x: x
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)
    others = nn.Sequential(a, nn.Softplus(), b), nn.Sequential(a, nn.ReLU(), Half(8, 8))
    others += nn.Sequential(a, nn.ReLU()), nn.Sequential(nn.ReLU(), a, b), nn.Linear(8, 8)
    others += Casting(), CastingPart()
    for module in (Gated(), Added(), Branched(), Scaled(), hooked, *others):
        assert trace_mlp(module) is None


def test_chains_are_traced_outside_of_autocast():
    class Exact(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        for model in (Mlp(), Exact()):
            assert trace_mlp(model) == [(model.fc1, "gelu"), (model.fc2, "none")]
        assert torch.is_autocast_enabled("cpu")


def test_what_looks_like_an_encoder():
    assert resembles_encoder(HomeMade())
    assert resembles_encoder(torch_encoder(norm_first=True, batch_first=True))
    layers = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)]
    assert resembles_encoder(nn.ModuleList(layers))
    assert not resembles_encoder(nn.ModuleList(layers[:1]))
    assert not resembles_encoder(Mlp())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"need_weights": True}, "need_weights is not supported"),
        ({"attn_mask": torch.eye(7) > 0}, "attn_mask is not supported"),
        ({"key": torch.zeros(3, 7, CHANNELS).double()}, "not the same tensor"),
        ({"key_padding_mask": torch.zeros(3, 7).double()}, "not a boolean tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_attention_refuses(arguments, reason):
    model = randomized(nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True))
    x = sequences()
    given = {"query": x, "key": x, "value": x, "need_weights": False} | arguments
    expected = model(**given)
    replace(model)
    with pytest.warns(FallbackWarning, match=reason):
        actual = model(**given)
    assert_close(actual[0], expected[0], 0)


def test_fallbacks():
    x = sequences()
    model = randomized(Mlp())
    replace(model)
    with pytest.warns(FallbackWarning, match="the module is in training mode"):
        model.train()(x)
    model.eval()
    with pytest.warns(FallbackWarning, match="gradients are required"):
        assert model(x.clone().requires_grad_()).requires_grad
    model = randomized(Mlp()).requires_grad_(True)
    replace(model)
    with pytest.warns(FallbackWarning, match="gradients are required"):
        assert model(x).requires_grad
    called = []
    model.act.register_forward_hook(lambda *_: called.append(1))
    with pytest.warns(FallbackWarning, match="a submodule has hooks"), torch.inference_mode():
        model(x)
    assert called


def test_hooks_of_a_replaced_module_are_called():
    model, called = randomized(Mlp()), []
    model.register_forward_hook(lambda *_: called.append(1))
    replace(model)
    model(sequences())
    assert called


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kernels_of_layers(norm_first, dtype, device):
    """The expected values are from a CPU: PyTorch's fast path on a GPU has a different GELU."""
    model, x = torch_encoder(norm_first=norm_first, batch_first=True), sequences()
    with torch.inference_mode():
        expected = model(x, src_key_padding_mask=PADDING)
        model.to(device, dtype)
        replace(model, "triton")
        actual = model(x.to(device, dtype), src_key_padding_mask=PADDING.to(device)).cpu()
    assert actual.dtype is dtype
    assert_close(actual[~PADDING], expected[~PADDING], 1, dtype)


@pytest.mark.parametrize("precision", [None, "fp16", BFLOAT16])
def test_kernels_of_parts(precision, device):
    model = randomized(HomeMade()).to(device)
    tokens = torch.randint(9, (len(LENGTHS), max(LENGTHS)), device=device)
    padding = PADDING.to(device)
    with torch.inference_mode():
        expected = model(tokens, padding)[~padding]
        replace(model.float(), "triton", precision)
        actual = model(tokens, padding)[~padding]
    assert actual.dtype is torch.float32
    error = {None: 1e-5, "fp16": 1e-2, "bf16": 6e-2}[precision]
    assert (actual - expected).abs().max() < error * expected.abs().max()
