"""Compiled programs are kept for the next process: in the user's own folder, small, and never in anybody's way."""

import json
import os
import stat
import subprocess
import sys

import jax
import numpy as np
import pytest
from generate import batch
from helpers import BASE, BASE_ANSWER, to_json, verify

from specdec_cli import cache, shapes
from specdec_cli import programs as kept

VARIABLES = (cache.CHOOSE, cache.TURN_OFF, cache._JAX_FOLDER, cache._JAX_SWITCH)


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        del os.environ[name]


def run(process, tmp_path):
    base = tmp_path / "base.json"
    base.write_bytes(to_json(BASE))
    ended = process("run", base)
    assert (ended.code, ended.out, ended.err) == (0, BASE_ANSWER, "")


def programs(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_programs_are_kept_in_the_users_cache_folder_for_the_user_alone(process, tmp_path):
    run(process, tmp_path)
    folder = tmp_path / "home" / ".cache" / "specdec"
    kept = programs(folder)
    assert kept
    assert mode(folder) == mode(kept[0].parent) == 0o700
    before = [path.stat().st_ino for path in kept]
    run(process, tmp_path)
    assert [path.stat().st_ino for path in programs(folder)] == before


def test_the_xdg_folder_is_used_when_it_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.choose().folder.parent == tmp_path / "xdg" / "specdec"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    assert cache.choose().folder.parent == tmp_path / "home" / ".cache" / "specdec"


def test_specdec_cache_dir_chooses_the_folder(process, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "a" / "chosen"))
    run(process, tmp_path)
    assert programs(tmp_path / "a" / "chosen")
    assert mode(tmp_path / "a" / "chosen") == 0o700
    assert not (tmp_path / "home").exists()


def test_a_folder_that_was_there_keeps_its_mode_and_its_files(process, monkeypatch, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    (mine / "thesis.txt").write_text("x" * 1000)
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(mine))
    monkeypatch.setattr(cache, "LIMIT", 10)
    cache.prepare()
    assert mode(mine) == 0o755
    assert (mine / "thesis.txt").exists()
    (inner,) = (path for path in mine.iterdir() if path.is_dir())
    assert mode(inner) == 0o700


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPECDEC_NO_CACHE", "1"), ("JAX_ENABLE_COMPILATION_CACHE", "false"), ("JAX_COMPILATION_CACHE_DIR", "")],
)
def test_it_can_be_turned_off(process, monkeypatch, tmp_path, name, value):
    monkeypatch.setenv(name, value)
    run(process, tmp_path)
    assert not (tmp_path / "home").exists()
    assert name in cache.choose().reason


def test_a_users_own_jax_cache_is_left_as_it_is(process, monkeypatch, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "large.program").write_bytes(b"x" * 100)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(theirs))
    monkeypatch.setattr(cache, "LIMIT", 10)
    found = cache.prepare()
    assert (found.folder, found.ours) == (theirs, False)
    run(process, tmp_path)
    assert (theirs / "large.program").exists()
    assert not (tmp_path / "home").exists()
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "ours"))  # said of this tool alone, it comes first
    assert cache.choose().folder.parent == tmp_path / "ours"


def test_a_link_in_the_folders_place_is_not_followed(process, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "cache"))
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    (mine / "large.program").write_bytes(b"x")
    (tmp_path / "cache").mkdir()
    cache.choose().folder.symlink_to(mine)
    run(process, tmp_path)
    assert "is a link" in cache.prepare().reason
    assert (mode(mine), programs(mine)) == (0o755, [mine / "large.program"])


def test_what_others_could_write_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "cache"))
    folder = cache.choose().folder
    folder.mkdir(parents=True)
    folder.chmod(0o770)
    (folder / "planted.program").write_bytes(b"x")
    (tmp_path / "theirs").write_bytes(b"x")
    (folder / "linked.program").symlink_to(tmp_path / "theirs")
    assert cache.prepare().folder == folder
    assert (mode(folder), programs(folder)) == (0o700, [])
    folder.parent.chmod(0o777)
    assert "everybody may write to" in cache.prepare().reason


def test_no_means_no(monkeypatch):
    monkeypatch.setenv("SPECDEC_NO_CACHE", "0")
    assert cache.choose().folder is not None
    monkeypatch.setenv("SPECDEC_CACHE_DIR", "~/mine")
    assert cache.choose().folder.parent == cache.Path.home() / "mine"


def test_a_folder_that_cannot_be_used_costs_nothing_but_time(process, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    run(process, tmp_path)
    assert "cannot be used: Not a directory" in cache.prepare().reason


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
def test_another_users_folder_is_not_trusted(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path))
    cache.prepare()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    found = cache.prepare()
    assert found.folder is None
    assert "belongs to another user" in found.reason


