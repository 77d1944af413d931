from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.transformer.reference import token_embedding as reference
from mlff_triton.kernels.transformer.row_blocks import RowBlocks
from mlff_triton.kernels.transformer.token_embedding import (
    LaunchSizes,
    Tables,
    launch_sizes,
    launch_token_embedding,
    token_embedding,
)
from mlff_triton.kernels.transformer.types import PackedRows
from mlff_triton.kernels.transformer.unpack_rows import unpack_rows
from mlff_triton.testing import assert_close
from tests.support.token_cases import (
    MASK_TOKEN,
    WORDS,
    assert_near,
    moved,
    random_mask,
    random_tokens,
)

POSITIONS, KINDS = 60, 3
MASKS = {
    "right": [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]],
    "middle": [[1, 0, 1, 0, 1], [0, 1, 1, 0, 1]],
    "empty first": [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
    "empty last": [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]],
    "all padding": [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
}


def random_parts(shape: tuple[int, int], channels: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return all tables with their indices, a normalization and a token for masked ones."""
    word, positions, kinds = (torch.randn(n, channels) for n in (WORDS, POSITIONS, KINDS))
    return {
        "word": word.to(dtype),
        "positions": torch.randint(POSITIONS, shape),
        "position_table": positions.to(dtype),
        "kinds": torch.randint(KINDS, shape),
        "kind_table": kinds.to(dtype),
        "norm": (torch.randn(channels).to(dtype), torch.randn(channels).to(dtype), 1e-5),
        "mask_token": MASK_TOKEN,
    }


def assert_matches(
    device: str,
    capacity: int | None = None,
    sizes: LaunchSizes | None = None,
    **inputs: Any,
) -> None:
    """Compare rows and their mapping with the reference in float64."""
    exact, expected = reference.token_embedding(**moved(inputs, torch.float64), capacity=capacity)
    x, packed = embed(sizes, capacity, **moved(inputs, device))
    n_rows, n_tokens, dtype = len(exact), inputs["ids"].numel(), inputs["word"].dtype
    assert x.shape == (n_tokens if capacity is None else capacity, exact.shape[1])
    assert x.dtype == dtype
    for found, wanted in zip(packed, expected, strict=True):
        assert found.dtype is torch.int32
        assert torch.equal(found[: len(wanted)].cpu(), wanted)
    assert x[n_rows:].isnan().all(), "an unused row was written"
    assert (packed.token[n_rows:] == torch.iinfo(torch.int32).max).all()
    assert_near(x[:n_rows], exact, dtype)


def embed(
    sizes: LaunchSizes | None = None,
    capacity: int | None = None,
    *,
    ids: Tensor,
    word: Tensor,
    mask: Tensor | None = None,
    norm: Any = None,
    mask_token: int | None = None,
    **indexed: Tensor,
) -> tuple[Tensor, PackedRows]:
    """Call the operator, or its launcher if sizes are given."""
    if sizes is None:
        options = {"norm": norm, "mask_token": mask_token, "capacity": capacity}
        return token_embedding(ids, word, mask, **indexed, **options)
    n_rows = ids.numel() if capacity is None else capacity
    tables = Tables(word, **indexed)
    return launch_token_embedding(ids, mask, tables, norm, mask_token, False, n_rows, sizes)


def two_launches(channels: int) -> LaunchSizes:
    """Return sizes with which a kernel counts tokens first, as in large batches."""
    return launch_sizes(channels)._replace(few_tokens=0)


both_routes = pytest.mark.parametrize("sizes", [launch_sizes, two_launches])


@both_routes
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks(mask, sizes, device, dtype):
    mask = torch.tensor(mask)
    parts = random_parts(mask.shape, 8, dtype)
    assert_matches(device, sizes=sizes(8), ids=random_tokens(mask), mask=mask, **parts)


@pytest.mark.parametrize("few_tokens", [0, 4096])
@pytest.mark.parametrize("shape", [(1, 50), (5, 23), (37, 2)], ids=str)
def test_many_blocks(shape, few_tokens, device, dtype):
    """Count several blocks, with several programs per sequence and several steps per program."""
    sizes = LaunchSizes(RowBlocks(4, 8, 4), count_block=16, programs=8, few_tokens=few_tokens)
    mask = random_mask(*shape)
    parts = random_parts(shape, 8, dtype)
    assert_matches(device, sizes=sizes, ids=random_tokens(mask), mask=mask, **parts)
    word = parts["word"]
    assert_matches(device, sizes=sizes, ids=random_tokens(mask), mask=mask, word=word)


@both_routes
@pytest.mark.parametrize("shape", [(1, 1), (3, 17)], ids=str)
@pytest.mark.parametrize("mask_token", [None, MASK_TOKEN])
def test_without_a_mask(shape, mask_token, sizes, device, dtype):
    ids = random_tokens(torch.ones(shape))
    parts = random_parts(shape, 33, dtype) | {"mask_token": mask_token}
    assert_matches(device, sizes=sizes(33), ids=ids, **parts)


@pytest.mark.parametrize("channels", [1, 33, 320, 3000])
def test_channels(channels, device, dtype):
    mask = random_mask(3, 9)
    parts = random_parts(mask.shape, channels, dtype)
    assert_matches(device, ids=random_tokens(mask), mask=mask, **parts)


def test_more_tokens_than_programs_count_themselves(device):
    shape = 3, 1 + launch_sizes(8).few_tokens // 3
    mask = random_mask(*shape)
    parts = random_parts(shape, 8, torch.float32)
    assert_matches(device, ids=random_tokens(mask), mask=mask, **parts)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision(half, device):
    mask = random_mask(3, 20)
    parts = random_parts(mask.shape, 33, half)
    assert_matches(device, ids=random_tokens(mask), mask=mask, **parts)


@pytest.mark.parametrize(
    "absent",
    [
        ("positions",),
        ("kinds",),
        ("positions", "position_table"),
        ("kinds", "kind_table"),
        ("norm",),
        ("mask_token",),
    ],
    ids=str,
)
def test_parts_may_be_absent(absent, device, dtype):
    mask = random_mask(2, 11)
    parts = random_parts(mask.shape, 33, dtype)
    kept = {name: part for name, part in parts.items() if name not in absent}
    assert_matches(device, ids=random_tokens(mask), mask=mask, **kept)


def test_normalization_without_bias(device, dtype):
    ids, word = torch.randint(WORDS, (2, 5)), torch.randn(WORDS, 33, dtype=dtype)
    assert_matches(device, ids=ids, word=word, norm=(torch.randn(33, dtype=dtype), None, 0.1))


@both_routes
@pytest.mark.parametrize("capacity", [0, 1, 7, 22, 40])
def test_capacities(capacity, sizes, device, dtype):
    """Rows beyond the capacity are neither written nor indexed; unused rows are not written."""
    mask = random_mask(4, 8)
    parts = random_parts(mask.shape, 8, dtype)
    assert_matches(device, capacity, sizes(8), ids=random_tokens(mask), mask=mask, **parts)


@pytest.mark.parametrize(
    "kind",
    [torch.bool, torch.int8, torch.uint8, torch.int32, torch.half, torch.bfloat16, torch.double],
)
def test_dtypes_of_masks_and_indices(kind, device):
    mask = random_mask(3, 7)
    parts = random_parts(mask.shape, 8, torch.float32)
    for name in ("positions", "kinds"):
        parts[name] = parts[name].int()
    assert_matches(device, ids=random_tokens(mask).int(), mask=mask.to(kind), **parts)


def test_any_number_but_zero_keeps_a_token(device):
    ids, word = torch.randint(WORDS, (1, 4)), torch.randn(WORDS, 8)
    for mask in (torch.tensor([[-1, 0, 2, 256]]), torch.tensor([[-0.5, 0.0, 1e-3, torch.inf]])):
        assert_matches(device, ids=ids, mask=mask, word=word)


def test_strided_inputs(device, dtype):
    mask = random_mask(9, 4).T
    parts = random_parts(mask.shape, 8, dtype)
    parts["word"] = parts["word"].T.contiguous().T
    assert_matches(device, ids=random_tokens(mask), mask=mask, **parts)
    keep_all = torch.ones(1, 1).expand(4, 9)
    assert_matches(device, ids=random_tokens(keep_all), mask=keep_all, **parts)


@both_routes
def test_token_dropout_is_that_of_esm2(sizes, device):
    """Shares are counted by hand; a masked token counts even if it is not kept."""
    m = MASK_TOKEN
    ids = torch.tensor([[1, m, 2, 3], [4, m, 5, m], [m, 6, 1, 1]], device=device)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], device=device)
    word = torch.randn(WORDS, 8, device=device, dtype=torch.float64)
    x, packed = embed(sizes(8), ids=ids, word=word, mask=mask, mask_token=m)
    shares = 1 / 4, 2 / 3, 1 / 2
    rows = [
        word[i] * (i != m) * 0.88 / (1 - share)
        for tokens, count, share in zip(ids.tolist(), (4, 3, 2), shares, strict=True)
        for i in tokens[:count]
    ]
    assert_close(x[: packed.row_ptr[-1]], torch.stack(rows), 0)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_sequences_of_masked_tokens_alone_are_nan(device):
    ids = torch.tensor([[MASK_TOKEN, MASK_TOKEN], [1, MASK_TOKEN]], device=device)
    word = torch.randn(WORDS, 8, device=device)
    x, _ = token_embedding(ids, word, mask_token=MASK_TOKEN)
    assert x.isnan().all(1).tolist() == [True, True, False, False]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["ids", "positions", "kinds"])
def test_rows_of_indices_outside_of_their_table_are_nan(name, device):
    shape = 2, 5
    inputs = {"ids": torch.randint(WORDS, shape)} | random_parts(shape, 33, torch.float32)
    inputs[name][0, 3], inputs[name][1, 0] = -1, 1000
    x, _ = token_embedding(**moved(inputs, device))
    assert x.isnan().all(1).nonzero().flatten().tolist() == [3, 5]
    assert x.isnan().any(1).sum() == 2


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0)])
def test_no_tokens(shape, device):
    ids = torch.zeros(shape, dtype=torch.int64, device=device)
    word = torch.randn(WORDS, 8, device=device)
    x, packed = token_embedding(ids, word, ids)
    assert x.shape == (0, 8)
    assert packed.row_ptr.tolist() == [0] * (shape[0] + 1)
    assert unpack_rows(x, packed.row_of, shape).shape == (*shape, 8)


@pytest.mark.gpu
def test_a_cuda_graph_follows_the_mask(device):
    ids = torch.randint(WORDS, (4, 2000), device=device)
    mask = torch.ones_like(ids)
    word = torch.randn(WORDS, 64, device=device)

    def round_trip() -> Tensor:
        x, packed = token_embedding(ids, word, mask, mask_token=MASK_TOKEN)
        return unpack_rows(x, packed.row_of, ids.shape)

    round_trip()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = round_trip()
    for seed in range(3):
        torch.manual_seed(seed)
        ids.random_(WORDS)
        mask.random_(2)
        graph.replay()
        captured = found.clone()
        assert torch.equal(captured, round_trip())
        assert torch.equal(captured.any(2), (mask != 0) & (ids != MASK_TOKEN))


def test_there_and_back(device, dtype):
    mask = random_mask(5, 9)
    ids = random_tokens(mask).to(device)
    word = torch.randn(WORDS, 33, device=device, dtype=dtype)
    mask = mask.to(device)
    x, packed = token_embedding(ids, word, mask)
    found = unpack_rows(x, packed.row_of, ids.shape)
    assert torch.equal(found, word[ids.clamp(min=0)] * mask[:, :, None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.ones(4).long()}, r"ids has the shape \[4\] instead of \[B, L\]"),
        ({"ids": torch.ones(2, 4)}, "ids is torch.float32: use int64 or int32"),
        ({"word": torch.ones(8)}, r"word has the shape \[8\] instead of \[\*, C\]"),
        ({"word": torch.ones(5, 8).long()}, "word is torch.int64"),
        ({"word": torch.ones(5, 0)}, "word has 0 channels: use 1 to 16384"),
        ({"word": torch.ones(1, 20000)}, "word has 20000 channels"),
        ({"mask": torch.ones(2, 3)}, r"mask has the shape \[2, 3\] instead of \[2, 4\]"),
        ({"positions": torch.ones(8).long()}, r"positions has the shape \[8\] instead of"),
        ({"positions": torch.ones(2, 4)}, "positions is torch.float32"),
        ({"position_table": torch.ones(9, 7)}, r"position_table .* instead of \[\*, 8\]"),
        (
            {"position_table": torch.ones(9, 8).half()},
            "position_table is torch.float16: use",
        ),
        ({"position_table": None}, "positions are given without their table"),
        ({"positions": None, "position_table": torch.ones(3, 8)}, "has 3 rows instead of 4"),
        ({"kinds": torch.ones(2, 4).long()}, "kinds are given without their table"),
        ({"kind_table": torch.ones(0, 8)}, "the table of kinds has 0 rows instead of 1"),
        ({"norm": (torch.ones(7), torch.ones(8), 0.1)}, r"weight .* instead of \[8\]"),
        ({"norm": (torch.ones(8), torch.ones(7), 0.1)}, r"bias .* instead of \[8\]"),
        ({"capacity": -1}, "8 tokens cannot be -1 rows"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    fitting = {
        "ids": torch.ones(2, 4).long(),
        "word": torch.ones(5, 8),
        "positions": torch.ones(2, 4).long(),
        "position_table": torch.ones(9, 8),
    }
    with pytest.raises(InputError, match=message):
        token_embedding(**moved(fitting | change, device))


def test_needs_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="Triton kernels need a GPU"):
        token_embedding(torch.ones(2, 4).long(), torch.ones(5, 8))


def test_derivatives_of_the_reference():
    mask, word = random_mask(2, 3), torch.randn(WORDS, 2, dtype=torch.float64, requires_grad=True)
    ids = random_tokens(mask)

    def embedded(word: Tensor) -> Tensor:
        return reference.token_embedding(ids, word, mask, mask_token=MASK_TOKEN)[0]

    assert torch.autograd.gradcheck(embedded, (word,))
