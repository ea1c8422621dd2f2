"""Files for the command `pushforward`: read right, or refused in one line, and never executed."""

import io
import json
import zipfile
from pathlib import Path

import malformed
import malformed_exports
import numpy as np
import pytest
import torch

import pushforward as pf
from pushforward._command import main
from pushforward._command.reading import read_masses, read_model, read_rows

pytestmark = pytest.mark.unhooked

ROWS = malformed.ROWS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with valid files of points and of weights."""
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", ROWS)
    np.save("weights.npy", np.ones(len(ROWS)))
    return tmp_path


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> tuple[torch.nn.Module, bytes]:
    """A model with weights, attention and a dynamic number of tokens, and its export."""
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).float().eval()
    n = torch.export.Dim("n", max=4096)
    program = torch.export.export(layer, (torch.zeros(1, 9, 4).float(),), dynamic_shapes=({1: n},))
    file = tmp_path_factory.mktemp("export") / "layer.pt2"
    torch.export.save(program, file)
    return layer, file.read_bytes()


@pytest.fixture
def export(exported) -> bytes:
    """A valid export."""
    return exported[1]


# Valid files


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2", "<i4", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_all_kinds_are_read(folder, dtype, order):
    rows = np.round(10 * np.abs(ROWS)).astype(dtype, order=order)
    np.save("rows.npy", rows)
    read = read_rows(Path("rows.npy"))
    assert np.array_equal(read, rows) and read.dtype.isnative and read.dtype.kind == "f"


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "x,y\n1,2\n3,4\n",
        "\ufeffx,y\r\n1,2\r\n3,4\r\n",
        'x,y\n"1",2e0\n\n 3 ,+4\n\n',
        "x;y\n1;2\n3;4",
        "x\ty\n1\t2\n3\t4",
        '"a, quoted",größe\n1,2\n3,4\n',
        "1,2\r3,4\r",
    ],
    ids=["plain", "header", "BOM and CRLF", "blanks", "semicolons", "tabs", "names", "CR"],
)
def test_tables_of_all_kinds_are_read(folder, text):
    Path("größe ü.csv").write_bytes(text.encode())
    assert np.array_equal(read_rows(Path("größe ü.csv")), [[1, 2], [3, 4]])


def test_a_link_is_followed_and_a_suffix_in_capitals_known(folder):
    Path("link.NPY").symlink_to(folder / "good.npy")
    assert np.array_equal(read_rows(Path("link.NPY")), ROWS)


def test_a_table_of_parquet_is_read_and_its_gaps_are_named(folder):
    arrow = pytest.importorskip("pyarrow", reason="files of Parquet need pyarrow")
    from pyarrow import parquet

    columns = {"x": ROWS[:, 0], "n": np.arange(40), "y": ROWS[:, 1].astype(np.float32)}
    parquet.write_table(arrow.table(columns), "rows.parquet")
    read = read_rows(Path("rows.parquet"))
    assert np.array_equal(read, np.stack([columns["x"], columns["n"], columns["y"]], -1))
    parquet.write_table(arrow.table({"x": [1.0, None], "y": [2.0, 3.0]}), "gap.parquet")
    with pytest.raises(ValueError, match="no number in row 1 .* column 'x'"):
        read_rows(Path("gap.parquet"))
    parquet.write_table(arrow.table({"x": ["a"], "y": [2.0]}), "text.parquet")
    with pytest.raises(ValueError, match="column 'x' is of type string"):
        read_rows(Path("text.parquet"))


def test_a_damaged_row_is_named_by_its_place(folder):
    np.save("rows.npy", malformed.HOLE)
    with pytest.raises(ValueError, match="got nan in row 17, column 1"):
        read_rows(Path("rows.npy"))
    np.save("sets.npy", np.stack([ROWS, malformed.INFINITE]))
    with pytest.raises(ValueError, match="got inf in row 3 of set 1, column 0"):
        read_rows(Path("sets.npy"), sets=True)
    Path("rows.csv").write_text("x,y\n1,2\n\n3,four\n")
    with pytest.raises(ValueError, match=r"line 4, column 2 \('y'\), must be .* got 'four'"):
        read_rows(Path("rows.csv"))


@pytest.mark.parametrize(
    "weights,words",
    [
        ([1.0] * 39, "one weight for each of the 40"),
        ([-1.0] * 40, "no negative"),
        ([0.0] * 40, "0"),
    ],
)
def test_weights_are_checked(folder, weights, words):
    np.save("weights.npy", np.array(weights))
    with pytest.raises(ValueError, match=words):
        read_masses(Path("weights.npy"), 40)


# 200 malformed inputs, through the entry point

VERBS = {
    "relate a": lambda file: ["relate", file, "good.npy", "--eps", "1", "--out", "plan.npz"],
    "relate b": lambda file: ["relate", "good.npy", file, "--eps", "1", "--out", "plan.npz"],
    "relate --mass": lambda file: [
        "relate", "good.npy", "good.npy", "--mass", "weights.npy", file, "--eps", "1",
        "--out", "plan.npz",
    ],
    "audit --data": lambda file: ["audit", "torch:tanh", "--data", file, "--json", "out.json"],
    "audit --queries": lambda file: [
        "audit", "torch:tanh", "--data", "good.npy", "--queries", file, "--html", "out.html"
    ],
}  # fmt: skip


def refuse(arguments: list[str], capfd: pytest.CaptureFixture[str], folder: Path) -> str:
    """Run a command that must fail in one line, without a trace; the line."""
    before = set(folder.rglob("*"))
    code = main(arguments)
    out, err = capfd.readouterr()
    assert code == 2, (code, out, err)
    assert not out and len(err.splitlines()) == 1 and err.startswith("pushforward: "), (out, err)
    assert "Traceback" not in err and len(err) < 1500 and err[:-1].isprintable(), err
    assert set(folder.rglob("*")) == before
    return err


@pytest.mark.parametrize("name", malformed.FILES)
def test_malformed_rows_are_refused_by_every_verb(name, folder, capfd):
    file = malformed.FILES[name](folder)
    for arguments in VERBS.values():
        assert repr(file) in refuse(arguments(file), capfd, folder)


def test_there_are_hundreds_of_malformed_inputs():
    assert len(malformed.FILES) * len(VERBS) + len(malformed.MODELS) > 400


@pytest.mark.parametrize("name", malformed.MODELS)
def test_malformed_tensors_are_refused(name, folder, capfd):
    Path("model.safetensors").write_bytes(malformed.MODELS[name])
    refuse(["audit", "model.safetensors", "--data", "good.npy"], capfd, folder)
    refuse(["audit", "model.safetensors"], capfd, folder)


def test_malformed_exports_are_refused(export, folder, capfd):
    for name, data in malformed_exports.exports(export).items():
        Path("model.pt2").write_bytes(data)
        line = refuse(["audit", "model.pt2"], capfd, folder)
        assert "model.pt2" in line, (name, line)


CODE = {
    "no such file": ("", "missing.py:make", "There is no file 'missing.py'"),
    "no such module": ("", "no_such_package.models:make", "no module 'no_such_package'"),
    "no name": ("", "m.py", "write m.py:NAME"),
    "unknown name": ("def build(): pass", "m.py:make", "no 'make'. It defines: build"),
    "no Python": ("def make(:\n", "m.py:make", "line 1"),
    "error when read": ("x = 1\nx.y\n", "m.py:make", "AttributeError at"),
    "error when called": ("def make():\n    raise KeyError('no')\n", "m.py:make", "line 2: 'no'"),
    "ends the process": ("import sys\nsys.exit(7)\n", "m.py:make", "SystemExit"),
    "needs a package": ("import no_such_package\n", "m.py:make", "ModuleNotFoundError"),
    "returns nothing": ("def make(): pass", "m.py:make", "returned None"),
    "returns a number": ("def make(): return 3", "m.py:make", "returned a int"),
    "is a number": ("make = 3", "m.py:make", "make is a int"),
    "wrong layer": (
        "import pushforward as pf\n\ndef make():\n    return pf.Attention(2, heads=0)\n",
        "m.py:make", "line 4: `heads` must be",
    ),
    "a folder": ("", ".:make", "no module"),
    "a zero byte": ("", "a\0b.pt2", "zero byte"),
    "a pickle": ("", "model.pt", "can hold pickles"),
    "unknown": ("", "model.onnx", "is no model"),
    "no dimension": ("def make(x):\n    return x\n", "m.py:make", "cannot be seen"),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_code_that_makes_no_model_is_refused_where_it_fails(name, folder, capfd):
    code, argument, words = CODE[name]
    Path("m.py").write_text(code)
    assert words in refuse(["audit", argument], capfd, folder)


OPTIONS = {
    "no output folder": (["--html", "no/such/a.html"], "no folder"),
    "output is a folder": (["--html", "."], "is a folder"),
    "few tokens": (["--tokens", "5"], "at least 32"),
    "unknown section": (["--sections", "dances"], "`sections` must be some of"),
    "unknown requirement": (["--require", "dances"], "`require` must be some of"),
    "wide seed": (["--seed", str(2**70)], "seed"),
    "no number": (["--tokens", "many"], "--tokens"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options_of_an_audit_are_refused(name, folder, capfd):
    more, words = OPTIONS[name]
    line = refuse(["audit", "torch:tanh", "--data", "good.npy", *more], capfd, folder)
    assert words in line


RELATE = {
    "no eps": (["--out", "p.npz"], "eps"),
    "eps zero": (["--eps", "0", "--out", "p.npz"], "eps"),
    "eps NaN": (["--eps", "nan", "--out", "p.npz"], "eps"),
    "eps of a dot": (["--eps", "-1", "--affinity", "dot", "--out", "p.npz"], "eps"),
    "tol zero": (["--eps", "1", "--tol", "0", "--out", "p.npz"], "tol"),
    "no out": (["--eps", "1"], "out"),
    "another suffix": (["--eps", "1", "--out", "plan.npy"], ".npz"),
    "no folder": (["--eps", "1", "--out", "no/such/p.npz"], "no folder"),
    "unknown normaliser": (["--eps", "1", "--out", "p.npz", "--normaliser", "magic"], "magic"),
    "too cold": (["--eps", "1e-300", "--out", "p.npz"], "cores"),
}


@pytest.mark.parametrize("name", RELATE)
def test_wrong_options_of_a_relation_are_refused(name, folder, capfd):
    more, words = RELATE[name]
    assert words in refuse(["relate", "good.npy", "good.npy", *more], capfd, folder)


def test_a_plan_of_more_than_a_gibibyte_is_refused_before_the_work(folder, capfd):
    np.save("many.npy", np.zeros((20_000, 1)))
    line = refuse(
        ["relate", "many.npy", "many.npy", "--eps", "1", "--out", "p.npz", "--matrix"],
        capfd, folder,
    )  # fmt: skip
    assert "20,000 x 20,000 numbers, 2.98 GiB, and the limit is 1 GiB" in line


def test_points_of_two_spaces_are_refused(folder, capfd):
    np.save("other.npy", np.zeros((5, 3)))
    line = refuse(
        ["relate", "good.npy", "other.npy", "--eps", "1", "--out", "p.npz"], capfd, folder
    )
    assert "2 in 'good.npy'" in line and "3 in 'other.npy'" in line


# Exports: what is left out is not read


def test_a_valid_export_computes_what_the_model_does(exported, folder):
    layer, data = exported
    Path("layer.pt2").write_bytes(data)
    named = read_model("layer.pt2")
    assert (named.dim, named.name, named.most) == (4, "layer", 4096)
    for n in (5, 33):
        x = torch.randn(1, n, 4).float()
        assert torch.allclose(named.model(x), layer(x), atol=1e-6)


def test_examples_guards_and_traces_of_an_export_are_never_evaluated(export, folder):
    evil = malformed.pickle.dumps(malformed.Evil())
    with zipfile.ZipFile(io.BytesIO(export)) as archive:
        root = archive.namelist()[0].split("/")[0]
    sample = {f"{root}/data/sample_inputs/model.pt": evil, f"{root}/extra/note": b"\xff"}
    data = malformed_exports.repacked(export, lambda entries: entries.update(sample))

    def plant(program: dict) -> None:
        program["guards_code"] = [malformed.TOUCH]
        module = program["graph_module"]
        module["metadata"] = {"custom": malformed.TOUCH}
        for node in module["graph"]["nodes"]:
            node["metadata"] = {"source_fn_stack": f"x,{malformed.TOUCH}", "stack_trace": "\n!"}

    Path("model.pt2").write_bytes(malformed_exports.edited(data, "models/model.json", plant))
    model = read_model("model.pt2").model
    assert model(torch.randn(1, 6, 4).float()).shape == (1, 6, 4)
    assert not Path("pwned").exists()


def test_a_fixed_token_axis_is_refused_with_the_fix(folder, capfd):
    program = torch.export.export(torch.nn.Linear(3, 3), (torch.randn(7, 3),))
    torch.export.save(program, "fixed.pt2")
    line = refuse(["audit", "fixed.pt2"], capfd, folder)
    assert "takes exactly 7 tokens" in line and 'dynamic_shapes=({0: torch.export.Dim("n"' in line


# Random damage


def damaged(data: bytes, count: int) -> list[bytes]:
    """Copies of a file with a few bytes changed, cut out, or put in."""
    generator, found = np.random.default_rng(0), []
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(int(generator.integers(1, 4))):
            at = int(generator.integers(len(copy)))
            kind = generator.integers(4)
            if kind < 2:
                copy[at] = int(generator.integers(256))
            elif kind == 2:
                del copy[at : at + int(generator.integers(1, 40))]
            else:
                copy[at:at] = generator.bytes(int(generator.integers(1, 9)))
        found.append(bytes(copy))
    return found


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_random_damage_to_rows_is_read_or_refused(kind, folder):
    small = ROWS[:6]
    valid = malformed.npy(small) if kind == "npy" else malformed.TABLE[:80].encode()
    refused = 0
    for data in damaged(valid, 100):
        Path(f"rows.{kind}").write_bytes(data)
        try:
            rows = read_rows(Path(f"rows.{kind}"))
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert f"rows.{kind}" in str(error)
        else:
            assert rows.ndim == 2 and np.isfinite(rows).all()
    assert refused > 10


def test_random_damage_to_tensors_is_read_or_refused(folder):
    model = pf.Transformer(2, depth=1, block=pf.Block(norm=pf.PreNorm()))
    pf.maps.save(model, "valid.safetensors")
    refused = 0
    for data in damaged(Path("valid.safetensors").read_bytes()[:900], 60) + damaged(
        Path("valid.safetensors").read_bytes(), 60
    ):
        Path("model.safetensors").write_bytes(data)
        try:
            assert isinstance(read_model("model.safetensors").model, torch.nn.Module)
        except ValueError:
            refused += 1
    assert refused > 60


def test_random_damage_to_exports_is_read_or_refused(export, folder):
    """Checksums catch most damage of bytes, so texts and numbers of the program change as well."""
    generator = np.random.default_rng(0)
    cases = damaged(export, 40)
    cases.append(export.replace(b"data/weights/", b"d\xafta/weights/", 1))  # no text in UTF-8
    for _ in range(15):

        def scramble(program: dict) -> None:
            text = json.dumps(program)
            for _ in range(3):
                at = int(generator.integers(len(text)))
                text = text[:at] + str(generator.integers(10)) + text[at + 1 :]
            try:
                other = json.loads(text)
            except ValueError:
                return
            program.clear()
            program.update(other if isinstance(other, dict) else {})

        cases.append(malformed_exports.edited(export, "models/model.json", scramble))
    refused = 0
    for data in cases:
        Path("model.pt2").write_bytes(data)
        try:
            assert callable(read_model("model.pt2").model)
        except ValueError as error:
            refused += 1
            assert "model.pt2" in str(error)
    assert refused > 30
