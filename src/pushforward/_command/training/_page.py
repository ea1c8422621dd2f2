"""The page of a fit: how wrong the network is, where it is worst, and how it was trained."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from ...pictures import MEASURED, Figure, Guide, Series, chip, figure, frame, series, typeset
from ._folder import Record

CURVES = 4
"""Series that a figure may have."""


def page(record: Record, title: str | None, command: str, folder: str) -> str:
    """A fit as one HTML page that needs nothing else.

    Args:
        record: the fit as plain data.
        title: of the page.
        command: what repeats the fit.
        folder: where the model is.
    """
    parts = [
        f"<h1>{_spaced(headline(record))}</h1>", _lead(record),
        _section("Errors", "error", _errors(record)),
        _section("The worst measure that was found", "attack", _attack(record)),
        _section("Training", "training", _training(record)),
        _about(record, command, folder),
    ]  # fmt: skip
    return frame(title or "pushforward, fit", "\n".join(parts))


def headline(record: Record) -> str:
    """The result in one sentence.

    Args:
        record: the fit as plain data.
    """
    if record["scores"] is not None:
        rows = record["scores"]["rows"]
        worst = max(rows, key=lambda row: _number(row["mean"]))
        least, most = (f(row["n"] for row in rows) for f in (min, max))
        sizes = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        return (
            f"The network is wrong by at most {_share(worst['mean'])} of the displacement in the "
            f"mean over random measures of {sizes} atoms."
        )
    if record["pairs"] is not None:
        found = record["pairs"]
        by = _share(found["mean"]) + " of the displacement"
        by = by if found["share"] else f"W1 = {_number(found['mean']):.3g}"
        return f"On {found['pairs']} pairs that it did not see, the network is wrong by {by}."
    return "The network was trained, and no pairs were held out to judge it by."


def _share(x: Any) -> str:
    """A share in per cent with two digits, rounded up."""
    value = 100 * _number(x)
    if not math.isfinite(value):
        return "an infinite share"
    if value == 0:
        return "0%"
    digits = 1 - math.floor(math.log10(abs(value)))
    up = math.ceil(value * 10**digits - 1e-9) / 10**digits
    return f"{up:,.{max(digits, 0)}f}%"


def _count(n: float) -> str:
    """A whole number as pages write it: 4096, and 10 000 with a narrow space."""
    return f"{n:.0f}" if n < 10_000 else f"{n:,.0f}".replace(",", "\u202f")


def _spaced(text: str) -> str:
    """A sentence as HTML, with its numbers as pages write them."""
    text = re.sub(r"\d{1,3}(,\d{3})+", lambda m: _count(int(m[0].replace(",", ""))), text)
    return typeset(re.sub(r"(?<=\d)%", " %", text))


def _lead(record: Record) -> str:
    """What the sentence on the result leaves out."""
    said = []
    if record["attack"] is not None:
        worst = max(record["attack"]["rows"], key=lambda row: _number(row["found"]))
        said.append(
            f"The worst measure that an attack found has {worst['n']} atoms and an error of "
            f"{_share(worst['found'])}. The largest error of all is at least that."
        )
    if record["pairs"] is not None:
        worst = record["pairs"]["worst"]
        by = _share(worst) if record["pairs"]["share"] else f"{_number(worst):.3g}"
        said.append(f"The largest error of a pair is {by}.")
    if record["obstructions"]:
        said.append(record["obstructions"])
    return f'<p class="lead">{_spaced(" ".join(said))}</p>' if said else ""


def _section(title: str, name: str, body: tuple[str, list[Figure]]) -> str:
    """A part of the page, nothing if it has no figures."""
    text, figures = body
    if not figures:
        return ""
    drawn = "".join(figure(f.to_dict(), f"{name}-{k}") for k, f in enumerate(figures))
    return (
        f'<section id="{name}"><div class="sh"><h2>{typeset(title)}</h2>{chip(MEASURED)}</div>'
        f'<p>{_spaced(text)}</p><div class="figs">{drawn}</div></section>'
    )


# What is shown


def _errors(record: Record) -> tuple[str, list[Figure]]:
    """Errors against the number of atoms, and one measure."""
    picture = record["pictures"].get("held_out")
    drawn = _picture(
        picture, "One measure that was not learned from",
        "Grey lines join where an atom should go to where the network puts it.",
    )  # fmt: skip
    if record["scores"] is None:
        text = (
            "The error is the distance W1 between what the network makes of a source and the "
            "target, divided by the mean distance between sources and targets."
        )
        if record["pairs"] is not None and not record["pairs"]["share"]:
            text = "The error is the distance W1 between the image of a source and the target."
        return text, drawn
    rows = record["scores"]["rows"]
    sizes = tuple(row["n"] for row in rows)
    mean = Series(
        "mean", sizes, tuple(_number(row["mean"]) for row in rows), "line",
        tuple(_number(row["standard_error"]) for row in rows) if rows[0]["measures"] > 1 else (),
    )  # fmt: skip
    worst = Series("worst draw", sizes, tuple(_number(row["worst"]) for row in rows), "line")
    exact = [(row["n"], _number(row["transport"])) for row in rows if row["transport"] is not None]
    more = (series("W1", [n for n, _ in exact], [w for _, w in exact]),) if exact else ()
    low, high = record["configuration"]["training"]["batches"]["sizes"]
    guides = [Guide(high, f"trained up to {_count(high)}", "x", "below")]
    if low > min(sizes):
        guides.append(Guide(low, f"from {_count(low)}", "x"))
    measures = rows[0]["measures"]
    by_size = Figure(
        "Error against the number of atoms", "atoms", "error",
        (mean, worst, *more), "xy",
        f"Means over {measures} random measures of each size; the band is one standard error. "
        "Shaded: numbers of atoms that training had.",
        ticks=tuple((n, _count(n)) for n in sizes), guides=tuple(guides), percent=True,
    )  # fmt: skip
    text = (
        "The error of a measure is the mean distance between where its atoms should go and where "
        "the network puts them, divided by the mean distance that they should go. W1 of the "
        "images is at most that."
    )
    return text, [by_size, *drawn]


def _attack(record: Record) -> tuple[str, list[Figure]]:
    """The worst measures by the number of atoms, and a picture of the worst of all."""
    found = record["attack"]
    if found is None:
        return "", []
    rows, effort = found["rows"], found["effort"]
    sizes = tuple(row["n"] for row in rows)
    curves = tuple(
        Series(name, sizes, tuple(_number(row[key]) for row in rows))
        for name, key in (("worst found", "found"), ("worst start", "start"), ("median", "median"))
    )
    by_size = Figure(
        "Error of the worst measure", "atoms", "error / mean displacement", curves, "xy",
        "The worst of the starts, the worst on the way from them, and the median over the starts "
        "of the worst on the way.",
        ticks=tuple((n, _count(n)) for n in sizes), percent=True,
    )  # fmt: skip
    starts = effort["starts"] * effort["seeds"]
    text = (
        f"The atoms and weights of {_count(starts)} small measures of each size climbed the error "
        f"along its gradient for {_count(effort['steps'])} steps, on the box of radius "
        f"{effort['radius']:g}. An attack finds errors that occur. That it finds no larger one is "
        "no proof that there is none."
    )
    picture = record["pictures"].get("worst")
    heaviest = max(picture["weights"]) if picture else 0
    words = (
        f"The heaviest of its {picture['atoms']} atoms has {100 * heaviest:.0f} % of the mass. "
        "Grey lines join where an atom should go to where the network puts it."
        if picture else ""
    )  # fmt: skip
    return text, [by_size, *_picture(picture, "The worst measure", words)]


def _picture(data: Any, title: str, caption: str) -> list[Figure]:
    """A measure before, as it should be and as predicted, by two coordinates; none on a line."""
    if not data or min(len(data[name][0]) for name in ("before", "true")) < 2:
        return []
    clouds = {name: [x[:2] for x in data[name]] for name in ("before", "true", "predicted")}
    drawn = []
    for name, cloud in clouds.items():
        points = [_point(p) for p in cloud]
        drawn.append(series(name, [x for x, _ in points], [y for _, y in points], "dots"))
    if data["paired"]:
        ends = list(zip(clouds["true"], clouds["predicted"], strict=True))
        nowhere = (math.nan, math.nan)
        line = [p for a, b in ends for p in (_point(a), _point(b), nowhere)]
        x, y = zip(*line, strict=True)
        drawn.append(Series("", tuple(x), tuple(y), "paths"))
    else:
        caption = ""
    more = " Of all coordinates these are the first two." if len(data["before"][0]) > 2 else ""
    words = f"{caption}{more}".strip()
    return [Figure(title, "x_1", "x_2", tuple(drawn), "", words, square=True)]


def _point(x: Sequence[Any]) -> tuple[float, float]:
    return _number(x[0]), _number(x[1])


def _training(record: Record) -> tuple[str, list[Figure]]:
    """The loss and the held-out errors against the step."""
    log = record["log"]
    steps = [row["step"] for row in log]
    loss = Figure(
        "Loss", "step", "loss", (series("loss", steps, [_number(r["loss"]) for r in log]),), "y",
        "The mean over the steps since the last evaluation, of the weights as they were.",
    )  # fmt: skip
    names = [name for name in log[0] if name.startswith("error")]
    chosen = _spread(names, CURVES)
    curves = tuple(
        series(_named(name), steps, [_number(row[name]) for row in log]) for name in chosen
    )
    simulated = record["configuration"]["pairs"] is None
    errors = Figure(
        "Error on measures that were not learned from", "step",
        "error / displacement" if simulated else "loss", curves, "y",
        "Of the averaged weights, which the model has in the end.", percent=simulated,
    )  # fmt: skip
    last = log[-1]
    text = (
        f"{_count(record['steps'])} steps in {_count(last['seconds'])} seconds, with the loss "
        f"`{record['loss']}`."
    )
    if record["steps"] < (asked := record["configuration"]["training"]["steps"]):
        text += (
            f" Of {_count(asked)} steps the last were not taken, because the error fell no more."
        )
    return text, [loss, *([errors] if curves else [])]


def _named(column: str) -> str:
    """The label of a column of the log: "error n = 16" are errors at 16 atoms."""
    n = column.rpartition("= ")[2]
    return f"{_count(int(n))} atoms" if n.isdigit() else "held out"


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many names, evenly chosen, the first and the last among them."""
    if len(names) <= most:
        return list(names)
    return [names[round(k * (len(names) - 1) / (most - 1))] for k in range(most)]


