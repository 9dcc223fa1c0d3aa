"""A made-up comparison and a made-up training with made-up theories: every number here is synthetic, none was
measured.
"""

from dataclasses import replace

import numpy as np

from transformer_theory.core.claims import Claim, but
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.plotting import axes, heatmap, label_ends, line, style, text_figure
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Table
from transformer_theory.core.theory import InNetworks, OnData, Theory, Unsupported

SVM, SCAN = Source("tarzanagh2023transformers", "Thm. 3"), Source("tian2023scan")
RATE, WHITE = Source("yu2020learning", "Thm. A.6"), Source("yu2023white")
STEPS = tuple(round(600 * (i / 13) ** 2) for i in range(14))
MODELS = ("ViT", "CRATE (paper form)")
# the theories that have arrays to plot: a figure takes a second
DRAWN = (("attention_svm", ""), ("crate", ""), ("crate", "ViT"))
IMAGES = 3


def claim(name, statement, source, control):
    return Claim(
        id=name,
        statement=statement,
        measures="the cosine",
        op=">=",
        threshold=0.99,
        source=source,
        assumptions=("tokens and query in general position", "the selection is feasible"),
        function=lambda generator: 1.0,
        change=but(control, lambda generator: 0.4),
    )


def plot(theory, text):
    @style()
    def figure(result):
        if f"{theory}/curve" not in result.arrays:
            return text_figure(f"{theory}: nothing to draw")
        drawn, (left, right) = axes(1, 2)
        curve = result.arrays[f"{theory}/curve"]
        line(left, np.arange(len(curve)), curve, name=theory, label="measured", null=0.1)
        left.set(title=text, xlabel="iteration")
        label_ends(left)
        heatmap(right, result.arrays[f"{theory}/matrix"], r"$|W|$")
        right.set_title("the matrix")
        return drawn

    return figure


def theory(name, title, question, statement, source, in_networks, on_data, claims):
    return Theory(
        name=name,
        title=title,
        question=question,
        statement=statement,
        sources=(source,),
        assumptions=("Each input has exactly one optimal token.", r"Step sizes are small: $\eta \le 1/L$."),
        claims=claims,
        on_data=OnData(
            lambda data: Unsupported("made up"), lambda problem, generator: (), on_data, plot(name, on_data)
        ),
        in_networks=InNetworks(metrics=lambda: (), headline=in_networks),
    )


THEORIES = (
    theory(
        "attention_svm",
        "Attention as a support vector machine",
        "Where does gradient descent send the attention weights?",
        r"""Gradient descent on the combined key-query matrix $W$ with scores $x_t^\top W z$ diverges in norm and converges in direction,
$$\frac{W_s}{\lVert W_s \rVert_F} \to \frac{W^{\mathrm{mm}}}{\lVert W^{\mathrm{mm}} \rVert_F}, \qquad
W^{\mathrm{mm}} = \operatorname*{arg\,min}_W \lVert W \rVert_F \ \text{ subject to } \ (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 ,$$

for every input $i$ and token $t \ne a_i$.""",  # noqa: E501
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
                "attention_svm/local-selection",
                r"Descent near a locally optimal selection stays: $a_i(s) = a_i(0)$.",
                SVM,
                "a far start",
            ),
        ),
    ),
    theory(
        "scan_snap",
        "Scan and snap",
        "Which tokens does attention learn to look at, and when does it freeze?",
        r"Distinct ones gain by $\dot z_l \propto \mathbb{P}(l \mid n)$; common ones lose: $c_{l \mid n} = "
        r"\exp(z_l) / \sum_j \exp(z_j)$.",
        SCAN,
        "attention sharpness",
        "relative gain of distinct over common tokens",
        (
            claim(
                "scan_snap/relative-gain",
                r"$r_{l/l'|n}(t)$ follows its closed form.",
                SCAN,
                "the gain of shuffled ids",
            ),
        ),
    ),
    theory(
        "rate_reduction",
        "Maximal coding rate reduction",
        "Which features separate classes and keep each class rich?",
        r"$\Delta R(Z) = \tfrac12 \log\det\bigl(I + \tfrac{d}{n \varepsilon^2} Z^\top Z\bigr) - R^c(Z \mid "
        r"\Pi) \ge 0$.",
        RATE,
        "ΔR of the features",
        "ΔR of the tokens by class",
        (
            claim(
                "rate_reduction/non-negative",
                r"$\Delta R \ge 0$, with equality for equal covariances.",
                RATE,
                "the sign is turned",
            ),
        ),
    ),
    theory(
        "crate",
        "CRATE: white-box transformers",
        "Does each layer compress tokens against subspaces and make them sparse?",
        r"A layer takes a step on $R^c(Z; U_{[K]})$, then one of ISTA on $\lVert Z - D A \rVert_F^2 + "
        r"\lambda \lVert A \rVert_1$.",
        WHITE,
        "$R^c$ before minus after attention",
        "fall of $R^c$ through the layers",
        (),
    ),
)
HEADLINE = THEORIES[0].on_data.headline
IN_TRAINING = {  # (first value, last value, step of the middle)
    ("attention_svm", "cosine to the max-margin direction"): (0.11, 0.45, 140),
    ("scan_snap", "attention sharpness"): (0.03, 0.4, 220),
    ("rate_reduction", "ΔR of the features"): (0.2, 9.1, 90),
    ("crate", "$R^c$ before minus after attention"): (0.4, -0.9, 300),
    ("network", "accuracy"): (0.1, 0.96, 120),
    ("network", "loss"): (2.3, 0.08, 100),
    ("network", "attention entropy"): (2.8, 1.7, 230),
}


