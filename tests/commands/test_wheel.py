"""The wheel carries the configs and templates, so that an installed package runs like a clone."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_every_module_config_and_template(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    built = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = {f"h2o_lab/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "h2o_lab").rglob("*.py")}
    page = {f"h2o_lab/report/page.{kind}" for kind in ("html.j2", "css", "js")}
    assert len(configs) > 20
    assert configs <= names
    assert modules | page <= names
