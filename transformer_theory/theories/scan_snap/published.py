"""Published numbers of training runs on synthetic data and on text.

``ENTROPY`` is the table behind Figure 6 of :cite:t:`tian2023scan`: the entropy of attention over the distinct
tokens of each class, renormalised, averaged over classes, after 100 steps, with its mean and standard
deviation over ten seeds. The paper does not define the entropy; with this definition our runs reproduce the
table. ``LOSS`` is the released log of the training run behind Figure 4.
"""

import numpy as np

LAST = (1, 3, 5, 10)  # numbers of query tokens, with two classes each: K = 2, 6, 10, 20
ETA_Z = (0.5, 1.0, 2.0, 3.0)
RATIOS = (1.0, 2.0, 5.0, 10.0)  # eta_Y / eta_Z

# [LAST, ETA_Z, RATIOS]
ENTROPY = np.array(
    [
        [
            [1.971, 2.007, 2.066, 2.092],
            [1.871, 1.937, 2.022, 2.053],
            [1.699, 1.810, 1.934, 1.900],
            [1.551, 1.708, 1.786, 1.825],
        ],
        [
            [2.019, 1.988, 2.031, 2.063],
            [1.963, 1.920, 1.982, 2.024],
            [1.842, 1.809, 1.899, 1.955],
            [1.737, 1.715, 1.821, 1.839],
        ],
        [
            [2.026, 1.994, 2.020, 2.055],
            [1.995, 1.931, 1.971, 2.014],
            [1.906, 1.816, 1.884, 1.926],
            [1.817, 1.718, 1.802, 1.831],
        ],
        [
            [2.033, 2.012, 2.018, 2.051],
            [2.027, 1.975, 1.976, 2.015],
            [1.990, 1.888, 1.899, 1.947],
            [1.940, 1.805, 1.829, 1.875],
        ],
    ]
)
ENTROPY_SD = np.array(
    [
        [
            [0.028, 0.032, 0.017, 0.016],
            [0.052, 0.052, 0.036, 0.030],
            [0.101, 0.099, 0.068, 0.200],
            [0.155, 0.152, 0.170, 0.331],
        ],
        [
            [0.010, 0.012, 0.007, 0.005],
            [0.015, 0.018, 0.009, 0.008],
            [0.024, 0.027, 0.018, 0.020],
            [0.032, 0.038, 0.030, 0.100],
        ],
        [
            [0.005, 0.007, 0.007, 0.006],
            [0.007, 0.011, 0.010, 0.009],
            [0.012, 0.022, 0.020, 0.025],
            [0.021, 0.032, 0.033, 0.050],
        ],
        [
            [0.004, 0.004, 0.004, 0.003],
            [0.003, 0.005, 0.006, 0.006],
            [0.005, 0.009, 0.013, 0.015],
            [0.006, 0.013, 0.019, 0.023],
        ],
    ]
)

# step -> loss, nats, one run with eta_Y = eta_Z = 1
LOSS = {
    0: 3.5264,
    2: 2.3679,
    4: 0.7335,
    6: 0.1608,
    8: 0.0444,
    10: 0.01295,
    20: 2.05e-4,
    30: 5.3e-5,
    50: 2.6e-5,
    98: 2.2e-5,
}

# thresholds on attention in Figures 11 and 12, near 1/M: (lowest, highest) for each entry of LAST
THRESHOLDS = ((0.028, 0.038), (0.012, 0.016), (0.0075, 0.0105), (0.004, 0.005))
