# shellcheck shell=sh
# Which set of versions is meant, and the tag that its images carry, as grpo_stack/plan.py names them: ACCELERATOR, and with
# -PINS behind it for another set than the default.

PINS=${PINS:-trl-1.16}
TAG=${ACCELERATOR:-cpu}
[ "$PINS" = trl-1.16 ] || TAG=$TAG-$PINS
