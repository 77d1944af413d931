"""Operators of genome models as fused Triton kernels."""

from mlff_triton.kernels.genomics.attention import capped_attention, relative_attention
from mlff_triton.kernels.genomics.attention_inputs import attention_inputs
from mlff_triton.kernels.genomics.attention_pool import attention_pool, paired_rows
from mlff_triton.kernels.genomics.attention_residual import attention_residual
from mlff_triton.kernels.genomics.convolution import convolution, sequence_windows
from mlff_triton.kernels.genomics.pair_attention_inputs import pair_attention_inputs
from mlff_triton.kernels.genomics.pair_contacts import pair_contacts
from mlff_triton.kernels.genomics.pair_junctions import junction_reads, rotated_sites
from mlff_triton.kernels.genomics.pair_maxima import pair_maxima
from mlff_triton.kernels.genomics.pair_mlp import pair_mlp
from mlff_triton.kernels.genomics.pair_pool import pair_pool
from mlff_triton.kernels.genomics.pair_scores import pair_scores
from mlff_triton.kernels.genomics.rows import linear, normalize
from mlff_triton.kernels.genomics.tracks import binned_linear, tracks
from mlff_triton.kernels.ops.attention import attention
