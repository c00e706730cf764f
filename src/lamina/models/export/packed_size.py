"""Explains the size of an export compared with the GGUF file of its base model."""


def describe_packed_size(file_name: str, n_bytes: int, variant: str, is_bare_cut: bool) -> str:
    """Why an export is larger than the file, and how to get one that is not.

    file_name: The GGUF file of the base model.
    n_bytes: Its size.
    variant: The variant's name, or a placeholder.
    is_bare_cut: Whether layers were removed and nothing else was changed.
    """
    sentence = (
        f"{file_name} packs the base model into {n_bytes / 1e6:,.1f} MB, and the weights of an "
        "export are not packed."
    )
    if is_bare_cut:
        return f"{sentence} A variant without a repair stays packed: lamina export {variant} --form gguf"
    return f"{sentence} Repaired weights differ from those of the file, so they cannot stay packed."
