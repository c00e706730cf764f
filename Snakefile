# The workflow is in workflow/Snakefile, where the Snakemake catalog, snakedeploy and modules expect
# it.
include: "workflow/Snakefile"


# Snakemake takes no default target from an included file.
rule default:
    default_target: True
    input:
        rules.all.input,
    localrule: True
