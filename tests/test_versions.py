import pytest

from grpo_stack import versions

CPU = {
    "vllm_version": "0.28.0",
    "torch_version": "2.13.0+cpu",
    "pip_version": "pip3",
    "pip_packages": "numpy==2.3.5\nnvidia-ml-py==13.615.71\npyzmq==27.3.0\ntorch==2.13.0+cpu\ntransformers==5.24.0",
    "cuda_compiled_version": None,
}
"""Part of what vLLM 0.28's CPU build answered on /server_info, in the environment of the lock file trl-1.13.cpu."""

CUDA = {
    "vllm_version": "0.28.0 (git sha: abc)",
    "torch_version": "2.13.0+cu130",
    "pip_packages": "numpy==2.3.5\nnvidia-nccl-cu13==2.29.7\ntorch==2.13.0\ntransformers==5.24.0\ntriton==3.7.0",
}
"""The same fields with what the lock file trl-1.16.cuda installs."""

HERE = {"vllm": "0.28.0", "torch": "2.13.0+cu130", "nvidia-nccl-cu13": "2.29.7", "transformers": "5.24.0"}


def test_what_the_server_tells_is_read_by_distribution():
    assert versions.of_server(CUDA) == {**HERE, "vllm": "0.28.0"}
    assert versions.of_server(CPU) == {"vllm": "0.28.0", "torch": "2.13.0+cpu", "transformers": "5.24.0"}


def test_a_server_without_pip_tells_vllm_and_torch_only():
    assert versions.of_server({**CUDA, "pip_packages": None}) == {"vllm": "0.28.0", "torch": "2.13.0+cu130"}
    assert versions.of_server({"vllm_version": "N/A (dev)", "torch_version": None}) == {}
    assert versions.of_server({}) == {}


def test_the_same_releases_are_no_difference_whatever_their_builds():
    assert versions.differences(versions.of_server(CUDA), HERE) == []
    assert versions.differences(versions.of_server(CPU), {**HERE, "torch": "2.13.0"}) == []
    assert versions.differences({"vllm": "0.28"}, {"vllm": "0.28.0"}) == []


@pytest.mark.parametrize(
    ("package", "release", "line"),
    [
        ("vllm", "0.26.0", "vLLM 0.28.0 there, 0.26.0 here"),
        ("vllm", "0.28.0.post1", "vLLM 0.28.0 there, 0.28.0.post1 here"),
        ("torch", "2.11.0+cu130", "torch 2.13.0+cu130 there, 2.11.0+cu130 here"),
        ("nvidia-nccl-cu13", "2.28.9", "NCCL 2.29.7 there, 2.28.9 here"),
        ("transformers", "5.17.0", "transformers 5.24.0 there, 5.17.0 here"),
    ],
)
def test_a_mismatch_names_the_package_and_both_sides(package, release, line):
    assert versions.differences(versions.of_server(CUDA), {**HERE, package: release}) == [line]


def test_nccl_is_compared_across_the_cuda_that_it_was_built_for():
    here = {"vllm": "0.28.0", "nvidia-nccl-cu12": "2.28.9"}

    assert versions.differences(versions.of_server(CUDA), here) == ["NCCL 2.29.7 there, 2.28.9 here"]


def test_every_mismatch_is_told_at_once():
    older = {"vllm": "0.26.0", "torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "transformers": "5.17.0"}

    assert [line.split()[0] for line in versions.differences(versions.of_server(CUDA), older)] == [
        "vLLM",
        "torch",
        "NCCL",
        "transformers",
    ]


def test_what_one_side_does_not_tell_is_not_compared():
    assert versions.differences({"vllm": "0.28.0"}, {"torch": "2.13.0"}) == []
