#!/bin/sh
# Slipway host set-up; safe to run again.
set -eu
ROOT=''
MODELS=/models
GPUS=yes
NVME=no
POWER_LIMIT_W=290
SSH_KEYS=''
LOGIN="${SUDO_USER-}"
