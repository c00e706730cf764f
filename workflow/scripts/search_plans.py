"""Search the sets of units that one selector removes, at every size that a study asks for."""

import hashlib
from dataclasses import asdict
from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data import calibrations
from lamina.models.load import load_model
from lamina.modules import load
from lamina.runtime.script import running
from lamina.selection.sets import SearchRequest
from lamina.stages.prune import SearchPlans
from lamina.store import checksum as seal
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = SearchPlans.read(snakemake)
        manifest = seal.read_json(job.manifest)
        files = {job.keys["calibration"]: job.calibration} | job.data
        read = [job.manifest, *files.values()]
        contents = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in read]
        log = Path(job.output).with_suffix(".log")
        plans, rows = load(job.selector.SEARCH).search_plans(
            SearchRequest(
                model=load_model(manifest, check=job.check),
                calibrations={name: calibrations.read(file) for name, file in files.items()},
                selector=job.selector,
                sizes=job.sizes,
                keys=job.keys,
                score=job.score,
                tokens=job.tokens,
                loop=job.loop,
                loops=job.repairs,
                replacements=job.replacements.read_records(job.manifests)
                if job.replacements
                else None,
                manifest=manifest,
                log=log,
                origin=hashlib.sha256(repr([job.provenance, contents]).encode()).hexdigest(),
            )
        )
        store.write_json(job.plans, {"plans": [asdict(plan) for plan in plans]})
        store.write(job.output, store.from_rows("searches", rows, **job.keys), job.provenance)
        log.unlink(missing_ok=True)
