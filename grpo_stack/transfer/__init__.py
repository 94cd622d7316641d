"""Weight transfer over gloo: what stands in for NCCL where there is no GPU.

`plugin` tells vLLM of the backend, `engine` is its half in the server's workers, `client` the half in the trainer;
`wire` and `group` are what both halves share. Everything travels through the server's ordinary routes, so that TRL,
vLLM and the containers around them do on the CPU what they do on GPUs.
"""

BACKEND = "gloo"
"""Name of the backend, as in `--weight-transfer-config '{"backend": "gloo"}'`."""
