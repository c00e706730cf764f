"""How many units a study removes: whether that is possible, and how many a size like 6 GB means."""

from itertools import product
from pathlib import Path

from lamina.errors import LaminaError
from lamina.models import checkpoint, manifest, sizes
from lamina.options.explain import join_words
from lamina.options.selectors import Selector
from lamina.selection.named_layers import check_named_layers
from lamina_workflow.checks import files
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune, ReachedSize, Size

MOST_LAYERS = 1000
"""More layers than any model has."""


def check_removed(
    config: Configuration,
    entry_key: str,
    study: Prune,
    root: Path,
    sizes_by_model: dict[str, sizes.Sizes | None],
) -> None:
    """Refuse numbers of units that cannot be removed, and record what sizes mean.

    The number of units for each size goes into `config.reached_sizes`.

    entry_key: The key of the study.
    sizes_by_model: A cache that is filled, so that each model is read once for all studies.

    Raises LaminaError, which names the key `removed` of the study, or `protect`, `layers` or
    `sets` of a selector.
    """
    sizes_asked = [entry for entry in study.removed if isinstance(entry, Size)]
    for model in study.models:
        n_layers = config.models[model].layers
        if n_layers is None:
            _check_unknown_depth(config, entry_key, study, model)
            continue

        checks = RemovalChecks(config, f"{entry_key}.removed", model, n_layers)
        model_sizes = None
        if sizes_asked:
            if model not in sizes_by_model:
                sizes_by_model[model] = _read_sizes(config, model, root)
            model_sizes = sizes_by_model[model]
            if model_sizes is None:
                raise _no_shapes(entry_key, model, sizes_asked[0])

        for selector in study.selectors:
            check_named_layers(selector, config.selectors[selector], model, n_layers)
        for entry, selector in product(study.removed, study.selectors):
            if isinstance(entry, Size) and model_sizes is not None:
                reached = checks.reach_size(selector, entry, model_sizes)
                config.reached_sizes[model, selector, entry] = reached
            checks.check_sign(selector, entry)
            checks.check_count(selector, entry)


def _check_unknown_depth(config: Configuration, entry_key: str, study: Prune, model: str) -> None:
    """Refuse sizes and shares for a model whose number of layers is known only after download.

    Sizes that a selector can have for no model are refused too.
    """
    for entry in study.removed:
        if isinstance(entry, Size):
            raise _no_shapes(entry_key, model, entry)
    for entry in study.removed:
        if isinstance(entry, str):
            raise LaminaError(
                f"{entry_key}.removed: '{entry}' is a share of the layers of '{model}', but their "
                f"number is not known yet. Write `layers: N` in models.{model}, or a number of "
                "layers here."
            )
    checks = RemovalChecks(config, f"{entry_key}.removed", model, MOST_LAYERS)
    for entry, selector in product(study.removed, study.selectors):
        checks.check_sign(selector, entry)


def _no_shapes(entry_key: str, model: str, size: Size) -> LaminaError:
    return LaminaError(
        f"{entry_key}.removed: {size} is computed from the shapes of '{model}', which can only be "
        "read from a folder of safetensors weights that are not quantised. Write such a folder as "
        "its source, or a number of layers here."
    )


def _read_sizes(config: Configuration, model: str, root: Path) -> sizes.Sizes | None:
    """The sizes of a model in a folder; None if its weights are elsewhere or quantised."""
    entry = config.models[model]
    folder = root / entry.source
    if not folder.is_dir() or checkpoint.is_quantised(folder):
        return None
    entry_key = files.model_key(config, model)
    settings = checkpoint.read_settings(folder, entry_key, entry.source)
    tensors = checkpoint.read_weights(folder, entry_key)
    skeleton = manifest.load_skeleton(folder, entry.source, entry.trust_remote_code)
    decoder = checkpoint.decoder_settings(settings)
    bytes_per_number = checkpoint.stored_width(entry.dtype, decoder, tensors)
    return sizes.count_sizes(skeleton, bytes_per_number)


