"""The instance and the distortion of the claims on rates and on the optimum; the distortion is that of :cite:t:`yu2020learning`."""

EPS = 0.5**0.5  # ε² = 1/2
SIZES, RANKS, DIM = (20, 20, 20), (4, 4, 4), 12
