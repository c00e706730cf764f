# What the jobs of ../prepare.smk read, where the file's name follows from the configuration.


def checkpoint_of_quantised(w):
    """The dequantised checkpoint, if the model is a GGUF file or a folder of quantised weights."""
    names = prepare.checkpoint_names(CONFIG)
    return f"results/checkpoints/{names[w.model]}" if w.model in names else []


def quantised_files(w):
    """The files that {checkpoint} is made from."""
    return prepare.quantised_files(CONFIG, w.checkpoint)


def calibration_files(w):
    """The user's files that {calibration} is drawn from."""
    return prepare.calibration_files(CONFIG, w.calibration)


def own_answers(w):
    """The model's own answers to the questions of {calibration}, or of parts of a mixture.

    Nothing where the answers are those of the data.
    """
    names = [name for name, part in CONFIG.parts(w.calibration).items() if part.own]
    return [f"results/answers/{w.model}/{name}.parquet" for name in names]


def task_files(w):
    """The user's files that {task} is made of."""
    return prepare.data_files(w.task, prepare.benchmark_entry(CONFIG, w.task))
