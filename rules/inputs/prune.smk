# What the jobs of ../prune.smk read, where the file's name follows from the configuration.


def removed_before(w):
    """The number of units that are removed before a step."""
    if not CONFIG.selectors[w.selector].STEPS:
        return 0
    if int(w.removed) < 1:
        raise ValueError(f"selector '{w.selector}' has no size {w.removed}")
    return int(w.removed) - 1


def previous_plan(w):
    """The plan with one unit fewer, from which an iterative selector continues."""
    n_removed = removed_before(w)
    if n_removed == 0:
        return []
    return f"results/plans/{w.model}/{w.calibration}/{w.selector}/removed={n_removed}.json"


def sweep_of(w, calibration):
    """The sweep of a calibration that a step reads, if it reads one."""
    if not sweeps.step_pass(CONFIG, w.selector):
        return []
    n_removed = removed_before(w)
    selector = sweeps.sweep_of_step(CONFIG, w.selector, n_removed, w.calibration, calibration)
    return f"results/sweeps/{w.model}/{calibration}/{selector}/removed={n_removed}.parquet"


def activations_of(w):
    """The captured activations, which a selector that compares runs of layers reads."""
    if not CONFIG.selectors[w.selector].CAPTURED:
        return []
    return f"results/activations/{w.model}/{w.calibration}.parquet"


def calibrations_of_search(w):
    """Other calibrations that a search reads: to judge sets, or to fit the repairs."""
    names = sorted(requests.chosen_on(CONFIG, w.calibration, w.selector))
    return [f"results/calibrations/{w.model}/{name}.parquet" for name in names]


def manifests_of_donors(w):
    """The manifests of the models whose layers may replace the model's own."""
    donors = CONFIG.selectors[w.selector].donors
    return [f"results/models/{name}/manifest.json" for name in donors]


def files_of_judge(w):
    """The user's files with the judge questions, if sets answer them in writing."""
    selector = CONFIG.selectors[w.selector]
    if selector.judge_by != "written":
        return []
    return prepare.calibration_files(CONFIG, selector.judge or w.calibration)


def other_calibrations(w):
    """The names of other calibrations that a selector scores removals on."""
    if not sweeps.step_pass(CONFIG, w.selector):
        return []
    return sorted(requests.further_calibrations(CONFIG, w.calibration, w.selector))


def cores_of_search(w):
    """Threads of a search: all of them if it is the only one, since later jobs wait for it."""
    is_only = len(requests.list_searches(CONFIG)) == 1
    return threads_of_job(cores(), alone=is_only)