def in_network(theory, quantity, value, **columns):
    return Measurement(theory, "network" if theory == "network" else "in network", quantity, value, **columns)


def on_data(value, **columns):
    """A row of the first theory's headline."""
    return Measurement(
        **{
            "theory": "attention_svm",
            "kind": "on data",
            "quantity": HEADLINE,
            "value": value,
            "op": ">=",
            **columns,
        }
    )


def training_rows(draws):
    """What was measured of two networks at 14 steps in two layers."""
    for model in MODELS:
        for (theory, quantity), (low, high, middle) in IN_TRAINING.items():
            late = middle * (1.3 if model != "ViT" else 1.0)
            whole = quantity in ("accuracy", "loss")
            columns = (
                {"split": "validation", "unit": "share" if quantity == "accuracy" else "nats"}
                if whole
                else {}
            )
            columns |= {} if theory == "network" else {"nulls": (Null("random directions", (low,)),)}
            for step in STEPS:
                for layer in (None,) if whole else range(2):
                    value = (
                        low
                        + (high - low) / (1 + np.exp(-(step - late) / 45))
                        + 0.02 * (high - low) * draws.standard_normal()
                    )
                    yield in_network(
                        theory, quantity, float(value), step=step, model=model, layer=layer, **columns
                    )


def data_rows():
    """What three of the theories measured on raw tokens and on the features of two networks; the fourth
    measured nothing.
    """
    for made in (THEORIES[0], *THEORIES[2:]):
        for model in ("", *MODELS):
            columns = {"theory": made.name, "source": made.sources[0], "model": model}
            covered = model == "" and made.name != "crate"
            value = {"": 0.9987, "ViT": 0.8312, MODELS[1]: 0.41}[model]
            verdict = "not covered" if not covered else "consistent"
            yield Measurement(
                **columns,
                kind="on data",
                quantity=made.on_data.headline,
                value=value,
                predicted=1.0,
                op=">=",
                threshold=0.99,
                verdict=verdict,
                nulls=(Null("permuted labels", (0.1, 0.118, 0.2)),),
                side=">=",
                note="1 means the same direction (64 of 400 inputs)",
            )
            yield Measurement(
                **columns, kind="on data", quantity="smallest margin", value=1.3e-13, op="<=", threshold=1e-12
            )
            for layer in range(12 if model == "" and made.name == "crate" else 1):
                yield Measurement(
                    **columns, kind="on data", quantity="loss of the minimal model", value=0.25, layer=layer
                )
            holds = "holds" if model == "" else "fails"
            quantity = r"one optimal token per input, $a_i$ unique"
            yield Measurement(
                **columns, kind="assumption", quantity=quantity, value=0.62, unit="share", verdict=holds
            )
            note = "No contradiction was found."
            yield Measurement(
                **columns,
                kind="assumption",
                quantity="the selection is feasible",
                value=1.0,
                verdict="holds",
                note=note,
            )
    for model in ("", *MODELS):
        made = THEORIES[1]
        reason = "needs next_id & <b>ids</b>"
        yield Measurement(made.name, "on data", made.on_data.headline, None, reason=reason, model=model)


def headline_rows():
    """The headline of each theory in each trained network."""
    for made in THEORIES:
        for model in MODELS:
            quantity, columns = (
                made.in_networks.headline,
                {"model": model, "scope": "training", "source": made.sources[0]},
            )
            if made.name == "scan_snap" and model != "ViT":
                yield in_network(made.name, quantity, None, reason="no layer has attention", **columns)
            else:
                value, null = 0.42 if model == "ViT" else 0.11, Null("untrained networks", (0.23,))
                yield in_network(
                    made.name,
                    quantity,
                    value,
                    nulls=(null,),
                    side=">=",
                    note="mean over layers and heads",
                    **columns,
                )