# How it was made


def _about(record: Record, command: str, folder: str) -> str:
    """Model, target, machine, and what is needed to repeat the fit and to use the model."""
    found = record["configuration"]
    versions = ", ".join(f"{name} {x}" for name, x in record["versions"].items())
    target = found["target"]
    law = _law(found["law"]) if found["law"] else ""
    rows = [
        ("Model", f"{_described(found['model'])}; {_count(record['parameters'])} parameters"),
        ("Target", f"the flow of {_field(target['field'])} until time {target['t1']:g}, by "
                   f"{_solver(target['solver'])}" if target else "pairs of measures in files"),
        ("Measures", law),
        ("Machine", record["machine"]),
        ("Versions", versions),
        ("Seed", str(found["training"]["seed"])),
    ]  # fmt: skip
    facts = "".join(f"<dt>{a}</dt><dd>{_spaced(b)}</dd>" for a, b in rows if b)
    load = f'import pushforward as pf\n\nmodel = pf.maps.load("{folder}/model.safetensors")\n'
    load += "image = model.push(pf.Measure(points))  # points: (n, d)"
    return (
        f'<section id="about"><h2>About this fit</h2><dl class="facts">{facts}'
        f"<dt>Repeat</dt><dd><code>{escape(command)}</code></dd></dl>"
        f"<h3>Use the model</h3><pre>{escape(load)}</pre>"
        "<details><summary>Configuration, with all defaults</summary>"
        f"<pre>{escape(_yaml(found))}</pre></details></section>"
    )


