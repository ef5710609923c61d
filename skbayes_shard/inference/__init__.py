"""The engines: functions in, named tuples out. They know no model by name.

An engine is given a *density*, a hashable object with

- ``value_and_grad(delta, data)``: log density differences from a centre and their gradients,
  for a batch of displacements ``(m, ...)``;
- ``log_density(delta, data)``: the first of these, differentiable;
- ``recentred(delta, data)``: the data with the centre moved, and the log density there;
- ``gaussian(form, points, data)``: the Gaussian with the curvature averaged over points;

and the data as a pytree. Densities are static arguments of compiled programs and data are
traced ones, so that refits on other data or hyperparameters compile nothing.
"""
