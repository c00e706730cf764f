"""Calibrations, tasks and texts: from a user's data to samples as token ids.

`prepare` builds a calibration from its entry in the configuration. Its samples come from

    lm_tasks       tasks of lm-eval: `task_groups` finds them, `task_files` reads their files as
                   text, `prompts` writes their prompts, `answers` checks their right answers
    documents      texts: of a file, or of a data set in a folder (`folders`) or of the hub
    files          the user's own questions, labelled texts and pairs of prompts

`encoding` tokenises them as lm-eval does, and `calibrations` holds and stores the samples.
Afterwards, `overlap` looks for test documents among them, and `splitting` divides them into fit
samples and held-out samples.
"""
