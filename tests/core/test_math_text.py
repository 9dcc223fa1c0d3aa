"""Formulas in Unicode for a terminal: every formula of the catalogue, and the cases in which a reader could
take one for another.
"""

from tests.cases import each_case
from transformer_theory.cli.catalogue import summary
from transformer_theory.core.math_text import plain
from transformer_theory.theories import list_theories

CASES = {
    r"$\lVert W_k \rVert_F \to \infty$": "‖Wₖ‖_F → ∞",
    r"$\frac{\eta_z}{2T\eta_v}\sum_k v_{kl}^2$": "(η_z/(2Tηᵥ))∑ₖvₖₗ²",  # not eta_z / 2 times T eta_v
    r"$\frac{n_j}{n} R_j$": "(nⱼ/n)Rⱼ",  # not n_j / (n R_j)
    r"$\frac12 \lVert x\rVert^2$": "½‖x‖²",
    r"$e^{M h}$": "e^(Mh)",  # not (e^M) h
    r"$e^{z_l}$": "e^(zₗ)",
    r"$\nabla_K L$": "∇_K L",  # the index ends before L
    r"$x^{-1} - y$": "x⁻¹ − y",
    r"$\binom n2 \delta^d$": "C(n, 2)δᵈ",  # not n / 2
    r"$n \binom{k^d}{n}$": "n C(kᵈ, n)",
    r"$\tilde l_j \bmod S$": "l̃ⱼ mod S",
    r"$S^n (1 + \max l)$": "Sⁿ(1 + max l)",
    r"$F \max_k l_k$": "F maxₖ lₖ",
    r"$-x$": "−x",
    r"$a \ge -1$": "a ≥ −1",
    r"$\dot z_l$": "żₗ",
    r"$\overset{k}{a}$": "aᵏ",
    r"$W^\top z$": "Wᵀz",
    r"`ids` cost \$5": "ids cost $5",
}


@each_case(("text", "expected"), CASES.items())
def test_formulas(text, expected):
    assert plain(text) == expected


def test_every_formula_of_the_catalogue_is_converted():
    for theory in list_theories():
        texts = [theory.statement, *theory.assumptions, *(summary(kind) for kind in theory.experiments)]
        for claim in theory.claims:
            texts += [
                claim.statement,
                claim.measures,
                claim.control_description,
                claim.corrects,
                *claim.assumptions,
            ]
        for text in texts:
            assert not set("\\${}") & set(plain(text)), text
