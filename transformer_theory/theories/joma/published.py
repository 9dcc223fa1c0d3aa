"""Numbers to compare with: recomputed from the published settings by an independent route, since the papers print none.

Fig. 4: a plain loop over the published descent (ten components from torch's seed 0, T = 3, 5000 steps of 0.02 from 0.05). Ratios of
ln(1/delta): the time as an integral over ln(delta), inverted. Co-occurrence on a tree of three binary edges: the formula, and two
million draws of the tree, which gave .72384, .58824 and .52302 (sd .0005). The tests repeat all routes. The recoveries of Table 1 are
second-hand: we could not read the table, so they are told beside our numbers and compared with nothing. Source: :cite:t:`tian2024joma`.
"""

FIG4_ENTROPY = {"at the start": 2.3026, "least": 0.9416, "at the end": 1.5493}  # nats
FIG4_LEAST_AT = 669  # step
FIG4_COMPONENTS = (0.954, 1.067, 1.594, 2.180, 2.335, 2.363, 2.894, 2.899, 3.305, 3.689)
RATIO_MU = (3.0, 2.0, 1.0, 0.5)
RATIOS = {2.0: (59.3, 4.01, 1.19), 20.0: (77.7, 6.30, 1.43), 1000.0: (79.40, 6.516, 1.4545)}  # time -> ratios to the last component
TREE_RHO, TREE_ZERO, TREE_LEVELS = 0.7, (0.4, 0.82), 4  # the mean of p_k is .61
TREE_CO_OCCURRENCE = {1: 0.72419, 2: 0.58904, 3: 0.52282}  # levels up to the common ancestor -> P(y_l = 1 | y_m = 1)
SECOND_HAND_RECOVERY = ("0.94 to 1.00", "0.55 to 0.81")  # of the latents of layer 0 and 1, over the settings of Table 1
