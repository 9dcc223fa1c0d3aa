"""The ladder of JoMA: the error of the softmax invariant as assumptions are relaxed. Its rungs do not exist yet."""

from ...core.ladder import Ladder

LADDER = Ladder(quantity="error of the invariant", unit="", side="<=", null_kind="shuffled next tokens")
