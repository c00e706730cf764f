"""Hand out the plan of one size from those that a search found."""

import argparse
import json
from pathlib import Path

from lamina.errors import LaminaError, explained
from lamina.search import plans
from lamina.search.plans import Plan

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", required=True, type=Path, help="what search_plans found")
    parser.add_argument("--removed", required=True, type=int)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        found = [Plan(**plan) for plan in json.loads(args.plans.read_text(encoding="utf-8"))]
        sizes = [plan.removed for plan in found]
        if args.removed not in sizes:
            raise LaminaError(
                f"no study has its search remove {args.removed} units, only {sizes}. Add {args.removed} to `removed` "
                "of a study."
            )
        plans.write(args.output, found[sizes.index(args.removed)])
