"""Every tolerance and size limit of the solvers, named by what it bounds.

Constraints are scaled before a solver sees them: the largest right-hand side is one, so margins and KKT residuals have no unit. An RTOL is
relative to the quantity that its comment names, an ATOL is in units of a margin.
"""

import numpy as np

EPSILON = float(np.finfo(float).eps)

# ---- what is accepted
FROBENIUS_KKT_TOL = 1e-12
NUCLEAR_KKT_TOL = 1e-9
OTHER_KKT_TOL = 1e-8
START_KKT_TOL = 1e-3  # of a Frobenius solution from which the solvers in other norms can start
LENGTH_RANGE = (1e-140, 1e140)  # of a constraint: outside, the square of its length leaves the range of float64

# ---- contradictions among constraints, relative to the sum of the lengths of the terms of the combination
CONTRADICTION_RTOL = 1e-12  # of a combination that may prove infeasibility: the margins of a W that meets its constraints have no digits
NULL_SQUARE_RTOL = 1e-10  # of the squared length of the combination from inner products; above this it is certainly not zero

# ---- ranks and factorisations
GRAM_RANK_RTOL = 1e-14  # eigenvalues of a Gram matrix, relative to the largest
NULL_RANK_RTOL = 1e-13  # the same, for the null space of contradictory constraints
EQUATION_RANK_RTOL = 1e-11  # singular values of the equations, relative to the largest
EQUATION_RTOL = 1e-9  # parts of right-hand sides that no W can reach, relative to the largest
WEIGHT_RTOL = 1e-10  # lengths and weights that are zero up to rounding, relative to the largest
CHOLESKY_RTOL = 1e-5  # ratio of the smallest to the largest pivot above which a Cholesky factor replaces the eigenvectors
PIVOTING_RTOL = 1e-4  # ratio of the smallest to the largest pivot above which block pivoting is tried
RIDGE = 1e-11  # added to unit diagonals so that dependent constraints can be factorised; refinement removes its effect
SIGN_ATOL = 1e-14  # a multiplier or slack of a batch below minus this has the wrong sign
MARGIN_ATOL = 4e-15  # batches are refined until margins on the active set are wrong by at most this

# ---- counts of iterations
REFINEMENTS = 4  # of W on an active set; each gains as many digits as the factorisation has
ROW_REFINEMENTS = 12  # of W on nearly dependent constraints; each gains few digits
PATIENCE = 3  # rounds of pivoting that are allowed without fewer wrong signs
PIVOTING_ROUNDS = 40
EXCHANGES = 200  # corrections of an active set; mostly 0 or 1
WORKING_SET_ROUNDS = 100
NEWTON_STEPS = 8
INTERIOR_POINT_ROUNDS = 60

# ---- sizes at which one method becomes faster than another
LEAST_SQUARES_SIZE = 16  # constraints up to which least squares are faster than pivoting
GRAM_ONLY_SIZE = 64  # constraints up to which multipliers are computed from inner products alone
DIRECT_SIZE = 300  # constraints beyond which working sets are faster; the Gram matrix of all constraints is then not formed
BATCHED_SIZE = 128  # constraints beyond which a batch is solved one problem at a time
PIVOTED_SIZE = 2_000  # independent constraints up to which pivoting on the whole Gram matrix is faster than working sets
WORKING_SET_SIZE = 12_000  # largest working set: its Gram matrix takes 1.2 GB
FIRST_WORKING_SET, WORKING_SET_GROWTH = 200, 100  # constraints of the first working set, and the least number that may join a set
DENSE_SIZE = 10**7  # entries of constraints as matrices: more are not formed
FROBENIUS_CACHE = 2**17  # entries of the Gram matrices worked on at a time, so that they stay in the processor's cache
NUCLEAR_CACHE = 2**18
