r"""How long a step of ReduNet may be so that the rate reduction of the training features is sure to rise, whatever they are.

With :math:`X = \sum_i s_i u_i v_i^\top`, :math:`a_i = \sqrt\alpha s_i`, the second derivative of R in the plane of :math:`u_i v_p^\top` and
:math:`u_p v_i^\top` has the eigenvalues :math:`\alpha (1 \pm a_i a_p) / ((1 + a_i^2)(1 + a_p^2))`. As
:math:`(1 + a_i^2)(1 + a_p^2) \ge (1 + a_i a_p)^2`, they lie in :math:`[-\alpha/8, \alpha]`; so do those of the classes' shares of
:math:`R^c`, for :math:`\gamma_j \alpha_j = \alpha`. Hence :math:`\nabla^2 \Delta R \succeq -\tfrac98 \alpha`. On the unit sphere a layer's
:math:`x^+ \propto x + \eta g` maximises :math:`\langle g, x^+ - x\rangle - \tfrac1{2\eta}\|x^+ - x\|^2`, which is 0 at :math:`x^+ = x`, so

.. math::
    \Delta R(X^+) \ge \Delta R(X) + \langle g, X^+ - X\rangle - \tfrac{9\alpha}{16} \|X^+ - X\|^2 \ge \Delta R(X)
    \quad\text{if}\quad \eta \le \frac{8}{9\alpha} = \frac{8 n \epsilon^2}{9 d} .

The steps of :cite:t:`chan2022redunet` (η = 0.5, ε² = 0.1 on hundreds of samples a class in few dimensions) are far below. The
shift-invariant network with c channels has c in the place of d: the ring makes samples and dimensions alike T times as many.

Source: derived here for the layers of :cite:t:`chan2022redunet`; the argument is that of any projected gradient step.
"""


def guaranteed_step(n: int, dim: int, *, eps: float) -> float:
    r"""The step size :math:`8 n \epsilon^2 / (9 d)` up to which no layer lowers the rate reduction of its training features.

    Args:
        n: training samples.
        dim: d, or the channels of the shift-invariant network.
        eps: distortion; squared inside.
    Raises:
        ValueError: n or dim is below 1, or eps is not positive.
    Source: the module's head.
    """
    if min(n, dim) < 1 or not 0 < eps < float("inf"):
        raise ValueError(f"a step needs n, dim >= 1 and a positive distortion eps, got n {n}, dim {dim}, eps {eps}")
    return 8 * n * eps**2 / (9 * dim)
