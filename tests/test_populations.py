"""The benchmark of real populations: its reader of cytometry files, its baselines, its films."""

import importlib
import io
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import pushforward as pf

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def data():
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("populations_data")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def populations(data):
    return importlib.import_module("populations")


def fcs(values, names, **words):
    """A file of flow cytometry, written by the standard."""
    about = {
        "$MODE": "L", "$TOT": str(len(values)), "$PAR": str(len(names)), **words,
        **{f"$P{k}N": name for k, name in enumerate(names, 1)},
    }  # fmt: skip
    text = "/" + "".join(f"{k}/{v.replace('/', '//')}/" for k, v in about.items())
    kind, order = about["$DATATYPE"], ">" if about["$BYTEORD"] == "4,3,2,1" else "<"
    form = {"F": "f", "D": "d", "I": "I"}[kind]
    body = b"".join(struct.pack(f"{order}{len(row)}{form}", *row) for row in values)
    begin = 58 + len(text)
    places = (58, begin - 1, begin, begin + len(body) - 1, 0, 0)
    return ("FCS3.0    " + "".join(f"{p:8d}" for p in places)).encode() + text.encode() + body


BITS = {"$P1B": "32", "$P2B": "32", "$P1E": "0,0", "$P2E": "0,0"}


def test_cytometry_files_are_read_as_the_standard_says(data):
    """Both byte orders, floats, whole numbers above their range, and a doubled delimiter."""
    rows = [[1.5, -2.0], [3.25, 1e5], [0.0, 7.0]]
    for order in ("4,3,2,1", "1,2,3,4"):
        file = fcs(rows, ["FSC/A", "b"], **BITS, **{"$DATATYPE": "F", "$BYTEORD": order})
        names, values = data.read_fcs(file)
        assert names == ["FSC/A", "b"] and np.array_equal(values, rows)
    whole = {"$DATATYPE": "I", "$BYTEORD": "1,2,3,4", "$P1R": "1024", "$P2R": "1000"}
    file = fcs([[1023, 1024 + 5]], ["a", "b"], **BITS, **whole)
    assert np.array_equal(data.read_fcs(file)[1], [[1023, 5]]), "bits above the range are no data"


@pytest.mark.parametrize(
    "words, message",
    [
        ({"$MODE": "H"}, "Only list mode"),
        ({"$P2E": "4,0"}, "Channel 2 has a logarithmic amplifier"),
        ({"$P1B": "10"}, "are not read"),
        ({"$TOT": "9"}, "ends before its 9 events"),
    ],
)
def test_what_is_not_read_is_refused(data, words, message):
    about = {**BITS, "$DATATYPE": "F", "$BYTEORD": "4,3,2,1"} | words
    with pytest.raises(ValueError, match=message):
        data.read_fcs(fcs([[1.0, 2.0]], ["a", "b"], **about))


def test_archives_are_checked_and_only_plain_files_come_out(data, tmp_path, monkeypatch):
    """Another checksum is refused; a link out of the archive is no file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as out:
        info = tarfile.TarInfo("p-1/good.txt")
        info.size = 2
        out.addfile(info, io.BytesIO(b"ok"))
        link = tarfile.TarInfo("p-1/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    (tmp_path / "p-1.tar.gz").write_bytes(archive.getvalue())
    found = data.hashlib.sha256(archive.getvalue()).hexdigest()
    monkeypatch.setattr(data, "CACHE", tmp_path)
    monkeypatch.setattr(data, "PACKAGES", {"p": ("1", "p-1.tar.gz", found)})
    assert data.member("p", "p-1/good.txt") == b"ok"
    with pytest.raises(SystemExit, match="no file of a usual size"):
        data.member("p", "p-1/link.txt")
    monkeypatch.setattr(data, "PACKAGES", {"p": ("1", "p-1.tar.gz", "0" * 64)})
    with pytest.raises(SystemExit, match="another checksum"):
        data.archive("p")
    assert not (tmp_path / "p-1.tar.gz").exists()


def test_baselines_are_exact_where_they_should_be(populations):
    """Quantiles of coordinates that stretch and shift in proportion to the condition."""
    source = pf.Measure(torch.randn(40, 2), torch.rand(40))
    moved = lambda c: source.push(lambda x: x * torch.tensor([1 + c, 1.0]) + c)
    known = [0.0, 1.0, 3.0]
    problem = populations.Problem("p", [source] * 3, [moved(c) for c in known], known, {})
    for c in (0.5, 2.0, 4.0):  # between, and beyond
        image = populations.quantile_shift(problem, source, c, None)
        assert torch.allclose(image.atoms, moved(c).atoms)
        image = populations.mean_shift(problem, source, c, None)
        assert torch.allclose(image.mean(), moved(c).mean())
        assert torch.allclose(image.covariance(), source.covariance())


def test_intervals_hold_the_mean_and_are_zero_without_spread(populations):
    same = [{"group": "g", "errors": [0.5]} for _ in range(6)]
    assert populations.interval([same, same], "g", 0) == (0.5, 0.5, 0.5)
    few = [{"group": "g", "errors": [e], "spread": ([-0.3], [0.4])} for e in (1.0, 2.0)]
    expected = (1.5, 1.5 - 0.3 / 2**0.5, 1.5 + 0.4 / 2**0.5)
    assert populations.interval([few], "g", 0) == pytest.approx(expected)


def test_divisions_are_parents_with_two_children(data):
    before = np.array([[1, 1, 1, 1, 0, 2, 2, 0]])
    after = np.array([[1, 1, 2, 2, 0, 3, 0, 4]])
    assert data.parents_of(before, after).tolist() == [0, 0, 1, -1]
    film = data.Film([data.centres(before), data.centres(after)], [data.parents_of(before, after)])
    assert film.divisions() == [1]
    assert torch.equal(film.cells[0].atoms, torch.tensor([[0.0, 1.5], [0.0, 5.5]]))
    assert film.cells[1].mass == 4