def pictures(draws):
    """Arrays that the figures are drawn from."""
    arrays = {}
    for name, model in DRAWN:
        prefix = f"{model}::" if model else ""
        arrays[f"{prefix}{name}/curve"] = 0.9 * (1 - np.exp(-np.arange(50) / 10)) + (1 if model else 0)
        arrays[f"{prefix}{name}/matrix"] = draws.random((6, 6))
    images = np.zeros((IMAGES, 1, 8, 8))
    angle = np.linspace(0, 2 * np.pi, 60)
    for i in range(IMAGES):
        images[
            i,
            0,
            np.round(3.5 + 3 * np.sin(angle)).astype(int),
            np.round(3.5 + (1 + i) * np.cos(angle)).astype(int),
        ] = 1.0
    labels = np.repeat(np.arange(10), 30)
    arrays |= {"network/images": images, "network/labels": labels}
    for model, tokens in zip(MODELS, (17, 16)):
        sharper = np.linspace(0, 3, len(STEPS))[:, None, None, None, None, None]
        scores = draws.standard_normal((len(STEPS), 2, 4, IMAGES, tokens, tokens)) * sharper
        centres = 4 * draws.standard_normal((10, 2))
        ends = centres[labels] + draws.standard_normal((300, 2))
        arrays[f"network/{model}/attention"] = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        arrays[f"network/{model}/steps"] = np.array(STEPS)
        arrays[f"network/{model}/features"] = ends
        arrays[f"network/{model}/features over training"] = (
            np.linspace(0.1, 1, len(STEPS))[:, None, None] * ends
        )
    return arrays


def comparison(data="synthetic digits <script>alert(1)</script>"):
    draws = np.random.default_rng(0)
    rows = Table([*training_rows(draws), *data_rows(), *headline_rows()]).replace(data=data)
    settings = {
        "data": data,
        "n": 1797,
        "seq": 16,
        "dim": 4,
        "theories": [t.name for t in THEORIES],
        "networks": list(MODELS),
    }
    provenance = {
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "seed": 0,
        "threads": 2,
        "date": "2001-01-01T00:00:00Z",
        "command": "transformer-theory compare --data <x>",
        "seconds": 61.234,
    }
    verified = tuple(one.verify(range(3)) for made in THEORIES for one in made.claims)
    sources = (Source("alpaydin1998optical"), SVM)
    return Result(
        "compare", settings | {"steps": 600, "seed": 0}, rows, pictures(draws), verified, sources, provenance
    )


def small(rows=(), arrays=None, verifications=(), **settings):
    """A comparison of little."""
    settings = {"data": "tiny", "theories": [t.name for t in THEORIES], **settings}
    return Result("compare", settings, Table(rows), arrays or {}, tuple(verifications))


def trained(
    accuracy=(0.1, 0.3, 0.6, 0.5, 0.6),
    tested=0.65,
    *,
    layers=2,
    heads=2,
    theories=True,
    data="digits",
    run_id="a1",
    **settings,
):
    """A training whose network is measured every ten steps; further settings are of the network."""
    rows, draws = [], np.random.default_rng(0)

    def add(quantity, value, step, theory="network", **columns):
        rows.append(
            in_network(
                theory,
                quantity,
                value,
                reason="" if value is not None else "lost",
                model="crate",
                step=step,
                **columns,
            )
        )

    for index, share in enumerate(accuracy):
        step = 10 * index
        add("seconds", 1.0 + 2.0 * index, step, unit="s")
        add("loss", 2.3 - index / 3, step, split="validation", nulls=(Null("untrained networks", (2.4,)),))
        add("accuracy", share, step, split="validation", unit="share", n=126)
        if index:
            add("loss", 2.3 - index / 4, step, split="train")
            add("images per second", 640.0, step)
        for layer in range(layers):
            for head in range(heads):
                value = 2.5 - index * (1 + head) / 10 + 0.01 * draws.random()
                add(
                    "attention entropy",
                    value,
                    step,
                    split="validation",
                    layer=layer,
                    head=head,
                    nulls=(Null("untrained networks", (2.6,)),),
                )
            if theories:
                columns = {
                    "theory": "rate_reduction",
                    "layer": layer,
                    "nulls": (Null("permuted labels", (0.3,)),),
                    "source": RATE,
                }
                add("ΔR of the features", 0.2 + index * layer, step, split="validation", **columns)
    if tested is not None:
        best = 10 * (len(accuracy) - 1)
        add("accuracy", tested, best, split="test", unit="share", n=540)
        add("loss", 1.25, best, split="test", unit="nats", nulls=(Null("shuffled pixels", (1.5,)),))
    own = {"network": "crate", "recipe": "digits", "seed": 0, "epochs": 4, **settings}
    counts = {"train_samples": 1131, "validation_samples": 126, "test_samples": 540}
    stored = {
        "settings": own,
        "objective": {"name": "cross-entropy"},
        "data": data,
        "run_id": run_id,
        "score": "accuracy",
        **counts,
    }
    provenance = {"parameters": 41194, "device": "cpu", "seconds": 9.5}
    return Result("train", stored, Table(rows), {}, (), (WHITE,), provenance)


def violated(verification, seed=1, **control):
    """The verification with one seed that violates, or with another control."""
    evidence = tuple(
        replace(one, value=0.5) if number == seed else one
        for number, one in zip(verification.seeds, verification.evidence)
    )
    controls = tuple(replace(one, **control) for one in verification.controls)
    return replace(verification, evidence=verification.evidence if control else evidence, controls=controls)
