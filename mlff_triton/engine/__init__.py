"""The inference engine: a model prepared for one device, and the steps that it runs."""
