"""Check that the engine computes what a model without the layers would; write the findings."""

from lamina_workflow.runtime.script import run_script

from lamina.engine.check import check_model
from lamina.models.check import collect_findings
from lamina.models.load import load_model
from lamina.store import checksum, parquet
from lamina_workflow.stages.prepare import CheckModel

if __name__ == "__main__":
    with run_script(snakemake):
        job = CheckModel.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        model = load_model(manifest)
        check_model(model)
        parquet.write_json(job.output, collect_findings(model, manifest), job.description)
