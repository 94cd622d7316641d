from grpo_stack import versions

SYSTEM = {
    "vllm_version": "0.28.0 (git sha: abc)",
    "torch_version": "2.13.0+cu130",
    "pip_packages": "nvidia-nccl-cu13==2.29.7\ntransformers==5.24.0\nnumpy==2.2\ntorch @ file:///x",
}


def test_what_the_server_tells_is_read_by_distribution():
    assert versions.of_server(SYSTEM) == {
        "vllm": "0.28.0",
        "torch": "2.13.0+cu130",
        "nvidia-nccl-cu13": "2.29.7",
        "transformers": "5.24.0",
    }


def test_a_server_without_pip_tells_vllm_and_torch_only():
    assert versions.of_server({**SYSTEM, "pip_packages": None}) == {"vllm": "0.28.0", "torch": "2.13.0+cu130"}
    assert versions.of_server({"vllm_version": "N/A (dev)", "torch_version": None}) == {}


def test_a_mismatch_names_both_sides():
    here = {"vllm": "0.27.1", "torch": "2.13.0+cpu", "nvidia-nccl-cu13": "2.28.9", "transformers": "5.24.0"}

    assert versions.differences(versions.of_server(SYSTEM), here) == [
        "vllm 0.28.0 there, 0.27.1 here",
        "nvidia-nccl-cu13 2.29.7 there, 2.28.9 here",
    ]


def test_what_one_side_does_not_tell_is_not_compared():
    assert versions.differences({"vllm": "0.28.0"}, {"torch": "2.13.0"}) == []
    assert versions.differences({"vllm": "0.28"}, {"vllm": "0.28.0"}) == []