def _described(model: Record) -> str:
    words = [model["architecture"], f"depth {model['depth']}"]
    for name in ("heads", "width", "hidden"):
        words += [f"{name} {model[name]}"] if model.get(name) else []
    words += [model["norm"]] if model.get("norm", "none") != "none" else []
    return ", ".join(words)


def _field(field: Record) -> str:
    if field["kind"] == "Sum":
        return " + ".join(map(_field, field["fields"]))
    return f"`{field['kind']}`"


def _solver(solver: Record) -> str:
    steps = f" in {_count(solver['steps'])} steps" if solver.get("steps") else ""
    return f"`{solver['kind']}`{steps}"


def _law(law: Record) -> str:
    if law["kind"] == "OneOf":
        return f"one of {', '.join(map(_law, law['laws']))}"
    return f"`{law['kind']}` in R^{law['dim']}, in the box of radius {law['radius']:g}"


def _yaml(data: Any) -> str:
    """Data as lines of YAML."""
    import yaml

    return yaml.safe_dump(_kept(data), sort_keys=False, default_flow_style=None, width=76)


def _kept(data: Any) -> Any:
    """Data without the keys that are not given."""
    if isinstance(data, dict):
        return {k: _kept(v) for k, v in data.items() if v is not None}
    return [_kept(v) for v in data] if isinstance(data, list) else data


def _number(x: Any) -> float:
    """A number of a record, where those that are not finite are None or words."""
    return math.nan if x is None else float(x)
