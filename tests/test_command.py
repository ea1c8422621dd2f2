"""The command line: results, files, exit codes, one-line errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pushforward._command import main
from pushforward.statements import Setting, run_statement

pytestmark = pytest.mark.unhooked


def test_verify_prints_a_table_and_writes_a_file(tmp_path, capsys):
    file = tmp_path / "results.json"
    options = ["--only", "A.eq8*", "--quick", "--workers", "1", "--json", str(file)]
    assert main(["verify", *options]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 statements of 1 family are as expected" in out and "holds to" in out
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
        (["verify", "--seed", "-1"], "`seed` must be from 0"),
        (["dance"], "No such command"),
        (["verify", "--json", "/no/such/folder/x.json"], "There is no folder"),
        (["verify", "--html", "/"], "is a folder"),
        (["verify", "--quiet", "--verbose"], "exclude each other"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(arguments, words, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err.strip()
    assert words in err and "Traceback" not in err and len(err.splitlines()) == 1


ONE = ["--only", "A.eq8", "--quick", "--workers", "0"]


def test_how_much_is_said(capsys):
    """Quiet is one sentence; verbose has every check; options may stand before or after."""
    assert main(["verify", *ONE, "-q"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 of 1 statements of 1 family are as expected")
    assert main(["--verbose", "verify", *ONE]) == 0
    out = capsys.readouterr().out
    assert "push-forward holds to 0: measured 0, limit 1e-14" in out and "\x1b" not in out
    assert main(["verify", "--only", "Z.*", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupted_run_prints_and_writes_what_there_is(tmp_path, capsys, monkeypatch):
    def stopped(*args, show, **options):
        show(run_statement("A.eq8", Setting(quick=True)))
        raise KeyboardInterrupt

    monkeypatch.setattr("pushforward._command._verify.run", stopped)
    file = tmp_path / "results.json"
    assert main(["verify", "--only", "A.eq8*", "--quick", "--json", str(file)]) == 130
    assert "Interrupted after 1 of 2 statements" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["asked"] == 2 and [s["id"] for s in record["statements"]] == ["A.eq8"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are listed on Linux")
def test_ctrl_c_ends_the_workers(tmp_path):
    """As from a terminal, to the whole group: no traceback, no process left, exit code 130."""
    code = "import sys; from pushforward._command import main\n" \
        "if __name__ == '__main__': sys.exit(main())"  # fmt: skip
    script = tmp_path / "command.py"
    script.write_text(code)
    options = ["verify", "--only", "A.thm1.verdicts", "--json", str(tmp_path / "x.json")]
    done = subprocess.Popen(
        [sys.executable, str(script), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{done.pid}/task/{done.pid}/children")
    for _ in range(600):  # until both workers have started
        if len(children.read_text().split()) >= 2:
            break
        time.sleep(0.2)
    time.sleep(0.5)
    os.killpg(done.pid, signal.SIGINT)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 130 and "Traceback" not in err, err
    for _ in range(100):  # the process that cleans up after the others ends last
        if not running(done.pid):
            return
        time.sleep(0.2)
    raise AssertionError(running(done.pid))


def running(group):
    """The command lines of the processes of a group, but for those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, member = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(member) == group and state != "Z":
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has just ended
            continue
    return found


def test_the_tour(tmp_path, capsys):
    picture = tmp_path / "tour.png"
    assert main(["tour", "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "every token split in two" in out and picture.read_bytes().startswith(b"\x89PNG")
    assert [f.name for f in tmp_path.iterdir()] == ["tour.png"]


def test_the_installed_command():
    command = [sys.executable, "-c", "import sys; from pushforward._command import main; "
               "sys.exit(main())"]  # fmt: skip
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("pushforward ")
    done = subprocess.run([*command, "verify", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--self-test" in done.stdout
