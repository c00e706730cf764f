"""Explain in sentences why a plan removes its units."""

from collections.abc import Sequence

from lamina.models.units import describe_moves, is_removal, removals_among
from lamina.selection.plans import Plan
from lamina.selection.tournament import EXCHANGE
from lamina.variant import describe_size


def explain_plan(plan: Plan) -> list[str]:
    """What was chosen, by which selector and on what evidence, one sentence per line."""
    asked = (
        f"Selector {plan.selector} (strategy {plan.strategy}) chose on calibration "
        f"{plan.calibration} how to change {plan.model} at size {plan.removed}, counted in layers: "
        f"{describe_size(plan.removed)}."
    )
    if plan.refused:
        return [asked, f"It has no plan: {plan.refused}"]
    lines = [asked, f"It {_describe_edits(plan.units)}."]
    if "members" in plan.choice:
        lines += _explain_tournament(plan)
    else:
        lines += _explain_removals(plan)
    return lines


def _explain_tournament(plan: Plan) -> list[str]:
    """Which member proposed a portfolio's set, and how much worse the other sets were."""
    choice = plan.choice
    repair = _describe_repair(choice["repair"])
    origin = f"{choice['member']} proposed this set"
    if choice["member"] == EXCHANGE:
        origin = "This set is another good set in which one layer was exchanged for another"
    lines = [
        "Several methods proposed sets of layers. The sets were compared as wholes, on documents "
        "that no method had used to propose them.",
        f"{origin}. On {choice['n_samples']} such documents, its loss is {choice['loss']:.3f} nats "
        f"{repair}; the base model's is {choice['base_loss']:.3f}. It was the best of several, so "
        "expect a higher loss on other documents.",
    ]
    for name, loss in choice["repairs"].items():
        if name != choice["repair"]:
            lines.append(f"The same set {_describe_repair(name)}: {loss:.3f}.")
    for name, member in choice["members"].items():
        if set(member["units"]) == set(plan.units):
            lines.append(f"{name} proposed the same set.")
            continue
        lines.append(
            f"{name} proposed {_list_units(member['units'])}: "
            f"{_describe_repair(member['repair'])}, its loss is {member['more']:.3f} higher "
            f"(n = {member['n_samples']})."
        )
    for result in choice.get("written", []):
        lines.append(
            f"Without {_list_units(result['units'])}, {_describe_repair(result['repair'])}, "
            f"{100 * result['right']:.1f} % of the written answers to these documents are right. "
            "This decided."
        )
    if "note" in choice:
        lines.append(choice["note"])
    return lines


def _describe_edits(edits: Sequence[str]) -> str:
    """`removes layer 9, runs layer 4 twice`."""
    removed_units = removals_among(edits)
    moves = describe_moves(edits)
    if not moves:
        return f"removes {_list_units(removed_units)}"
    return f"removes {_list_units(removed_units)}, {moves}" if removed_units else moves


def _describe_repair(name: str) -> str:
    return "without a repair" if name == "none" else f"with repair {name}"


def _explain_removals(plan: Plan) -> list[str]:
    """The score of each unit when it was removed, and the accuracy after it."""
    lines = []
    steps = zip(plan.units, plan.scores, plan.accuracy_before, plan.accuracy_after, strict=False)
    for unit, score, accuracy_before, accuracy_after in steps:
        if score is None or not is_removal(unit):
            continue
        line = f"Layer {unit}: its relevance by {plan.metric} is {score:.4g}"
        if accuracy_before is not None and accuracy_after is not None:
            line += f"; without it, accuracy on the calibration went from {accuracy_before:.3f} to "
            line += f"{accuracy_after:.3f}"
        lines.append(f"{line}.")
    return lines


def _list_units(units: Sequence[str]) -> str:
    noun = "layer" if len(units) == 1 else "layers"
    return f"{noun} {', '.join(units)}" if units else "nothing"
