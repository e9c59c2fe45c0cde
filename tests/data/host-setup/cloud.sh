#!/bin/sh
# Slipway host set-up; safe to run again.
set -eu
ROOT=''
MODELS=/opt/dlami/nvme/models
GPUS=yes
NVME=yes
POWER_LIMIT_W=''
SSH_KEYS='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ somebody@example'
LOGIN=ubuntu
