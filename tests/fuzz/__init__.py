"""A seeded campaign of damaged, hostile and absurd input.

``python -m tests.fuzz`` runs it with new seeds; the tests in this folder run a small part of it
with fixed ones. Each case is drawn from a seed, written to a folder, and checked in a process of
its own. It passes if an independent oracle confirms the result, or if the package refuses the
input with an exception of its own and a message of one line.
"""
