"""Operators of genome models in plain PyTorch."""

from mlff_triton.kernels.genomics.reference.attention import capped_attention, relative_attention
from mlff_triton.kernels.genomics.reference.attention_inputs import attention_inputs
from mlff_triton.kernels.genomics.reference.attention_pool import attention_pool, paired_rows
from mlff_triton.kernels.genomics.reference.attention_residual import attention_residual
from mlff_triton.kernels.genomics.reference.convolution import convolution, sequence_windows
from mlff_triton.kernels.genomics.reference.pair_attention_inputs import pair_attention_inputs
from mlff_triton.kernels.genomics.reference.pair_contacts import pair_contacts
from mlff_triton.kernels.genomics.reference.pair_junctions import junction_reads, rotated_sites
from mlff_triton.kernels.genomics.reference.pair_maxima import pair_maxima
from mlff_triton.kernels.genomics.reference.pair_mlp import pair_mlp
from mlff_triton.kernels.genomics.reference.pair_pool import pair_pool
from mlff_triton.kernels.genomics.reference.pair_scores import pair_scores
from mlff_triton.kernels.genomics.reference.rows import linear, normalize
from mlff_triton.kernels.genomics.reference.tracks import binned_linear, tracks
from mlff_triton.kernels.ops.reference.attention import attention
