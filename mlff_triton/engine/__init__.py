"""Inference engine: models prepared for a device, and the steps that evaluate them."""
