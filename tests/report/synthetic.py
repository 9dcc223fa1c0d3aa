"""A made-up comparison with made-up theories: every number here is synthetic, none was measured."""

import numpy as np

from transformer_theory.core.claims import Claim, Evidence
from transformer_theory.core.measurement import assumption, finding, not_applicable
from transformer_theory.core.plotting import axes, heatmap, label_ends, line, text_figure
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.theory import Theory

SVM, SCAN = Source("tarzanagh2023transformers", "Thm. 3"), Source("tian2023scan")
RATE, WHITE = Source("yu2020learning", "Thm. A.6"), Source("yu2023white")
STEPS = tuple(round(600 * (i / 13) ** 2) for i in range(14))
MODELS = ("ViT", "CRATE (paper form)")
DRAWN = (("attention_svm", "raw"), ("crate", "raw"), ("crate", "ViT"))  # what the rooms draw: a figure takes a second
IMAGES = 3


def claim(name, statement, source, control):
    return Claim(
        id=name,
        statement=statement,
        source=source,
        assumptions=("tokens and query in general position", "the selection is feasible"),
        check=lambda generator: Evidence(1.0, 0.99, ">="),
        control=lambda generator: Evidence(0.4, 0.99, ">="),
        control_description=control,
    )


def draw(room, text):
    def figure(result):
        if f"{room}/curve" not in result.arrays:
            return text_figure(f"{room}: nothing to draw")
        made, (left, right) = axes(1, 2)
        curve = result.arrays[f"{room}/curve"]
        line(left, np.arange(len(curve)), curve, name=room, label="measured", null=0.1)
        left.set(title=text, xlabel="iteration")
        label_ends(left)
        heatmap(right, result.arrays[f"{room}/matrix"], r"$|W|$")
        right.set_title("the matrix")
        return made

    return figure


def theory(name, title, question, statement, source, order, answer, claims):
    return Theory(
        name=name,
        title=title,
        question=question,
        statement=statement,
        sources=(source,),
        assumptions=("Each input has exactly one optimal token.", r"Step sizes are small: $\eta \le 1/L$."),
        claims=claims,
        experiments=(),
        needs=("tokens",),
        predict_and_measure=lambda data, generator: iter(()),
        reducers=lambda: (),
        draw=draw(name, answer),
        order_parameter=order,
        answer=answer,
    )


THEORIES = (
    theory(
        "attention_svm",
        "Attention as a support vector machine",
        "Where does gradient descent send the attention weights?",
        r"""Gradient descent on the combined key-query matrix $W$ with scores $x_t^\top W z$ diverges in norm and converges in direction,
$$\frac{W_s}{\lVert W_s \rVert_F} \to \frac{W^{\mathrm{mm}}}{\lVert W^{\mathrm{mm}} \rVert_F}, \qquad
W^{\mathrm{mm}} = \operatorname*{arg\,min}_W \lVert W \rVert_F \ \text{ subject to } \ (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 ,$$

for every input $i$ and token $t \ne a_i$.""",
        SVM,
        "cosine to the max-margin direction",
        "cosine of W to the max-margin direction",
        (
            claim(
                "attention_svm/global-direction",
                r"With one optimal token per input, $\cos(W_s, W^{\mathrm{mm}}) \to 1$ from $W_0 = 0$.",
                SVM,
                "the direction of the second-best token in place of the best",
            ),
            claim(
                "attention_svm/local-selection", r"Descent near a locally optimal selection stays: $a_i(s) = a_i(0)$.", SVM, "a far start"
            ),
        ),
    ),
    theory(
        "scan_snap",
        "Scan and snap",
        "Which tokens does attention learn to look at, and when does it freeze?",
        r"Distinct ones gain by $\dot z_l \propto \mathbb{P}(l \mid n)$; common ones lose: $c_{l \mid n} = \exp(z_l) / \sum_j \exp(z_j)$.",
        SCAN,
        "attention sharpness",
        "relative gain of distinct over common tokens",
        (claim("scan_snap/relative-gain", r"$r_{l/l'|n}(t)$ follows its closed form.", SCAN, "the gain of shuffled ids"),),
    ),
    theory(
        "rate_reduction",
        "Maximal coding rate reduction",
        "Which features separate classes and keep each class rich?",
        r"$\Delta R(Z) = \tfrac12 \log\det\bigl(I + \tfrac{d}{n \varepsilon^2} Z^\top Z\bigr) - R^c(Z \mid \Pi) \ge 0$.",
        RATE,
        "ΔR of the features",
        "ΔR of the tokens by class",
        (claim("rate_reduction/non-negative", r"$\Delta R \ge 0$, with equality for equal covariances.", RATE, "the sign is turned"),),
    ),
    theory(
        "crate",
        "CRATE: white-box transformers",
        "Does each layer compress tokens against subspaces and make them sparse?",
        r"A layer takes a step on $R^c(Z; U_{[K]})$, then one of ISTA on $\lVert Z - D A \rVert_F^2 + \lambda \lVert A \rVert_1$.",
        WHITE,
        "R^c before minus after attention",
        "fall of R^c through the layers",
        (),
    ),
)


