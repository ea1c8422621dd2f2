"""The command line: results, files, exit codes, one-line errors."""

import json
import subprocess
import sys

import pytest

from pushforward._command import main

pytestmark = pytest.mark.unhooked


def test_verify_prints_a_table_and_writes_a_file(tmp_path, capsys):
    file = tmp_path / "results.json"
    options = ["--only", "A.eq8*", "--quick", "--workers", "1", "--json", str(file)]
    assert main(["verify", *options]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 statements of 1 families are as expected" in out and "holds to" in out
    record = json.loads(file.read_text())
    assert [s["id"] for s in record["statements"]] == ["A.eq8", "A.eq8.assoc"]
    assert all(s["ok"] and s["checks"] for s in record["statements"])
    assert main(["verify", *options[:5], "--self-test"]) == 0
    assert "red with their defect" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["verify", "--only", "Z.*"], "No statement matches"),
        (["verify", "--family", "dances"], "`family` must be one of"),
        (["verify", "--bogus"], "No such option"),
        (["verify", "--seed", "one"], "--seed"),
        (["dance"], "No such command"),
        (["verify", "--only", "A.eq8", "--quick", "--json", "/no/such/folder/x.json"], "No such"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(arguments, words, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err.strip()
    assert words in err and "Traceback" not in err and len(err.splitlines()) == 1


def test_the_installed_command():
    command = [sys.executable, "-c", "import sys; from pushforward._command import main; "
               "sys.exit(main())"]  # fmt: skip
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("pushforward ")
    done = subprocess.run([*command, "verify", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--self-test" in done.stdout
