from ....core.validation import integers, positive  # TEMPORARY
from ..validation import check_nonnegative as check_amount


def check_steps(steps, name="steps", *, least=0):
    integers(minimum=least, **{name: steps})


def check_rate(rate, name="rate"):
    positive(**{name: rate})
