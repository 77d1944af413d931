"""Enformer of the package enformer-pytorch."""