def result(data="synthetic digits <script>alert(1)</script>"):
    draws = np.random.default_rng(0)
    rows, arrays = [], {}
    readings = {
        ("attention_svm", "cosine to the max-margin direction"): (0.11, 0.45, 140),
        ("scan_snap", "attention sharpness"): (0.03, 0.4, 220),
        ("rate_reduction", "ΔR of the features"): (0.2, 9.1, 90),
        ("crate", "R^c before minus after attention"): (0.4, -0.9, 300),
        ("network", "validation accuracy"): (0.1, 0.96, 120),
        ("network", "training loss"): (2.3, 0.08, 100),
        ("network", "attention entropy"): (2.8, 1.7, 230),
    }
    for model in MODELS:
        for (room, quantity), (low, high, middle) in readings.items():
            late = middle * (1.3 if model != "ViT" else 1.0)
            for step in STEPS:
                for layer in range(2):
                    value = low + (high - low) / (1 + np.exp(-(step - late) / 45)) + 0.02 * (high - low) * draws.standard_normal()
                    null = {} if room == "network" else {"null": low}
                    rows.append(dict(theory=room, quantity=quantity, value=float(value), step=step, model=model, layer=layer, **null))
    for room, answer, source in (
        ("attention_svm", "cosine of W to the max-margin direction", SVM),
        ("rate_reduction", "ΔR of the tokens by class", RATE),
        ("crate", "fall of R^c through the layers", WHITE),
    ):
        for name in ("raw", *MODELS):
            outside = name != "raw" or room == "crate"
            value = {"raw": 0.9987, "ViT": 0.8312, MODELS[1]: 0.41}[name]
            evidence = Evidence(value, 0.99, ">=", covered=not outside)
            rows.append(
                finding(
                    room,
                    answer,
                    evidence,
                    source=source,
                    predicted=1.0,
                    null=0.118,
                    model=name,
                    note="1 means the same direction (64 of 400 inputs).",
                )
            )
            rows.append(
                finding(room, "smallest margin", Evidence(1.3e-13, 1e-12, "<="), source=source, model=name, note="in units of the margin")
            )
            for layer in range(12 if name == "raw" and room == "crate" else 1):
                rows.append(finding(room, "loss of the minimal model", Evidence(0.25, 0.5, "<="), source=source, model=name, layer=layer))
            rows.append(
                assumption(room, r"one optimal token per input, $a_i$ unique", name == "raw", value=0.62, source=source, model=name)
            )
            rows.append(
                assumption(
                    room, "the selection is feasible", True, value=1.0, source=source, model=name, note="No contradiction was found."
                )
            )
            if (room, name) in DRAWN:
                prefix = "" if name == "raw" else f"{name}::"
                arrays[f"{prefix}{room}/curve"] = value * (1 - np.exp(-np.arange(50) / 10))
                arrays[f"{prefix}{room}/matrix"] = draws.random((6, 6))
    for name in ("raw", *MODELS):
        rows.append({**not_applicable("scan_snap", "needs next_id & <b>ids</b>"), "model": name})
    for made in THEORIES:
        for name in MODELS:
            if made.name == "scan_snap" and name != "ViT":
                rows.append({**not_applicable(made.name, f"no layer of {name} shows its {made.order_parameter}"), "model": name})
                continue
            evidence = Evidence(0.42 if name == "ViT" else 0.11, 0.23, ">=", covered=False)
            quantity, note = f"{made.order_parameter} in the trained network", "mean over layers and heads after 600 steps"
            rows.append(finding(made.name, quantity, evidence, source=made.sources[0], null=0.23, model=name, note=note))
        for each in made.claims:
            verdict = each.verify(range(3))
            rows += verdict.rows()
            rows.append(
                {
                    "theory": made.name,
                    "quantity": f"claim verdict: {each.id}",
                    "value": verdict.share,
                    "verdict": verdict.verdict,
                    "control": verdict.control,
                    "source": str(each.source),
                    "note": str(verdict),
                }
            )
    images = np.zeros((IMAGES, 1, 8, 8))
    angle = np.linspace(0, 2 * np.pi, 60)
    for i in range(IMAGES):
        images[i, 0, np.round(3.5 + 3 * np.sin(angle)).astype(int), np.round(3.5 + (1 + i) * np.cos(angle)).astype(int)] = 1.0
    arrays["network/images"] = images
    labels = np.repeat(np.arange(10), 30)
    arrays["network/labels"] = labels
    for model, keys in zip(MODELS, (17, 16)):
        sharper = np.linspace(0, 3, len(STEPS))[:, None, None, None, None, None]
        scores = draws.standard_normal((len(STEPS), 2, 4, IMAGES, keys, keys)) * sharper
        arrays[f"network/{model}/attention"] = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        arrays[f"network/{model}/steps"] = np.array(STEPS)
        centres = 4 * draws.standard_normal((10, 2))
        arrays[f"network/{model}/features"] = ends = centres[labels] + draws.standard_normal((300, 2))
        arrays[f"network/{model}/features over training"] = np.linspace(0.1, 1, len(STEPS))[:, None, None] * ends
    params = {
        "data": data,
        "n": 1797,
        "seq": 16,
        "dim": 4,
        "theories": [t.name for t in THEORIES],
        "networks": list(MODELS),
        "steps": 600,
        "seed": 0,
    }
    provenance = {
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "seed": 0,
        "threads": 2,
        "date": "2001-01-01T00:00:00Z",
        "command": "transformer-theory compare --data <x>",
        "seconds": 61.234,
    }
    return Result("compare", params, rows, arrays, (Source("alpaydin1998optical"), SVM), provenance)


def small(rows=(), arrays=None, **params):
    return Result("compare", {"data": "tiny", "theories": [t.name for t in THEORIES], **params}, list(rows), arrays or {})
