import ctypes
from pathlib import Path

import parallel_tensor as pt
import pytest
from parallel_tensor import _core, emulator
from support import error_of


def without_a_choice():
    group = pt.Group.from_env()
    return [
        error_of(pt.empty, (4,), dtype="float32", group=group),
        error_of(pt.driver_name),
        pt.info()["driver"],
        pt.info()["driver_error"],
    ]


def test_without_a_gpu_and_a_choice_the_first_use_names_both_ways_on(ranks):
    (answer,) = ranks(1, without_a_choice, driver=None, env={"CUDA_VISIBLE_DEVICES": ""})
    creation, name, driver, reason = answer
    assert driver is None
    for text in (str(creation), str(name), reason):
        assert "PARALLEL_TENSOR_DRIVER=emulated" in text
        assert "NVIDIA driver" in text
    assert isinstance(creation, pt.NotSupportedError)
    assert isinstance(name, pt.NotSupportedError)


def choose_emulated():
    pt.use_driver("emulated", devices=3)
    loaded_by_choice = _core.driver_loaded()
    name = pt.driver_name()
    pt.use_driver("emulated")  # again: nothing to do
    return loaded_by_choice, name, _core.device_count(), error_of(pt.use_driver, "cuda")


def test_use_driver_chooses_before_the_first_use_and_refuses_another_after_it(ranks):
    (answer,) = ranks(1, choose_emulated, driver=None)
    loaded_by_choice, name, devices, error = answer
    assert (loaded_by_choice, name, devices) == (False, "emulated", 3)
    assert type(error) is pt.Error


def test_use_driver_wins_over_the_environment(ranks):
    (answer,) = ranks(1, choose_emulated, driver="/nowhere/libcuda.so")
    assert answer[1] == "emulated"


def choose_by_path(path: str):
    pt.use_driver(path)
    return pt.driver_name(), pt.info()["driver_origin"]


def test_a_path_chooses_the_driver_library_there(ranks, emulated_gpus):
    emulated_gpus()
    assert pt.driver_name() == "emulated"
    path = _core.driver_origin()
    assert ranks(1, choose_by_path, path, driver=None) == [("emulated", path)]


def first_use():
    return error_of(pt.driver_name)


@pytest.mark.parametrize(
    ("driver", "kind"),
    [("other", pt.ArgumentError), ("/nowhere/libcuda.so", pt.NotSupportedError)],
)
def test_an_environment_that_chooses_nothing_usable_is_an_error_that_shows_it(ranks, driver, kind):
    (error,) = ranks(1, first_use, driver=driver)
    assert type(error) is kind
    assert driver in str(error)


def test_a_library_that_is_no_driver_is_refused(ranks):
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    assert ctypes.CDLL(libc)
    (error,) = ranks(1, first_use, driver=libc)
    assert type(error) is pt.NotSupportedError


def bad_choices():
    return [error_of(pt.use_driver, name) for name in ("", "other")] + [
        error_of(pt.use_driver, "emulated", devices=-1)
    ]


def test_use_driver_refuses_what_is_no_choice(ranks):
    (errors,) = ranks(1, bad_choices, driver=None)
    assert [type(error) for error in errors] == [pt.ArgumentError] * 3


def controls_elsewhere():
    return [error_of(call) for call in (emulator.live, emulator.calls, emulator.clear)]


def test_without_the_emulated_driver_the_controls_are_not_supported(ranks):
    (errors,) = ranks(1, controls_elsewhere, driver="cuda", env={"CUDA_VISIBLE_DEVICES": ""})
    assert [type(error) for error in errors] == [pt.NotSupportedError] * 3