class RemovalChecks:
    """Checks of what the selectors of a study remove from one model."""

    def __init__(self, config: Configuration, entry_key: str, model: str, n_layers: int) -> None:
        """Messages begin with `entry_key`, such as the key `studies.NAME.removed`."""
        self.config = config
        self.entry_key = entry_key
        self.model = model
        self.n_layers = n_layers

    def reach_size(self, selector: str, size: Size, model_sizes: sizes.Sizes) -> ReachedSize:
        """The smallest size of a selector with which every plan leaves at most `size`.

        A selector that removes layers removes as few as possible. One that adds layers adds as many
        as possible.

        Raises LaminaError if the size is not below that of the base model, or out of reach.
        """
        selector_options = self.config.selectors[selector]
        whole_amount, saved_by_kind = model_sizes.amounts(
            size.what, size.context, selector_options.cost
        )
        size_limit = size.limit(whole_amount)
        if whole_amount <= size_limit and not selector_options.GROWS:
            raise LaminaError(
                f"{self.entry_key}: {size} leaves '{self.model}' as it is "
                f"({size.share(whole_amount, whole_amount)}). Write a smaller size."
            )

        # A plan saves at least as much as removing the smallest units would. If layers run again,
        # they take at most as much as the largest ones would.
        saved_amounts = sorted(saved_by_kind[selector_options.units])
        left_by_size: dict[int, float] = {}
        for n_removed in selector_options.allowed_sizes(self.n_layers):
            if n_removed < 0:
                left_by_size[n_removed] = whole_amount + sum(saved_amounts[n_removed:])
            else:
                left_by_size[n_removed] = whole_amount - sum(saved_amounts[:n_removed])
        fitting_sizes = [
            n_removed for n_removed, left in left_by_size.items() if left <= size_limit
        ]
        if fitting_sizes:
            return ReachedSize(fitting_sizes[0], left_by_size[fitting_sizes[0]], whole_amount)

        nearest = size.share(min(left_by_size.values(), default=whole_amount), whole_amount)
        if selector_options.GROWS:
            raise LaminaError(
                f"{self.entry_key}: {size} has no room for another layer: with one more, "
                f"'{self.model}' takes up to {nearest}. Write a larger size."
            )
        context_hint = ", or a smaller `context`" if size.what == "memory" else ""
        raise LaminaError(
            f"{self.entry_key}: {size} cannot be reached: selector '{selector}' removes at most "
            f"{max(left_by_size, default=0)} of the {self.n_layers} layers of '{self.model}', and "
            f"without them up to {nearest} are left. Write a larger size{context_hint}."
        )

    def check_sign(self, selector: str, entry: int | str | Size) -> None:
        """Refuse a size below a selector's least, or above its largest if that is below 1."""
        options = self.config.selectors[selector]
        n_removed = self.config.count_removed(self.model, selector, entry)
        allowed = options.allowed_sizes(self.n_layers)
        is_too_small = n_removed < allowed.start
        is_too_large = n_removed >= allowed.stop and allowed.start < allowed.stop <= 1
        if not is_too_small and not is_too_large:
            return

        as_written = "" if isinstance(entry, int) else f" ({entry})"
        message = (
            f"{self.entry_key}: {n_removed}{as_written} is not a size of selector '{selector}'"
        )
        if allowed.start < 1:
            largest = f" to {allowed[-1]}" if len(allowed) > 1 else ""
            raise LaminaError(f"{message}. Write {allowed[0]}{largest}.")
        moving_kinds = [kind.title() for kind in Selector.kinds() if kind.MOVES]
        raise LaminaError(
            f"{message}, which only removes. Write at least 1, or name a selector that repeats or "
            f"moves layers: strategy {join_words(moving_kinds)}."
        )

    def check_count(self, selector: str, entry: int | str | Size) -> None:
        """Refuse more units than a selector can remove from the model."""
        options = self.config.selectors[selector]
        n_removed = self.config.count_removed(self.model, selector, entry)
        largest_removal = options.allowed_sizes(self.n_layers).stop - 1
        if n_removed <= largest_removal:
            return

        as_written = "" if isinstance(entry, int) else f" ({entry})"
        n_protected = self.n_layers - sum(options.free(self.n_layers))
        remedy = f"Protect fewer layers in selectors.{selector}."
        if largest_removal:
            remedy = f"Write at most {largest_removal}."
        raise LaminaError(
            f"{self.entry_key}: {n_removed}{as_written} is more than selector '{selector}' can "
            f"remove from '{self.model}', which has {self.n_layers} layers "
            f"({n_protected or 'none'} protected{options.LIMIT}). {remedy}"
        )
