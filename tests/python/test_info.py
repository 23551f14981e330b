import json

import parallel_tensor as pt


def info():
    return pt.info()


def test_info_says_versions_driver_devices_and_environment(ranks):
    (answer,) = ranks(1, info, env={"PARALLEL_TENSOR_EMULATED_DEVICES": "2"})
    assert answer["parallel_tensor"] == pt.__version__
    assert answer["driver"] == "emulated"
    assert answer["driver_version"] == 13000
    assert answer["torch"] is None
    assert [device["ordinal"] for device in answer["devices"]] == [0, 1]
    assert len({device["uuid"] for device in answer["devices"]}) == 2
    assert answer["environment"]["PARALLEL_TENSOR_EMULATED_DEVICES"] == "2"
    assert json.loads(json.dumps(answer))["driver"] == "emulated"


def test_every_process_sees_the_same_uuids(ranks):
    answers = ranks(2, info, env={"PARALLEL_TENSOR_EMULATED_DEVICES": "2"})
    assert answers[0]["devices"] == answers[1]["devices"]
