"""Malformed exports for the command: `.pt2` files that are damaged or hostile.

All are made from a valid file, and differ from it in one thing.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Callable

from malformed import TOUCH, Evil


def repacked(valid: bytes, change: Callable[[dict[str, bytes]], object]) -> bytes:
    """An archive whose entries were changed."""
    with zipfile.ZipFile(io.BytesIO(valid)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def edited(valid: bytes, entry: str, change: Callable[[dict], object]) -> bytes:
    """An archive in which a JSON entry was changed."""

    def edit(entries: dict[str, bytes]) -> None:
        name = next(name for name in entries if name.endswith(entry))
        data = json.loads(entries[name])
        change(data)
        entries[name] = json.dumps(data).encode()

    return repacked(valid, edit)


def compressed(valid: bytes) -> bytes:
    """The archive with a zip bomb: 50 MB of zeros, compressed."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(valid)) as archive,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for name in archive.namelist():
            if not name.endswith("weight_0"):
                out.writestr(name, archive.read(name))
        root = archive.namelist()[0].split("/")[0]
        out.writestr(f"{root}/data/weights/weight_0", bytes(50 << 20))
    return buffer.getvalue()


def _graph(program: dict) -> dict:
    return program["graph_module"]["graph"]


def exports(valid: bytes) -> dict[str, bytes]:
    """Damaged and hostile `.pt2` files.

    Args:
        valid: a valid one, of a model with a weight and a dynamic number of tokens.
    """
    with zipfile.ZipFile(io.BytesIO(valid)) as archive:
        root = archive.namelist()[0].split("/")[0]
    evil = pickle.dumps(Evil())
    add = lambda name, data=evil: repacked(valid, lambda e: e.update({name: data}))
    drop = lambda end: repacked(
        valid, lambda e: [e.pop(name) for name in list(e) if name.endswith(end)]
    )
    program = lambda change: edited(valid, "models/model.json", change)
    node = lambda change: program(lambda p: change(_graph(p)["nodes"][0]))
    first = lambda p: next(iter(_graph(p)["tensor_values"].values()))
    weights = lambda change: edited(valid, "model_weights_config.json", change)
    tensor = lambda c: next(iter(c["config"].values()))

    def rename(program: dict) -> None:
        inputs = program["graph_module"]["signature"]["input_specs"]
        name = inputs[-1]["user_input"]["arg"]["as_tensor"]["name"]
        text = json.dumps(program).replace(f'"{name}"', f'"{name}={TOUCH}"')
        program.clear()
        program.update(json.loads(text))

    def spec(program: dict, text: str) -> None:
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = text

    imported = json.dumps([1, {"type": "collections.defaultdict", "context": json.dumps(
        {"default_factory_module": "antigravity", "default_factory_name": "fly",
         "dict_context": []}), "children_spec": []}])  # fmt: skip
    return {
        "empty": b"",
        "no archive": b"not a zip file",
        "a pickle": evil,
        "cut": valid[: len(valid) // 2],
        "the end alone": valid[-100:],
        "nothing inside": repacked(valid, dict.clear),
        "a zip bomb": compressed(valid),
        "up and away": add(f"{root}/../../pwned"),
        "an absolute name": add("/tmp/pwned"),
        "a name with a backslash": add(f"{root}/..\\pwned"),
        "another folder": add("elsewhere/data/weights/weight_0"),
        "many entries": repacked(valid, lambda e: e.update(
            {f"{root}/extra/{k}": b"" for k in range(20_001)})),
        "compiled code": add(f"{root}/data/aotinductor/model/model.so"),
        "a pickled object": add(f"{root}/data/constants/custom_obj_0"),
        "an opaque object": add(f"{root}/data/constants/opaque_obj_0"),
        "weights of an old format": add(f"{root}/data/weights/model.pt"),
        "a second model": add(f"{root}/models/other.json"),
        "an unknown entry": add(f"{root}/code/run.py"),
        "no program": drop("models/model.json"),
        "no format": drop("archive_format"),
        "another format": repacked(valid, lambda e: e.update({f"{root}/archive_format": b"pt3"})),
        "another version": repacked(valid, lambda e: e.update({f"{root}/archive_version": b"99"})),
        "no list of weights": drop("model_weights_config.json"),
        "no weights": drop("weights/weight_0"),
        "empty weights": repacked(valid, lambda e: e.update(
            {f"{root}/data/weights/weight_0": b""})),
        "short weights": repacked(valid, lambda e: e.update(
            {f"{root}/data/weights/weight_0": bytes(4)})),
        "a program of noise": repacked(valid, lambda e: e.update(
            {f"{root}/models/model.json": b"\xff\x00"})),
        "an empty program": program(dict.clear),
        "a deep program": repacked(valid, lambda e: e.update(
            {f"{root}/models/model.json": b"[" * 200_000})),
        "a pickled weight": weights(lambda c: tensor(c).update(use_pickle=True)),
        "a weight from elsewhere": weights(lambda c: tensor(c).update(path_name="../../secret")),
        "a weight too large": weights(
            lambda c: tensor(c)["tensor_meta"].update(sizes=[{"as_int": 10**9}] * 2)),
        "an operation of Python": node(lambda n: n.update(target="torch.os.system")),
        "an operation that reads files": node(
            lambda n: n.update(target="torch.ops.aten.from_file.default")),
        "an operation of a library": node(lambda n: n.update(target="torch.ops.image.read_file")),
        "no operation": node(lambda n: n.update(target="torch.ops.aten.nothing.default")),
        "an object as argument": node(
            lambda n: n["inputs"][0].update(arg={"as_operator": "torch.os.system"})),
        "code as a size": program(lambda p: first(p)["sizes"].__setitem__(
            0, {"as_expr": {"expr_str": TOUCH, "hint": None}})),
        "a size without end": program(lambda p: first(p)["sizes"].__setitem__(
            0, {"as_expr": {"expr_str": "Pow(Integer(9), Pow(Integer(9), Integer(9)))"}})),
        "code as a name": program(rename),
        "a type that is imported": program(lambda p: spec(p, imported)),
        "a type of no shape": program(lambda p: spec(p, "[7]")),
        "another schema": program(lambda p: p["schema_version"].update(major=1)),
        "no inputs": program(lambda p: p["graph_module"]["signature"].update(input_specs=[])),
        "no nodes": program(lambda p: _graph(p).update(nodes=[])),
    }  # fmt: skip
