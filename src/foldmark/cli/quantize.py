"""`foldmark quantize`: a float model to a quantized one, by a recipe."""

from dataclasses import replace
from pathlib import Path

import click

from foldmark.calibrate.ranges_file import load_calibration
from foldmark.cli.data_option import DATA_HELP, parse_data
from foldmark.cli.json_option import JSON_HELP, check_json, write_json
from foldmark.cli.observer_option import observer_from, observer_options
from foldmark.cli.output_option import check_output, progress
from foldmark.cli.quantize_report import document, text
from foldmark.formats.onnx_file import read_model
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Form, MethodName, Mode, Recipe
from foldmark.recipes.recipe_file import BUILT_IN, find_recipe, recipe_text
from foldmark.recipes.save import save_model
from foldmark.runtimes.batches import DataLike, open_data
from foldmark.surgery.activations import ActivationCodes

__all__ = ["command"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
@click.option(
    "--recipe",
    "recipe_name",
    metavar="NAME|FILE",
    help=f"A TOML file or one of {', '.join(BUILT_IN)}, methods behind it or not "
    "(static+smoothquant); the options below change it.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="static: ranges from data. dynamic: ranges at run time. Default: static.",
)
@click.option("--data", metavar="SOURCE", help=DATA_HELP)
@click.option("--samples", type=click.IntRange(1), help="Only the first of --data. Default: all.")
@click.option(
    "--ranges",
    type=click.Path(path_type=Path),
    help="Ranges from foldmark calibrate, instead of running the model.",
)
@click.option("--form", type=click.Choice([form.value for form in Form]), help="Of a static graph.")
@click.option("--operator", "operators", multiple=True, help="Quantize this type; repeatable.")
@click.option(
    "--include", multiple=True, metavar="REGEX", help="Only nodes whose name matches; repeatable."
)
@click.option(
    "--exclude", multiple=True, metavar="REGEX", help="Leave nodes that match; repeatable."
)
@click.option("--bits", type=click.Choice(["4", "8"]), help="Of weights. 4 with weight-only.")
@click.option("--per-tensor", is_flag=True, help="One scale per weight, not per channel.")
@click.option("--block-size", type=int, help="Of weight-only codes: 16, 32, 64, 128 or 256.")
@click.option(
    "--activations",
    type=click.Choice([codes.value for codes in ActivationCodes]),
    help="Codes of static activations.",
)
@click.option(
    "--rule", help="Rule of 8-bit weights: onnxruntime, or a name that foldmark rules lists."
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="METHOD",
    type=click.Choice([method.value for method in MethodName]),
    help=f"Beyond rounding to nearest: {', '.join(method.value for method in MethodName)}; "
    "repeatable.",
)
@observer_options
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--show-recipe", is_flag=True, help="Print the recipe as TOML and do nothing else.")
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
@click.option("--force", is_flag=True, help="Overwrite the output.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    model: Path,
    output: Path,
    data: str | None,
    samples: int | None,
    ranges: Path | None,
    batch_size: int,
    show_recipe: bool,
    json_file: str | None,
    force: bool,
    **_options: object,
) -> None:
    """Quantize the float MODEL and say what was done, what was left, and why.

    Matrix products, convolutions and embedding tables are quantized; cheap operators are left
    in float. Check the result with foldmark verify.
    """
    recipe = _recipe(context)
    if show_recipe:
        click.echo(recipe_text(recipe), nl=False)
        return
    check_output(output, force, model)
    check_json(json_file, [model, output])
    calibration = load_calibration(ranges) if ranges is not None else None
    source: DataLike = parse_data(data)
    if samples is not None and source is not None:
        source = open_data(source, read_model(model), limit=samples)
    with progress("quantizing") as step:
        made = quantize_model(
            model,
            recipe,
            source,
            ranges=calibration,
            batch_size=batch_size,
            progress=step,
        )
    save_model(made.model, output)
    if json_file is not None:
        write_json(document(made.account, recipe, model, output), json_file)
    if json_file != "-":
        click.echo(text(made.account, recipe, model, output))


def _recipe(context: click.Context) -> Recipe:
    """Return the recipe that --recipe names, changed by the options that were given."""
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    mode = Mode(given["mode"]) if "mode" in given else None
    name = given.get("recipe_name") or _named_by(mode, given.get("bits"))
    recipe = find_recipe(name)
    changes: dict[str, object] = {}
    if mode is not None:
        changes["mode"] = mode
    if "form" in given:
        changes["form"] = Form(given["form"])
    for option, field in (
        ("operators", "operators"),
        ("include", "include"),
        ("exclude", "exclude"),
    ):
        if option in given:
            changes[field] = given[option]
    if "bits" in given:
        changes["weight_bits"] = int(given["bits"])
    if given.get("per_tensor"):
        changes["per_channel"] = False
    if "block_size" in given:
        changes["block_size"] = given["block_size"]
    if "activations" in given:
        changes["activations"] = ActivationCodes(given["activations"])
    if "rule" in given:
        changes["rule"] = given["rule"]
    if "methods" in given:
        changes["methods"] = tuple(MethodName(method) for method in given["methods"])
    if given.keys() & {"method", "symmetric", "percentile", "constant"}:
        changes["observer"] = observer_from(
            *(context.params[key] for key in ("method", "symmetric", "percentile", "constant"))
        )
    return replace(recipe, **changes)  # type: ignore[arg-type]


def _named_by(mode: Mode | None, bits: str | None) -> str:
    if mode is Mode.WEIGHT_ONLY:
        return f"weight-only-{bits or '4'}"
    return "static" if mode is None else mode.value
