"""Measurements. Each script runs as ``python -m benchmarks.NAME``; see ``--help`` of each."""