def test_a_folder_open_to_others_is_closed(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path))
    folder = cache.choose().folder
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    cache.prepare()
    assert mode(folder) == 0o700


def test_above_the_limit_what_was_used_longest_ago_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "LIMIT", 1000)
    folder = cache.choose().folder
    folder.mkdir()
    for age in range(12):
        path = folder / f"{age:02}.program"
        path.write_bytes(b"x" * 100)
        os.utime(path, (10**9 - age, 10**9 - age))
    cache.prepare()
    assert [path.name for path in programs(folder)] == [f"{age:02}.program" for age in range(5)]
    cache.prepare()
    assert len(programs(folder)) == 5


def test_a_link_to_a_program_is_not_followed(process, tmp_path):
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    run(process, tmp_path)
    assert not path.is_symlink()  # a program of our own stands in its place


def test_a_program_is_found_again_where_there_are_several_devices(process, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    before = path.stat().st_ino
    run(process, tmp_path)
    assert [path.stat().st_ino for path in programs(tmp_path / "home")] == [before]


def test_threads_compile_a_program_once(tmp_path, monkeypatch):
    found = []
    real = kept._compile
    monkeypatch.setattr(kept, "_compile", lambda *given: found.append(given) or real(*given))
    monkeypatch.setattr(shapes, "SMALL", 0)
    monkeypatch.setattr(shapes, "LARGE", 1)
    fields = batch(np.random.default_rng(0), "mixed", 6, 2, 40)
    verify(fields, programs=kept.Programs(tmp_path))
    assert len(found) == 1


def test_what_is_kept_is_told_from_what_is_not_finished(process, tmp_path):
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    path.with_name(f"{path.name}-123").write_bytes(b"x")
    assert info(process)["cache"]["entries"] == 1


@pytest.mark.parametrize("damage", [b"", b"x" * 50, None])
def test_a_damaged_program_is_made_anew_without_a_word(process, tmp_path, damage):
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2] if damage is None else damage)
    run(process, tmp_path)
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    assert len(path.read_bytes()) > len(good) // 2


def test_a_program_in_anothers_place_is_none(process, tmp_path):
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    other = path.with_name("0" * 64 + path.suffix)
    path.rename(other)
    assert kept._load(other, (jax.devices()[0],)) is None
    other.rename(path)
    assert kept._load(path, (jax.devices()[0],)) is not None


def test_a_pipe_in_a_programs_place_is_not_waited_for(process, tmp_path):
    run(process, tmp_path)
    (path,) = programs(tmp_path / "home")
    path.unlink()
    os.mkfifo(path)
    run(process, tmp_path)
    assert path.is_file()


def test_a_folder_of_nobody_costs_nothing_but_time(process, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", "~nobody-of-that-name/x")
    run(process, tmp_path)
    assert "~nobody-of-that-name" in info(process)["cache"]["why"]


def test_processes_that_start_together_do_not_disturb_each_other(tmp_path):
    base = tmp_path / "base.json"
    base.write_bytes(to_json(BASE))
    command = [sys.executable, "-m", "specdec_cli", "run", base]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    started = [subprocess.Popen(command, **pipes) for _ in range(4)]
    assert {running.communicate()[0] for running in started} == {BASE_ANSWER}


# specdec info


def info(process):
    ended = process("info", "--format", "json")
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


def test_info_shows_versions_devices_and_the_cache(process, tmp_path):
    before = info(process)
    assert before["cache"]["entries"] == 0
    run(process, tmp_path)
    found = info(process)
    assert found["packages"].keys() >= {"jax", "jaxlib", "numpy", "typer", "rich", "orjson"}
    assert found["devices"]["default"] in found["devices"]["found"]
    (path,) = programs(tmp_path / "home")
    assert found["cache"] == {
        "folder": str(path.parent),
        "why": "the user's cache folder",
        "entries": 1,
        "bytes": path.stat().st_size,
        "limit": cache.LIMIT,
    }
    text = process("info").out.decode()
    for line in ("specdec ", "python ", "jax ", "devices ", "computes on ", "cache ", "cached "):
        assert f"\n{line}" in f"\n{text}"


def test_info_tells_what_is_wrong_instead_of_failing_with_it(process, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    monkeypatch.setenv("SPECDEC_NO_CACHE", "1")
    found = info(process)
    assert "'nonsense'" in found["devices"]["error"]
    assert found["settings"] == {"JAX_PLATFORMS": "nonsense", "SPECDEC_NO_CACHE": "1"}
    assert "off: SPECDEC_NO_CACHE is set" in process("info").out.decode()
    monkeypatch.setenv("JAX_ENABLE_X64", "perhaps")
    assert "JAX could not be loaded" in info(process)["devices"]["error"]
