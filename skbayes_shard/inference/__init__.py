"""The engines: functions in, named tuples out. They know no model by name.

An engine is given a *density*, a hashable object with

- ``value_and_grad(delta, data)``: log density differences from a centre and their gradients,
  for a batch of displacements ``(m, ...)``;
- ``log_density(delta, data)``: the first of these, differentiable;
- ``recentred(delta, data)``: the data with the centre moved, and the log density there;
- ``gaussian(form, points, data)``: the Gaussian with the curvature averaged over points;

for the structured variational fit also

- ``marginals(gaussian, data, n_nodes, seed)``: a Gaussian ready to be averaged over, ``q``;
- ``expected(mean, q, data)``: the log density difference expected under ``q`` around a
  displacement, and its gradient;
- ``expected_curvature(form, mean, q, data, like)``: the curvature expected there, a pytree of
  arrays that can be averaged with those of ``like``, another one or None;
- ``gaussian_of(form, curvature)``: its Gaussian;

and the data as a pytree. Densities are static arguments of compiled programs and data are
traced ones, so that refits on other data or hyperparameters compile nothing.
"""
