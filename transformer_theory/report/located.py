"""Each number of a stored result that a table can show, with its kind, what it was measured on, and the settings that it depends on.

Of what was read step by step, head by head while a network trained this is the last reading, averaged over layers and heads.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..core.claims import CLAIM, CLAIM_VERDICT
from ..core.measurement import ASSUMPTION, Row
from ..core.notes import joined
from ..core.result import Result
from ..core.theory import Theory
from . import wording
from .facts import Measured, facts
from .readings import Readings, readings
from .views import findings, networks, view_of

Kind = Literal["claim", "prediction", "assumption", "reading", "network", "experiment", "absent"]
"""What a number is.

- claim: one seed of a claim;
- prediction: a theory's own model on data, beside what the theory predicts;
- assumption: whether the data meet one;
- reading: of a theory in a trained network;
- network: what a trained network reached (accuracies, times);
- experiment: of an experiment;
- absent: no number, but the reason why there is none.
"""

COMPARE, TRAIN, PROBE = "compare", "train", "probe"  # names of results
IN_LAYER = " in a trained layer"  # ends the quantity of a reading layer by layer
Setting = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Located:
    """One number with its place.

    Attributes:
        theory, quantity: of the row; the quantity of a claim is its id, of an assumption its sentence.
        kind: what it is.
        family: in words, the data and the view, network or experiment: ``"digits: features of ViT"``; empty for a claim.
        place: within it: ``"layer 2, head 0"``; may be empty.
        setting: names and values of the parameters that it depends on, without the seed.
        seed: tells runs apart that differ in nothing else; None if nothing was drawn by one.
        row: the row.
    """

    theory: str
    kind: Kind
    quantity: str
    family: str
    place: str
    setting: Setting
    seed: Hashable
    row: Row


def located(result: Result, known: Sequence[Theory]) -> Iterator[Located]:
    """All of them, in the order of the result.

    Args:
        result: of ``compare``, ``verify``, ``train``, a probe or an experiment.
        known: records of its theories, for the names of their order parameters.
    """
    for row in result.table:
        if row["quantity"].startswith(CLAIM):
            yield Located(row["theory"], "claim", row["quantity"].removeprefix(CLAIM), "", "", (), row.get("seed"), row)
    orders = {theory.name: theory for theory in known}
    if result.name == COMPARE:
        yield from _compared(result, orders)
    elif result.name == TRAIN:
        yield from _trained(result, orders)
    elif result.name == PROBE:
        yield from _probed(result, orders)
    else:
        yield from _measured(result)


def unfinished(result: Result) -> bool:
    """Whether it is of a training that has not come to its end: its best network was not measured on the test images yet."""
    return result.name == TRAIN and not any(row["theory"] == "network" and row["quantity"].startswith("test ") for row in result.table)


def data_of(result: Result) -> str:
    """The name of the data, or of the experiment or verification."""
    return str(result.params.get("data") or "data") if result.name in (COMPARE, TRAIN) else result.name


def _compared(result: Result, orders: Mapping[str, Theory]) -> Iterator[Located]:
    data, seed, given = data_of(result), result.params.get("seed"), result.params.get("models") or {}
    for row in findings(result):
        kind, quantity = _kind(row)
        view = view_of(row)
        network = row["theory"] == "network"
        inside = kind == "reading" or (kind == "absent" and view != "raw" and _of_network(row))
        words = (row.get("model") or "networks") if network else wording.subject(view, inside)
        setting = _of_view(result, row.get("model"))
        yield Located(row["theory"], kind, quantity, f"{data}: {words}", _place(row, "layer", "head"), setting, seed, row)
    for model in networks(result):
        if model not in given:  # of a network that was given, the run has them
            part = replace(result, table=[row for row in result.table if row.get("model") == model])
            family = {False: f"{data}: {wording.subject(model, True)}", True: f"{data}: {model}"}
            for kind, row in _last_readings(part, orders, model, findings_too=True):
                yield Located(row["theory"], kind, row["quantity"], family[kind == "network"], "", _of_view(result, model), seed, row)


def _of_network(row: Row) -> bool:
    return (row.get("verdict") or "").startswith(f"not applicable: no layer of {row.get('model')} shows its ")


def _of_view(result: Result, model: str | None) -> Setting:
    """What the rows of one view depend on: not which other networks there are, and raw tokens on none."""
    params, given = result.params, result.params.get("models") or {}
    kept: dict[str, Any] = {name: params[name] for name in ("n", "seq", "dim") if name in params}
    if model in given:
        kept["network"] = given[model]
    elif model not in (None, "raw"):
        kept["steps"] = params.get("steps", params.get("steps of the small networks"))
    return _setting(kept)


def _kind(row: Row) -> tuple[Kind, str]:
    quantity = row["quantity"]
    if quantity.startswith(ASSUMPTION):
        return "assumption", quantity.removeprefix(ASSUMPTION)
    if wording.absent(row):
        return "absent", quantity
    if row["theory"] == "network":
        return "network", quantity
    return "reading" if quantity.endswith((wording.TRAINED, IN_LAYER)) else "prediction", quantity


def _trained(result: Result, orders: Mapping[str, Theory]) -> Iterator[Located]:
    settings = result.params.get("settings") or {}
    name = str(settings.get("network", "network"))
    kept = {key: value for key, value in result.params.items() if key not in ("settings", "theories", "data")}
    setting = _setting(_without_seed({**settings, **kept}))
    seed = settings.get("seed")
    family = f"{data_of(result)}: {name} in its training"  # its images were held out, and its settings are not those of a comparison
    for row in _reached(result, name):
        yield Located("network", "network", row["quantity"], family, "", setting, seed, row)
    for kind, row in _last_readings(result, orders, name):
        if kind == "reading":
            yield Located(row["theory"], kind, row["quantity"], family, "", setting, seed, row)
    for row in result.table:
        if wording.absent(row):
            yield Located(row["theory"], "absent", row["quantity"], family, "", setting, seed, row)


def _reached(result: Result, name: str) -> Iterator[Row]:
    """What the kept network reached on test and held-out images, its size, and how long it took."""
    told = facts(result, readings(result))
    ended = "" if told.tests else f"the training has not come to its end, {told.steps:,} steps so far"
    scores = [*((one, "test") for one in told.tests), *([(told.kept_score, "held-out")] if told.kept_score else [])]
    for one, part in scores:
        for quantity, value in ((one.quantity, one.value), *((f"{one.quantity}, {what}", null) for what, null in one.nulls)):
            step = f"best network, of step {told.kept:,}" if told.kept is not None else None
            where = _images(one, part) if quantity == one.quantity else None
            yield Row(theory="network", quantity=quantity, value=value, model=name, note=joined(where, step, ended))
    if told.seconds is not None:
        yield Row(theory="network", quantity="seconds of training", value=told.seconds, model=name, note=joined("readings included", ended))
    if told.speed is not None:
        yield Row(theory="network", quantity="images per second", value=told.speed[0], model=name, note="median between readings")
    for quantity, number in (("parameters", result.provenance.get("parameters")), ("steps", told.steps)):
        if number is not None:
            yield Row(theory="network", quantity=quantity, value=number, model=name)


def _images(one: Measured, part: str) -> str | None:
    """On how many images, and the interval that they leave a share open, which is of one run alone."""
    if one.n is None:
        return None
    return joined(f"{one.n:,} {part} images", f"95 % interval {' to '.join(map(wording.percent, one.interval))}" if one.interval else None)


def _last_readings(
    result: Result, orders: Mapping[str, Theory], model: str | None, findings_too: bool = False
) -> Iterator[tuple[Kind, Row]]:
    """The last reading of each quantity of one network as a row, and whether it is a theory's or the network's own.

    Args:
        findings_too: order parameters are left out, as they are among the findings already.
    """
    for read in readings(result):
        known = orders.get(read.theory)
        theory = known if known is not None and read.quantity == known.order_parameter else None
        if read.empty or (theory is not None and findings_too):
            continue
        if read.theory == "network" and read.layers == (None,):
            yield "network", _last(read, read.quantity, "", model)
            continue
        row = _last(read, f"{read.quantity}{wording.TRAINED}", "mean over layers and heads", model)
        if theory is not None and (null := row.get("null")) is not None:  # as compare tells it: a reading, never a verdict on the theory
            row = Row(**{**row, "predicted": null, "bound": null, "op": theory.order_relation, "in_assumptions": False})
            row["verdict"] = "outside assumptions"
        yield "reading", row


def _last(read: Readings, quantity: str, how: str, model: str | None) -> Row:
    step = int(read.steps[-1])
    row = Row(theory=read.theory, quantity=quantity, value=read.at(step), step=step, note=joined(how, read.note))
    if model is not None:
        row["model"] = model
    if (null := read.at(step, "nulls")) is not None:
        row["null"] = null
    if read.source:
        row["source"] = read.source
    return row


def _probed(result: Result, orders: Mapping[str, Theory]) -> Iterator[Located]:
    setting = _setting(_without_seed(result.params))
    for model in dict.fromkeys(row.get("model") for row in result.table):
        part = replace(result, table=[row for row in result.table if row.get("model") == model])
        for kind, row in _last_readings(part, orders, model):
            yield Located(row["theory"], kind, row["quantity"], f"probe: {model or 'network'}", "", setting, None, row)


def _measured(result: Result) -> Iterator[Located]:
    setting = _setting(_without_seed(result.params))
    for row in result.table:
        if row["quantity"].startswith((CLAIM, CLAIM_VERDICT)):
            continue
        kind, quantity = _kind(row)
        seed = (result.params.get("seed"), row["seed"]) if "seed" in row else result.params.get("seed")
        told = kind if kind in ("assumption", "absent") else "experiment"
        yield Located(row["theory"], told, quantity, result.name, _place(row, "model", "layer", "head", "step"), setting, seed, row)


def _place(row: Row, *names: str) -> str:
    """``"ViT, layer 2, step 600"``: what of these the row states."""
    values = {name: row.get(name) for name in names if row.get(name) is not None}
    return ", ".join(str(value) if name == "model" else f"{name} {value:,}" for name, value in values.items())


def _without_seed(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "seed"}


def _setting(params: Mapping[str, Any], above: str = "") -> Setting:
    """Names and values as words; those of nested records have the names above them before theirs."""
    found: list[tuple[str, str]] = []
    for name, value in params.items():
        if isinstance(value, Mapping):
            found += _setting(value, f"{above}{name} ")
        else:
            told = " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            found.append((f"{above}{name}".replace("_", " "), told))
    return tuple(found)
