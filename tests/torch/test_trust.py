# SPDX-License-Identifier: Apache-2.0
"""Whose code is run: data files name none, recipes name what lies beside them or is allowed."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import yaml

from bitwright.base.errors import ModelError
from bitwright.base.plugins import load_plugin
from bitwright.base.trust import TRUST, check_names, data_file, importable
from bitwright.cli import entry
from bitwright.interop.model_files import LoadedModel, load_model, save_model
from bitwright.interop.network import InputConvention
from bitwright.interop.packed import save_packed
from bitwright.interop.packed_model import load_packed_model, save_packed_model
from bitwright.models import ModelSpec, build_model
from bitwright.models.tensors import save_tensors
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import post_training_quantize

SHAPE = (4, 4, 1)
QUANT = {"weight": "int4", "activation": "uint4", "input": "uint4"}
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes=2):
        super().__init__(nn.Flatten(), nn.Linear(16, num_classes))
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    """One that leaves a file if it is ever run."""
    return f"touch {tmp_path / 'ran'}"


@pytest.fixture(autouse=True)
def _never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TRUST, raising=False)
    yield
    assert not (tmp_path / "ran").exists(), "a command of a stranger was run"
    for name in ("own_net", "own_pack", "own_pack.inner", "own_shadow"):
        sys.modules.pop(name, None)


def hostile(path: Path, command: str) -> Path:
    model = {"name": "os:system", "options": {"command": command}}
    facts = {"model": model, "input_shape": [8, 8, 1], "input": {}}
    return save_tensors({"w": torch.zeros(1)}, path, facts)


def test_a_file_of_tensors_names_no_code(tmp_path: Path, command: str) -> None:
    path = hostile(tmp_path / "evil.safetensors", command)
    with pytest.raises(ModelError, match="names code to be run, os:system"):
        load_model(path)
    assert entry.run(["import", str(path), "--out", str(tmp_path / "out")]) == ModelError.exit_code
    assert entry.run(["inspect", str(path)]) == ModelError.exit_code


def test_nor_does_one_that_a_recipe_names(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile(tmp_path / "evil.safetensors", command)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "x", "data": "digits", "model": "evil.safetensors"}))
    for verb in ("explain", "train"):
        assert entry.run([verb, str(recipe)]) == ModelError.exit_code
        assert "names code to be run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["os:system", "subprocess:getoutput", "torch.hub:load"])
def test_a_lone_recipe_runs_nothing_of_installed_modules(
    name: str, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"name": name, "options": {"command": command}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "x", "data": "digits", "model": model}))
    assert entry.run(["explain", str(recipe)]) == ModelError.exit_code
    said = capsys.readouterr().err
    assert (
        "does not lie in" in said and f"{TRUST}={name.partition('.')[0].partition(':')[0]}" in said
    )


def test_a_function_must_be_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "own_pack").mkdir()
    (tmp_path / "own_pack" / "inner.py").write_text(NET)
    (tmp_path / "own_pack" / "__init__.py").write_text(
        "from os import system\nfrom subprocess import run\nfrom own_pack.inner import Net\n"
    )
    assert load_plugin("own_pack:Net", "model").__name__ == "Net"
    for name in ("system", "run"):
        with pytest.raises(ModelError, match=f"{name} is not defined in own_pack, but in"):
            load_plugin(f"own_pack:{name}", "model")


def test_a_module_that_hides_behind_another_is_told(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def tool(): return 1\n")
    with pytest.raises(ModelError, match="imported already"):
        load_plugin("json:dumps", "model")


def test_a_folder_of_the_same_name_opens_no_way_to_a_module_of_python(tmp_path: Path) -> None:
    (tmp_path / "subprocess").mkdir()
    with pytest.raises(ModelError, match="does not lie in"):
        load_plugin("subprocess:getoutput", "model")
    (tmp_path / "own_empty").mkdir()
    with pytest.raises(ModelError, match=r"cannot import 'own_empty\.absent'"):
        load_plugin("own_empty.absent:f", "model")


def test_what_the_user_allows_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not lie in"):
        load_plugin("torch.nn:Linear", "model")
    for words in ("torch", "numpy, torch.nn"):
        monkeypatch.setenv(TRUST, words)
        assert load_plugin("torch.nn:Linear", "model") is torch.nn.Linear
    monkeypatch.setenv(TRUST, "torch.n, tor")
    with pytest.raises(ModelError, match="does not lie in"):
        load_plugin("torch.nn:Linear", "model")


def test_own_networks_come_back_where_they_are_trusted(tmp_path: Path) -> None:
    (tmp_path / "own_net.py").write_text(NET)
    with importable(tmp_path):
        model = load_plugin("own_net:Net", "model")()
    spec = ModelSpec(name="own_net:Net")
    (path,) = save_model(model, "safetensors", tmp_path / "net.safetensors", SHAPE, spec=spec)
    with pytest.raises(ModelError, match=r"names code to be run, own_net:Net") as refusal:
        load_model(path, classes=2)
    assert "trust=['own_net']" in str(refusal.value.hint)
    again = load_model(path, classes=2, trust=["own_net"])
    assert torch.equal(again.model[1].weight, model[1].weight)
    assert again.spec == spec


def test_packed_networks_name_code_only_where_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "own_net.py").write_text(NET)
    with importable(tmp_path):
        model = load_plugin("own_net:Net", "model")()
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    observed = apply(model, Policy.from_dict(QUANT), "calibrate", images).eval()
    with torch.no_grad():
        observed(images)
    trained = apply(observed, Policy.from_dict(QUANT), "train").eval()
    spec, path = ModelSpec(name="own_net:Net"), tmp_path / "net.bwq"
    packed = LoadedModel(trained, SHAPE, InputConvention(), None, spec, QUANT, 2)
    save_packed_model(path, packed)
    with pytest.raises(ModelError, match=r"names code to be run, own_net:Net"):
        load_packed_model(path)
    again = load_packed_model(path, trust=["own_net"])
    assert torch.equal(again.model(images), packed.model(images))


@pytest.mark.parametrize(
    ("model", "quant", "names"),
    [
        ("os:system", {}, "os:system"),
        ("digits_cnn", {"weight": "own_net:deploy"}, "own_net:deploy"),
        ("digits_cnn", {"methods": ["own_net:deploy"]}, "own_net:deploy"),
        (
            "digits_cnn",
            {"rules": [{"role": "activation", "format": "own_net:deploy"}]},
            "own_net:deploy",
        ),
    ],
)
def test_a_packed_file_reaches_no_code(
    model: str, quant: dict[str, object], names: str, tmp_path: Path, command: str
) -> None:
    """Neither of Python nor of the current folder."""
    (tmp_path / "own_net.py").write_text(f"import os\nos.system({command!r})\n")
    options = {"command": command} if model == "os:system" else {}
    about = {
        "model": {"name": model, "options": options},
        "quant": {**QUANT, **quant},
        "input_shape": [8, 8, 1],
        "input": InputConvention().to_json(),
        "classes": 10,
    }
    path = tmp_path / "net.bwq"
    save_packed(path, torch.fx.symbolic_trace(torch.nn.Flatten()), about)
    with pytest.raises(ModelError, match=f"names code to be run, {names}"):
        load_packed_model(path)
    assert entry.run(["import", str(path), "--out", str(tmp_path / "out")]) == ModelError.exit_code


def test_trust_in_a_module_is_none_in_what_it_imports(tmp_path: Path, command: str) -> None:
    (tmp_path / "own_net.py").write_text("from os import system\nfrom subprocess import run\n")
    for name, options in (("own_net:system", {}), ("own_net:run", {"args": command.split()})):
        facts = {
            "model": {"name": name, "options": {"command": command, **options}},
            "input_shape": [8, 8, 1],
            "input": {},
        }
        path = save_tensors({"w": torch.zeros(1)}, tmp_path / "evil.safetensors", facts)
        with importable(tmp_path), pytest.raises(ModelError, match="is not defined in own_net"):
            load_model(path, classes=2, trust=["own_net"])


@pytest.mark.parametrize(
    ("stands", "name"),
    [
        ("/", "usr.share.python3.debpython:execute"),
        ("/usr", "share.python3.debpython:execute"),
        ("/usr/share/python3", "debpython:execute"),
    ],
)
def test_where_the_user_stands_opens_no_code_of_the_system(
    stands: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path(stands).is_dir():
        pytest.skip(f"no folder {stands}")
    monkeypatch.chdir(stands)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with (
        importable(tmp_path),
        pytest.raises(ModelError, match=r"does not lie in|of the system|cannot import"),
    ):
        load_plugin(name, "model")
    assert name.partition(":")[0] not in sys.modules


def test_from_the_root_not_every_file_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="own_")).resolve()
    (folder / "own_far.py").write_text("def f(): return 1\n")
    name = ".".join([*folder.parts[1:], "own_far"])
    assert all(part.isidentifier() for part in folder.parts[1:])
    monkeypatch.chdir("/")
    with pytest.raises(ModelError, match=r"does not lie in|cannot import"):
        load_plugin(f"{name}:f", "model")
    shutil.rmtree(folder)


def test_installed_packages_below_the_project_are_none_of_its_code(tmp_path: Path) -> None:
    place = tmp_path / "env" / "site-packages" / "own_pack"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("def f(): return 1\n")
    (tmp_path / "env" / "__init__.py").write_text("")
    with pytest.raises(ModelError, match="of an installed package"):
        load_plugin("env.site-packages.own_pack:f", "model")


def test_what_the_user_has_made_is_the_users(tmp_path: Path) -> None:
    """With the help of others: wrappers, classes made by a call, methods of objects."""
    (tmp_path / "own_net.py").write_text(
        "import dataclasses, functools, os, shutil, torch\n"
        "@functools.wraps(shutil.copy)\n"
        "def wrapped(): return 1\n"
        "@torch.no_grad()\n"
        "def decorated(): return 1\n"
        "Made = dataclasses.make_dataclass('Made', ['x'])\n"
        "part = functools.partial(int, 1)\n"
        "KNOWN = {}\n"
        "get = KNOWN.get\n"
        "upper = str.upper\n"
        "cached = functools.lru_cache(lambda: 1)\n"
        "exec('class Born: pass')\n"
        "hidden = os.path.join\n"
    )
    for name in ("wrapped", "decorated", "Made", "part", "get", "cached", "Born"):
        assert callable(load_plugin(f"own_net:{name}", "model"))
    for name in ("upper", "hidden"):
        with pytest.raises(ModelError, match="is not defined in own_net"):
            load_plugin(f"own_net:{name}", "model")


@pytest.mark.parametrize("name", [".os:system", "..os:system", "os.:system"])
def test_names_with_empty_parts_lead_nowhere(name: str, tmp_path: Path) -> None:
    with data_file(tmp_path / "x"), pytest.raises(ModelError, match="names code to be run"):
        check_names({"a": [name]})
    with data_file(tmp_path / "x"), pytest.raises(ModelError, match="names code to be run"):
        check_names({name: 1})
    with pytest.raises(ModelError):
        load_plugin(name, "model")


def test_a_path_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "own_far.py").write_text("def f(): return 1\n")
    (tmp_path / "near").mkdir()
    with importable(tmp_path / "near"):
        for name in (f"{tmp_path}/far/own_far:f", "../far/own_far:f"):
            with pytest.raises(ModelError):
                load_plugin(name, "model")


def test_words_of_ours_are_no_code(tmp_path: Path) -> None:
    quant = {**QUANT, "methods": ["fold:dense", "calibrate:percentile"]}
    spec = ModelSpec(name="digits_cnn", options={"widths": [2, 3]})
    policy, images = Policy.from_dict(quant), torch.rand(8, 1, 8, 8)
    made, _ = post_training_quantize(
        build_model(spec, 10, (8, 8, 1)), policy, images, policy.methods
    )
    loaded = LoadedModel(made.eval(), (8, 8, 1), InputConvention(), None, spec, quant, 10)
    save_packed_model(tmp_path / "net.bwq", loaded)
    again = load_packed_model(tmp_path / "net.bwq")
    assert torch.equal(again.model(images), made(images))
