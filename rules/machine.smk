# What this machine gives a run: cores and GPUs for its jobs, and what happens as it begins and fails. Gives: `cores` and
# `gpus` for the resources of rules, STARTED.
import atexit


def cores():
    """Cores of the machine that jobs share with this process; a job of a cluster must not count those of its node."""
    return workflow.cores if workflow.local_exec and not workflow.remote_exec else None


# GPUs here, and the memory of one.
here_gpus = cache(lambda: len(gpu_lock.devices(os.environ)))
device_gb = cache(lambda: gpu_lock.memory_gb(os.environ))


def gpus_of(wildcards, input):
    """GPUs of a job: as many as the weights of its model need. Jobs of a cluster get what they ask for."""
    most = here_gpus() if workflow.local_exec and not workflow.remote_exec else None
    return devices(CONFIG.models[wildcards.model].devices, input.manifest, device_gb(), most)


# A large graph calls the functions of each job, so a value that is the same for all jobs is a number.
gpus = 1 if all(model.devices == 1 for model in CONFIG.models.values()) else gpus_of


STARTED = ".snakemake/lamina-started"  # when the run began, for its wall time; on a cluster in the shared folder


onstart:
    Path(STARTED).touch()


onerror:
    # This is written after all messages of Snakemake. A job of a cluster is no run.
    if log and not workflow.remote_exec:
        atexit.register(failures.tell, log[0])
