"""All tolerances and size limits of the solvers, each named after the quantity that it bounds.

The constraints are scaled before a solver gets them: the largest right-hand side is one, so margins and KKT
residuals are dimensionless. An RTOL is relative to the quantity that its comment names, an ATOL is in units
of a margin.
"""

import numpy as np

EPSILON = float(np.finfo(float).eps)

# ---- accepted residuals and sizes
FROBENIUS_KKT_TOL = 1e-12
NUCLEAR_KKT_TOL = 1e-9
OTHER_KKT_TOL = 1e-8
# largest KKT residual of a Frobenius solution from which the solvers in other norms start
START_KKT_TOL = 1e-3
LENGTH_RANGE = (1e-140, 1e140)  # lengths of constraints whose squares stay in the range of float64

# ---- contradictions among constraints, relative to the sum of the lengths of the terms of the combination
# largest length of a combination that may prove infeasibility; a W that met its constraints would be too long
CONTRADICTION_RTOL = 1e-12
# a combination whose squared length, from inner products, exceeds this is certainly not zero
NULL_SQUARE_RTOL = 1e-10

# ---- ranks and factorisations
GRAM_RANK_RTOL = 1e-14  # eigenvalues of a Gram matrix up to this, relative to the largest, count as zero
NULL_RANK_RTOL = 1e-13  # the same for the Gram matrix of contradictory constraints
# singular values of the equations up to this, relative to the largest, count as zero
EQUATION_RANK_RTOL = 1e-11
# a larger part of a right-hand side that no W can reach, relative to the largest right-hand side, is a
# contradiction
EQUATION_RTOL = 1e-9
WEIGHT_RTOL = 1e-10  # lengths and weights that count as zero, relative to the largest
# ratio of the smallest to the largest pivot above which a Cholesky factor replaces the eigenvectors
CHOLESKY_RTOL = 1e-5
PIVOTING_RTOL = 1e-4  # ratio of the smallest to the largest pivot above which block pivoting is tried
# relative increase of diagonals that makes matrices of dependent constraints regular; refinement removes its
# effect
RIDGE = 1e-11
SIGN_ATOL = 1e-14  # in batches, a multiplier or slack below minus this has the wrong sign
MARGIN_ATOL = 4e-15  # largest error of margins on the active set at which the refinement of a batch ends

# ---- counts of iterations
REFINEMENTS = 4  # refinements of W on an active set; each gains as many digits as the factorisation has
ROW_REFINEMENTS = 12  # refinements of W on nearly dependent constraints; each gains few digits
PATIENCE = 3  # rounds of pivoting that may pass without a new minimum of the number of wrong signs
PIVOTING_ROUNDS = 40
EXCHANGES = 200  # largest number of corrections of an active set; usually 0 or 1 is needed
WORKING_SET_ROUNDS = 100
NEWTON_STEPS = 8
INTERIOR_POINT_ROUNDS = 60
PRIMAL_ROUNDS = 25  # rounds of the interior-point method on W; infeasible problems use them all
# accuracies of the interior-point method on W; a solution on the active set is tried after each
PRIMAL_STAGES = (1e-3, 1e-6, 1e-9)

# ---- sizes at which one method becomes faster than another
LEAST_SQUARES_SIZE = 16  # below this number of constraints, least squares are faster than pivoting
# up to this number of constraints, least squares on a root of the Gram matrix are faster than pivoting on it
GRAM_ONLY_SIZE = 64
# above this number of constraints, working sets are faster; the Gram matrix of all constraints is then not
# formed
DIRECT_SIZE = 300
BATCHED_SIZE = 128  # above this number of constraints, a batch is solved one problem at a time
# up to this number of entries of W, batches with more constraints than entries are solved by steps on W
PRIMAL_ENTRIES = 64
PRIMAL_CACHE = 600_000  # number of entries of the constraints of one block of such a batch
# up to this number of independent constraints, pivoting on the whole Gram matrix is faster than working sets
PIVOTED_SIZE = 2_000
WORKING_SET_SIZE = 12_000  # largest working set: its Gram matrix takes 1.2 GB
# size of the first working set, and number of constraints that may always join a set
FIRST_WORKING_SET, WORKING_SET_GROWTH = 200, 100
DENSE_SIZE = 10**7  # largest number of entries at which the constraints are formed as matrices
# number of entries of the Gram matrices of one block of a batch; they then stay in the processor's cache
FROBENIUS_CACHE = 2**17
NUCLEAR_CACHE = 2**18  # the same for the nuclear norm
