"""On noise nothing is found: a small version of ``python -m benchmarks calibration``."""

import numpy as np
import torch

from benchmarks.calibration import shares
from transformer_theory import compare
from transformer_theory.comparison.judged import findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.data import TokenData
from transformer_theory.data.synthetic import noise_like
from transformer_theory.theories.scan_snap import minimal_model, on_data

SETS = 6
THEORIES = ("scan_snap", "rate_reduction")


def sequences(seed: int) -> TokenData:
    """Noise: sequences of Gaussian tokens with random words and labels."""
    generator = torch.Generator().manual_seed(500 + seed)
    n, seq = 120, 6
    labels = torch.randint(4, (n,), generator=generator)
    tokens = torch.randn(n, seq, 5, generator=generator, dtype=torch.float64)
    ids = torch.randint(12, (n, seq), generator=generator)
    ids[:, -1] = 0  # one query
    return noise_like(TokenData(tokens, labels=labels, ids=ids, next_id=labels, vocab_size=12), generator)


def test_on_noise_nothing_is_found(unchecked, monkeypatch):
    """The share of p-values of at most .05 is at most .10, averaged over data sets; few findings survive the
    false discovery rate.
    """
    # no models trained on shuffled next tokens, which have no p-value
    monkeypatch.setattr(on_data, "RANGE_DRAWS", 0)
    monkeypatch.setattr(minimal_model, "MAX_STEPS", 50)
    results = [
        compare(sequences(seed), THEORIES, seeds=2, networks=(), claim_seeds=0) for seed in range(SETS)
    ]
    summaries = [
        result.table.summary().where(lambda row: row.scope == "these data" and row.p is not None)
        for result in results
    ]
    assert all(len(summary) >= 2 for summary in summaries)  # scan and snap, and rate reduction
    assert np.mean(shares(summaries)) <= 0.10
    p = [row.p for summary in summaries for row in summary]
    assert max(p) > 0.5
    assert min(p) >= 1 / 200
    found = [finding.judged.outcome for result in results for finding in findings(aggregate(result)).all]
    assert found.count("as predicted") <= 1
