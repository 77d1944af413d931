"""Order of the tiles of matrix products."""

from __future__ import annotations

import triton
import triton.language as tl

ROWS_PER_GROUP = tl.constexpr(8)


@triton.jit
def tile_in_group(tile, tiles_m, tiles_n):
    """Return the row and column, in units of tiles, of a tile in grouped order.

    Tiles are numbered down the columns of a group of eight rows, then group by group. Programs that
    run at the same time then share rows and columns of the operands, which stay in the cache.
    """
    first = tile // (ROWS_PER_GROUP * tiles_n) * ROWS_PER_GROUP
    height = tl.minimum(tiles_m - first, ROWS_PER_GROUP)
    within = tile % (ROWS_PER_GROUP * tiles_n)
    return first + within % height, within // height
