"""Runs quick claims of one theory in a process of its own.

The plan is a file with a JSON object: the package, the theory, the seeds, the claims (null for all), whether
to record, and the file of the result. When it records, each claim runs once, and its processor time, its
verdict and the functions that it executes are stored. Otherwise the first claim that is violated or raises an
error ends the run.
"""

import importlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.random_mutants.recorder import Calls, clear_caches


def outcome(claim: Any, seeds: list[int]) -> str:
    """Returns "consistent", "undecided" or how the claim detects an error."""
    found = "consistent"
    for seed in seeds:
        try:
            evidence, control = claim.run(seed)
        except Exception as error:  # a claim that cannot be computed is seen by everyone who runs it
            return f"{claim.id} raises {type(error).__name__}"
        if evidence.verdict == "violated":
            return claim.id
        # a control drops an assumption, so that it may not be covered
        if evidence.verdict != "consistent" or replace(control, covered=True).verdict != "violated":
            found = "undecided"
    return found


def verified(plan: dict[str, Any]) -> dict[str, Any]:
    """Returns the records of all claims, or the result of the chosen ones."""
    try:
        theory = importlib.import_module(f"{plan['package']}.theories").theory(plan["theory"])
    except Exception as error:
        return {"by": f"the import raises {type(error).__name__}", "undecided": []}
    claims = {claim.id: claim for claim in theory.claims if claim.cost == "quick"}
    records, undecided = dict[str, dict[str, Any]](), []
    for name in claims if plan["claims"] is None else plan["claims"]:
        calls, started = Calls(), time.process_time()
        if name not in claims:
            return {"by": f"{name} is missing", "undecided": []}
        if plan["record"]:
            clear_caches([f"{plan['package']}.theories.{plan['theory']}"])
            with calls.on():
                found = outcome(claims[name], plan["seeds"])
            records[name] = {
                "seconds": round(time.process_time() - started, 3),
                "functions": sorted(calls.functions(Path.cwd())),
                "passed": found == "consistent",
            }
        else:
            found = outcome(claims[name], plan["seeds"])
            if found == "undecided":
                undecided.append(name)
            elif found != "consistent":
                return {"by": found, "undecided": []}
    return records if plan["record"] else {"by": "", "undecided": undecided}


def main(plan: str) -> int:
    """Runs the claims of a plan and stores the result."""
    content = json.loads(Path(plan).read_text(encoding="utf-8"))
    Path(content["result"]).write_text(json.dumps(verified(content)), encoding="utf-8")
    return 0
