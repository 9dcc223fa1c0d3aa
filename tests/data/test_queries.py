"""Selection of frequent ids and of random subsets."""

import torch

from tests.cases import each_case
from transformer_theory.data.queries import most_frequent, subsample


@each_case(
    ("number", "min_count", "expected"), [(5, 1, [7, 3, 9, 1]), (2, 1, [7, 3]), (5, 2, [7, 3, 9]), (5, 4, [])]
)
def test_ids_are_ordered_by_frequency_then_by_id(number: int, min_count: int, expected: list[int]):
    ids = torch.tensor([9, 7, 3, 7, 1, 3, 7, 9])
    assert most_frequent(ids, number, min_count=min_count).tolist() == expected


def test_a_subset_keeps_the_order_and_all_rows_need_no_draw(generator):
    rows, state = torch.tensor([8, 5, 2, 9]).sort().values, generator.get_state()
    assert torch.equal(subsample(rows, 4, generator), rows)
    assert torch.equal(generator.get_state(), state)
    subset = subsample(rows, 2, generator)
    assert len(subset) == 2
    assert subset[0] < subset[1]
    assert set(subset.tolist()) < set(rows.tolist())
