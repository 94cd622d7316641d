from grpo_stack import inputs
from grpo_stack.facts import FolderSpace

GB = 10**9


def room(cache_free, outputs_free):
    found = inputs.room(15 * GB, 140 * GB, cache_free, 30 * GB, [FolderSpace("/o", outputs_free, True)])
    return [(finding.level, str(finding)) for finding in found]


def test_the_model_must_fit_beside_the_images_and_its_checkpoint_into_the_outputs():
    assert room(45 * GB, 140 * GB) == [
        ("ok", "model-space: 15.0 GB of weights; a checkpoint and the trained model fit"),
    ]
    assert room(44 * GB, 139 * GB) == [
        (
            "warning",
            "model-space: the weights take 15.0 GB beside the images, 44.0 GB are free for Docker; "
            "free some, unless the cache volume holds the model already",
        ),
        (
            "warning",
            "model-space: 139.0 GB free in /o; "
            "a checkpoint with optimizer state and the trained model take about 140.0 GB; free some",
        ),
    ]


def test_space_that_is_not_known_is_not_judged():
    assert [level for level, _ in room(None, None)] == ["ok"]
