"""How many units a study removes: whether that many can be, and what sizes such as 6 GB come to."""

from itertools import accumulate, product
from pathlib import Path

from lamina.errors import LaminaError
from lamina.models import checkpoint, manifest, sizes
from lamina_workflow.checks import files
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune, ReachedSize, Size


def check_removed(
    config: Configuration,
    where: str,
    study: Prune,
    root: Path,
    sizes_by_model: dict[str, sizes.Sizes | None],
) -> None:
    """Refuse numbers of units that cannot be removed, and note what sizes come to.

    The number of units for each size goes into `config.reached_sizes`.

    where: The key of the study.
    sizes_by_model: Those that are read go in, so that each model is read once for all studies.

    Raises LaminaError, which names the key `removed` of the study or `protect` of a selector.
    """
    sizes_asked = [entry for entry in study.removed if isinstance(entry, Size)]
    for model in study.models:
        n_layers = config.models[model].layers
        if n_layers is None:
            _check_unknown_depth(where, study, model)
            continue

        checks = RemovalChecks(config, f"{where}.removed", model, n_layers)
        model_sizes = None
        if sizes_asked:
            if model not in sizes_by_model:
                sizes_by_model[model] = _read_sizes(config, model, root)
            model_sizes = sizes_by_model[model]
            if model_sizes is None:
                raise _no_shapes(where, model, sizes_asked[0])

        for selector in study.selectors:
            checks.check_protected(selector)
        for entry, selector in product(study.removed, study.selectors):
            if isinstance(entry, Size) and model_sizes is not None:
                reached = checks.reach_size(selector, entry, model_sizes)
                config.reached_sizes[model, selector, entry] = reached
            checks.check_count(selector, entry)


def _check_unknown_depth(where: str, study: Prune, model: str) -> None:
    """Refuse sizes and shares for a model whose layers are not counted before it is downloaded."""
    for entry in study.removed:
        if isinstance(entry, Size):
            raise _no_shapes(where, model, entry)
    for entry in study.removed:
        if isinstance(entry, str):
            raise LaminaError(
                f"{where}.removed: '{entry}' is a share of the layers of '{model}', but their number is "
                f"not known yet. Write layers: N in models.{model}, or a number of layers here."
            )


def _no_shapes(where: str, model: str, size: Size) -> LaminaError:
    return LaminaError(
        f"{where}.removed: {size} is computed from the shapes of '{model}', which are read from a "
        "folder of safetensors weights that are not quantised. Write such a folder as its source, "
        "or a number of layers here."
    )


def _read_sizes(config: Configuration, model: str, root: Path) -> sizes.Sizes | None:
    """The sizes of a model in a folder; None of one whose weights are elsewhere or quantised."""
    entry = config.models[model]
    folder = root / entry.source
    if not folder.is_dir() or checkpoint.is_quantised(folder):
        return None
    where = files.model_key(config, model)
    settings = checkpoint.read_settings(folder, where, entry.source)
    tensors = checkpoint.read_weights(folder, where)
    skeleton = manifest.load_skeleton(folder, entry.source, entry.trust_remote_code)
    decoder = checkpoint.decoder_settings(settings)
    bytes_per_number = checkpoint.stored_width(entry.dtype, decoder, tensors)
    return sizes.count_sizes(skeleton, bytes_per_number)


class RemovalChecks:
    """Checks of what the selectors of a study remove from one model."""

    def __init__(self, config: Configuration, where: str, model: str, n_layers: int) -> None:
        """`where` is the key that a message begins with: `studies.NAME.removed`."""
        self.config = config
        self.where = where
        self.model = model
        self.n_layers = n_layers

    def check_protected(self, selector: str) -> None:
        """Refuse protected layers that the model does not have."""
        for index in self.config.selectors[selector].protect:
            if not -self.n_layers <= index < self.n_layers:
                raise LaminaError(
                    f"selectors.{selector}.protect: {index} is not a layer of '{self.model}', "
                    f"which has {self.n_layers} layers. Write 0 to {self.n_layers - 1}, or -1 to "
                    f"-{self.n_layers} to count from the end."
                )

    def reach_size(self, selector: str, size: Size, model_sizes: sizes.Sizes) -> ReachedSize:
        """The fewest units of a selector with which every plan leaves at most a size.

        Raises LaminaError if the size is not below that of the base model, or out of reach.
        """
        options = self.config.selectors[selector]
        whole, saved_by_kind = model_sizes.amounts(size.what, size.context, options.cost)
        limit = size.limit(whole)
        if whole <= limit:
            raise LaminaError(
                f"{self.where}: {size} leaves '{self.model}' as it is "
                f"({size.share(whole, whole)}). Write a smaller size."
            )

        # Whichever units a plan removes, it saves at least what the smallest ones do.
        saved = accumulate(sorted(saved_by_kind[options.units]), initial=0.0)
        left = [whole - amount for amount in saved]
        largest = options.largest_removal(self.n_layers)
        if left[largest] > limit:
            context = ", or a smaller `context`" if size.what == "memory" else ""
            raise LaminaError(
                f"{self.where}: {size} cannot be reached: selector '{selector}' removes at most "
                f"{largest} of the {self.n_layers} layers of '{self.model}', and without them up "
                f"to {size.share(left[largest], whole)} are left. Write a larger size{context}."
            )

        n_removed = sum(amount > limit for amount in left)
        return ReachedSize(n_removed, left[n_removed], whole)

    def check_count(self, selector: str, entry: int | str | Size) -> None:
        """Refuse more units than a selector can remove from the model."""
        options = self.config.selectors[selector]
        count = self.config.n_removed(self.model, selector, entry)
        largest = options.largest_removal(self.n_layers)
        if count <= largest:
            return

        as_written = "" if isinstance(entry, int) else f" ({entry})"
        n_protected = self.n_layers - sum(options.free(self.n_layers))
        remedy = f"Protect fewer layers in selectors.{selector}."
        if largest:
            remedy = f"Write at most {largest}."
        raise LaminaError(
            f"{self.where}: {count}{as_written} is more than selector '{selector}' can remove from "
            f"'{self.model}', which has {self.n_layers} layers ({n_protected or 'none'} "
            f"protected{options.LIMIT}). {remedy}"
        )
