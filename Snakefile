# The workflow is workflow/Snakefile, where the catalog, snakedeploy and modules look for it.
include: "workflow/Snakefile"


# A file that includes another one does not take its default target.
rule default:
    default_target: True
    input:
        rules.all.input,
    localrule: True
