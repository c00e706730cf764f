"""What only a GPU shows, as a report to paste into an issue: its tests, all stages at scale, and the embedded study.

make check-gpu
"""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PARTS = {
    "Tests that need a GPU": [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-rs",
        "tests/device/test_gpu.py",
    ],
    "Every stage at the size of a model of 1.1 billion": [
        sys.executable,
        "benchmarks/scale.py",
        "--preset",
        "1.1B",
    ],
    "The embedded study on the GPU": [
        *(
            str(BIN / "snakemake"),
            "--cores",
            "all",
            "--resources",
            f"gpu={torch.cuda.device_count()}",
            "--keep-going",
        ),
        *("--directory", "results/check-gpu", "--quiet", "all"),
    ],
}
LINES = 60  # of each part's output


def main() -> int:
    """Run all parts, whatever fails; the exit status says whether one did."""
    if not torch.cuda.is_available():
        print(
            "check-gpu: no GPU is visible to torch, so there is nothing to check here.",
            file=sys.stderr,
        )
        return 2
    devices = [
        torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())
    ]
    print(
        f"# lamina on {platform.platform()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    )
    for found in devices:
        print(f"- {found.name}, {found.total_memory / 2**30:.0f} GiB")
    failed = 0
    for title, command in PARTS.items():
        if "--directory" in command:
            (ROOT / command[command.index("--directory") + 1]).mkdir(parents=True, exist_ok=True)
            command = [*command, "--snakefile", str(ROOT / "workflow/Snakefile")]
        start = time.monotonic()
        environment = os.environ | {"PYTHONPATH": "src"}
        told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ended = subprocess.run(command, cwd=ROOT, env=environment, **told)
        failed += ended.returncode != 0
        state = "passed" if ended.returncode == 0 else f"FAILED ({ended.returncode})"
        print(f"\n## {title}: {state}, {time.monotonic() - start:.0f} s\n\n```")
        print("\n".join(ended.stdout.splitlines()[-LINES:]))
        print("```", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
