"""What the first screen says of networks in which there is nothing to find, and of planted effects.

    python -m benchmarks.null_networks untrained --networks 20
    python -m benchmarks.null_networks permuted --networks 20
    python -m benchmarks.null_networks planted --networks 5

Small vision transformers for the digits are measured as a user's network is, on digits that they were not
trained on.

- untrained: the entries of every matrix are independent, so permuting them changes nothing in law. Whatever
  is said of them is an error, of which each family of tests (headlines; heads and layers; tokens) may have
  one in 5 % of the networks;
- permuted: trained on permuted labels, and measured with the labels of the digits. Training changes a
  network, so there may be sentences, but none about the labels;
- planted: untrained networks with one property built in. Its headline must be found.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from transformer_theory import measure
from transformer_theory.comparison.judged import headlines, notable, quantities
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import LEVEL, clopper_pearson, permutations
from transformer_theory.data import TokenData, digits
from transformer_theory.models import build
from transformer_theory.report.token_sentences import token_statements
from transformer_theory.theories import list_theories
from transformer_theory.training.recipes import RECIPES

SEQUENCES, COPIES, STEPS = 48, 99, 600
FAMILIES = ("headlines", "heads and layers", "tokens")
# theories whose headlines use the labels
ABOUT_LABELS = {"rate_reduction", "router", "bottleneck", "vision"}


def split() -> tuple[TokenData, TokenData]:
    """Returns the digits of the training, and those on which networks are measured."""
    data = digits()
    return data[:-SEQUENCES], data[-SEQUENCES:]


def untrained(seed: int) -> nn.Module:
    """Returns an untrained vision transformer."""
    return build(lambda: RECIPES["ViT"].build(split()[0]), torch.Generator().manual_seed(seed))


def on_permuted_labels(seed: int) -> nn.Module:
    """Returns a vision transformer that was trained on permuted labels."""
    train, validation = split()
    assert train.labels is not None
    (order,) = permutations(len(train), 1, torch.Generator().manual_seed(seed))
    permuted = replace(train, labels=train.labels[order])
    generator = torch.Generator().manual_seed(seed)
    trained = RECIPES["ViT"].train(
        untrained(seed), permuted, validation[:1], steps=STEPS, generator=generator
    )
    return trained.model


def one_feature(seed: int) -> nn.Module:
    """Returns an untrained network in which the queries and keys of all heads read one common direction of
    the tokens, so that every token attends to those which are largest along it.
    """
    network = untrained(seed)
    generator = torch.Generator().manual_seed(seed)
    found = [module for module in network.modules() if isinstance(module, nn.Linear)]
    joint = [one for one in found if one.out_features == 3 * one.in_features]
    assert joint
    with torch.no_grad():
        for one in joint:
            d = one.in_features
            u, v = (torch.randn(d, generator=generator) for _ in range(2))
            strong = 2 * one.weight[:d].norm() * torch.outer(u / u.norm(), v / v.norm())
            one.weight[: 2 * d] += strong.repeat(2, 1)
    return network


def low_rank(seed: int) -> nn.Module:
    """Returns an untrained network whose MLPs have a lower layer with one strong direction."""
    network = untrained(seed)
    generator = torch.Generator().manual_seed(seed)
    wide = [m for m in network.modules() if isinstance(m, nn.Linear) and m.out_features == 4 * m.in_features]
    assert wide
    with torch.no_grad():
        for one in wide:
            u, v = (torch.randn(n, generator=generator) for n in one.weight.shape)
            one.weight += one.weight.norm() * torch.outer(u / u.norm(), v / v.norm())
    return network


PLANTED: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "queries and keys read one feature": (one_feature, "scan_snap"),
    "one strong direction in the MLP": (low_rank, "joma"),
}


def measured(network: nn.Module, *, copies: int = COPIES) -> Result:
    """Measures a network as a user's is."""
    _, samples = split()
    return measure(network, samples.tokens, samples.labels, networks=copies, minutes=60)


def said(result: Result) -> dict[str, list[str]]:
    """Returns what the first screen says: theories with a headline that leaves its copies by an effect worth
    a sentence, theories with named heads or layers, and statements about tokens.
    """
    theories = list_theories()
    found = quantities(result, theories)
    return {
        "headlines": [each.theory for each in headlines(found, theories) if each.is_said],
        "heads and layers": [each.theory for each in notable(found)],
        "tokens": [title for title, *_ in token_statements(result, found)],
    }


def report(kind: str, all_said: Sequence[dict[str, list[str]]]) -> bool:
    """Prints in how many networks something was said, by family; returns whether this is permitted."""
    n, good = len(all_said), True
    for family in FAMILIES:
        count = sum(bool(each[family]) for each in all_said)
        low, high = (float(end) for end in clopper_pearson(count, n))
        print(f"{kind}: {family}: in {count} of {n} networks ({count / n:.1%}; {low:.1%} to {high:.1%})")
        good &= low <= LEVEL
    return good


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table; the exit status is 1 if something is said that may not be, or is not found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.null_networks")
    parser.add_argument("kind", choices=("untrained", "permuted", "planted"))
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--copies", type=int, default=COPIES)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    good = True
    if options.kind == "planted":
        for name, (made, theory) in PLANTED.items():
            for seed in range(options.networks):
                found = said(measured(made(seed), copies=options.copies))
                print(f"{name}, seed {seed}: {found}", flush=True)
                good &= theory in found["headlines"]
        return not good
    made = untrained if options.kind == "untrained" else on_permuted_labels
    all_said = []
    for seed in range(options.networks):
        all_said.append(said(measured(made(1_000 + seed), copies=options.copies)))
        print(f"{options.kind}, seed {seed}: {all_said[-1]}", flush=True)
    if options.kind == "permuted":
        about = [[*each["headlines"], *each["heads and layers"]] for each in all_said]
        number = sum(bool(ABOUT_LABELS & {*theories}) for theories in about)
        print(f"permuted: a sentence about the labels in {number} of {len(about)} networks")
        return int(number > LEVEL * len(about))
    return not report(options.kind, all_said)


if __name__ == "__main__":
    raise SystemExit(main())
