"""How accelerate starts the training processes, and lets them share the model.

Keys and values are those of accelerate 1.15 (commands/config/config_args.py `ClusterConfig`, commands/launch.py), and the
choices those of the configurations that come with TRL 1.16 (trl/accelerate_configs).
"""

from __future__ import annotations

from typing import Any

from grpo_stack.spec import StackSpec

FILE = "/tmp/accelerate.yaml"
"""Where the configuration is inside the trainer's container."""

DEEPSPEED = "/opt/deepspeed"
"""Where the trainer's image for CUDA keeps DeepSpeed. transformers, accelerate and TRL import it wherever they find it, and only
the runs that share by it are to pay for that."""

_SHARDING: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_type": "MULTI_GPU"},
    "fsdp2": {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": False,
        },
    },
    "zero2": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "deepspeed_multinode_launcher": "standard",
            "zero_stage": 2,
            "offload_optimizer_device": "none",
            "offload_param_device": "none",
            "zero3_init_flag": False,
        },
    },
    "zero3": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "deepspeed_multinode_launcher": "standard",
            "zero_stage": 3,
            "offload_optimizer_device": "none",
            "offload_param_device": "none",
            "zero3_init_flag": True,
            "zero3_save_16bit_model": True,
        },
    },
}


def processes(spec: StackSpec) -> int:
    """Training processes: one a GPU of the trainer, and on the CPU as many as the description says."""
    return len(spec.gpus.trainer) if spec.accelerator == "cuda" else spec.trainer.processes


def config(spec: StackSpec) -> dict[str, Any]:
    """accelerate's configuration as data, complete; empty for a single process, which shares nothing, and on the CPU."""
    if processes(spec) == 1 or spec.accelerator == "cpu":
        return {}
    return {
        "compute_environment": "LOCAL_MACHINE",
        **_SHARDING[spec.trainer.parallelism],
        "num_machines": 1,
        "num_processes": processes(spec),
        "machine_rank": 0,
        "mixed_precision": "bf16",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }


def uses_deepspeed(spec: StackSpec) -> bool:
    """Whether the training processes share the model by ZeRO."""
    return config(spec).get("distributed_type") == "DEEPSPEED"


def command(spec: StackSpec) -> tuple[str, ...]:
    """The words in front of `-m grpo_stack.train`."""
    if spec.accelerator == "cpu" and processes(spec) > 1:
        # `accelerate launch` starts several processes on CPUs through MPI only (commands/launch.py, simple_launcher).
        return ("torchrun", "--standalone", "--nproc-per-node", str(processes(spec)))
    return ("accelerate", "launch", *options(spec))


def options(spec: StackSpec) -> list[str]:
    """Options of `accelerate launch`, complete, so that no configuration file of the user's home can change them."""
    if config(spec):
        return ["--config_file", FILE]
    device, precision = ([], "bf16") if spec.accelerator == "cuda" else (["--cpu"], "no")
    options = [*device, "--num_processes", "1", "--num_machines", "1"]
    return [*options, "--mixed_precision", precision, "--dynamo_backend", "no"]
