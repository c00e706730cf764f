"""End a run with an error where a plan or repair that the config asks for was refused; all else is done by then."""

import argparse

from lamina.errors import LaminaError, explained
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", required=True, help="the gathered table of plans")
    parser.add_argument("--patches", required=True, help="the gathered table of patches")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        rows = store.read(args.plans).to_pylist()
        refused = {}
        for row in rows:
            if row["refused"]:
                refused.setdefault((row["model"], row["calibration"], row["selector"]), row["refused"])
        for row in store.read(args.patches).to_pylist():
            if row["refused"]:
                key = (row["model"], row["calibration"], row["selector"], f"removed={row['removed']}", row["recovery"])
                refused.setdefault(key, row["refused"])
        if refused:
            lines = [f"  {'/'.join(key)}: {reason}" for key, reason in refused.items()]
            raise LaminaError("the run is complete but for what was refused:\n" + "\n".join(lines))
        store.write_text(
            args.output,
            f"{len({(r['model'], r['calibration'], r['selector'], r['removed']) for r in rows})} plans, none refused\n",
        )
