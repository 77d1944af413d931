"""Float32 matrix products on tensor cores, from products in lower precision."""
