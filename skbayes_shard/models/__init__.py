"""The models: log densities sharded over devices, their curvature, and their NumPyro spec."""
