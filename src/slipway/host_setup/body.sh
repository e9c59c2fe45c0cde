
say() { printf '%s\n' "slipway: $*"; }

fail() {
  printf '%s\n' "slipway: $*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# act WORDS...: runs them; below another root (a rehearsal) it only says what it would run.
act() {
  if [ -n "$ROOT" ]; then
    say "would run: $*"
  else
    say "running: $*"
    # The rest of this script may stand on stdin, where a program that asks something would swallow it.
    "$@" </dev/null
  fi
}

CHANGED=

# put FILE MODE: makes FILE hold what stands on stdin; says so only when that changes it, and keeps the path in CHANGED.
put() {
  CHANGED=
  new="$ROOT$1.slipway-new"
  mkdir -p "$(dirname "$ROOT$1")"
  cat >"$new"
  chmod "$2" "$new"
  if [ -f "$ROOT$1" ] && cmp -s "$new" "$ROOT$1"; then
    rm -f "$new"
  else
    mv -f "$new" "$ROOT$1"
    CHANGED=$1
    say "wrote $1"
  fi
}

install_package() {
  have apt-get || fail "$1 is missing and this host has no apt-get; install $1 by hand, then run this again"
  act env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$1" ||
    fail "$1 could not be installed; $2, then run this again"
}

[ -n "$ROOT" ] || [ "$(id -u)" = 0 ] || fail "this must run as root; log in as root or allow sudo without a password"

# --- models: on the fast local disks --------------------------------------------------------------------------------------
if [ "$NVME" = yes ]; then
  put /usr/local/sbin/slipway-models 0755 <<'SCRIPT'
#!/bin/sh
# Stripes the instance's own NVMe disks into one file system. Their content is lost at every stop, so this runs at every boot.
set -eu
target=$1
if mountpoint -q "$target"; then
  exit 0
fi
set -- /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_*
disks=
count=0
seen=' '
for link; do
  case $link in *-part* | *_[0-9]) continue ;; esac
  [ -e "$link" ] || continue
  disk=$(readlink -f "$link")
  case $seen in *" $disk "*) continue ;; esac
  seen="$seen$disk "
  # An image that stripes the disks itself has put something on them: leave it alone.
  if [ -n "$(lsblk --noheadings --output MOUNTPOINT "$disk" | tr -d ' \n')" ]; then
    exit 0
  fi
  disks="$disks $disk"
  count=$((count + 1))
done
[ "$count" -gt 0 ] || { echo "no instance storage found; models go to the root volume" >&2; exit 0; }
if [ ! -e /dev/disk/by-label/slipway ]; then
  # shellcheck disable=SC2086
  mdadm --create /dev/md/slipway --run --level=0 --force --raid-devices="$count" $disks
  mkfs.ext4 -q -m 0 -L slipway /dev/md/slipway
  udevadm settle
fi
mkdir -p "$target"
mount -o noatime /dev/disk/by-label/slipway "$target"
SCRIPT
  put /etc/systemd/system/slipway-models.service 0644 <<UNIT
[Unit]
Description=Slipway: stripe the instance's NVMe disks for the models
# Images that do it themselves come first; then there is nothing left to do.
After=local-fs.target dlami-nvme.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/slipway-models $(dirname "$MODELS")
ExecStart=/bin/mkdir -p $MODELS

[Install]
WantedBy=multi-user.target
UNIT
  [ -z "$CHANGED" ] || act systemctl daemon-reload
  act systemctl enable --now slipway-models.service
fi
[ -d "$ROOT$MODELS" ] || { mkdir -p "$ROOT$MODELS" && say "made $MODELS"; }

# --- Docker, and GPUs in its containers -----------------------------------------------------------------------------------
have docker || install_package docker.io "install Docker by hand"
put /etc/systemd/system/docker.service.d/90-slipway.conf 0644 <<'UNIT'
# RDMA registers GPU memory, which locks pages; the default of 8 MiB ends in a failure at the first transfer.
[Service]
LimitMEMLOCK=infinity
UNIT
restart_docker=$CHANGED
put /etc/security/limits.d/90-slipway.conf 0644 <<'LIMITS'
* soft memlock unlimited
* hard memlock unlimited
root soft memlock unlimited
root hard memlock unlimited
LIMITS
if [ "$GPUS" = yes ]; then
  have nvidia-ctk || install_package nvidia-container-toolkit "add NVIDIA's package repository as its install guide says"
  if ! grep -qs nvidia-container-runtime "$ROOT/etc/docker/daemon.json"; then
    act nvidia-ctk runtime configure --runtime=docker
    restart_docker=yes
  fi
fi
if [ -n "$restart_docker" ]; then
  # A restart stops containers, so a host that serves is left alone until somebody has stopped them.
  if [ -z "$ROOT" ] && [ -n "$(docker ps --quiet)" ]; then
    say "docker must be restarted for the new settings, but containers run; stop them, then: systemctl restart docker"
  else
    act systemctl daemon-reload
    act systemctl restart docker
  fi
fi
if [ -n "$LOGIN" ] && [ "$LOGIN" != root ] && ! id -nG "$LOGIN" 2>/dev/null | grep -qw docker; then
  act usermod --append --groups docker "$LOGIN"
fi

# --- GPU driver: persistent, within its power limit, and never changed under a running server ------------------------------
if [ "$GPUS" = yes ]; then
  {
    cat <<'UNIT'
[Unit]
Description=Slipway: keep the NVIDIA driver loaded, and the power limit where one is set
After=nvidia-persistenced.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-smi -pm 1
UNIT
    # The limit is forgotten at every reboot.
    [ -z "$POWER_LIMIT_W" ] || printf 'ExecStart=/usr/bin/nvidia-smi -pl %s\n' "$POWER_LIMIT_W"
    printf '\n[Install]\nWantedBy=multi-user.target\n'
  } | put /etc/systemd/system/slipway-gpu.service 0644
  act systemctl daemon-reload
  act systemctl enable slipway-gpu.service
  act systemctl restart slipway-gpu.service
  put /etc/apt/apt.conf.d/52slipway-driver 0644 <<'APT'
// A driver that is upgraded under a running server leaves library and kernel module of two versions; every new process fails.
Unattended-Upgrade::Package-Blacklist {
  "nvidia-";
  "libnvidia-";
  "linux-modules-nvidia-";
};
APT
  if have dpkg-query; then
    held=$(dpkg-query --show --showformat='${Status} ${Package}\n' 'nvidia-driver-*' 'libnvidia-*' 'nvidia-dkms-*' \
      'nvidia-fabricmanager*' 2>/dev/null | sed -n 's/^install ok installed //p')
    # shellcheck disable=SC2086
    [ -z "$held" ] || act apt-mark hold $held
  fi
fi

# --- who may log in -------------------------------------------------------------------------------------------------------
if [ -n "$SSH_KEYS" ]; then
  keys="$ROOT/home/$LOGIN/.ssh/authorized_keys"
  mkdir -p "$(dirname "$keys")"
  chmod 0700 "$(dirname "$keys")"
  touch "$keys"
  chmod 0600 "$keys"
  printf '%s\n' "$SSH_KEYS" | while IFS= read -r key; do
    grep -qxF "$key" "$keys" || { printf '%s\n' "$key" >>"$keys" && say "added a key for $LOGIN"; }
  done
  act chown -R "$LOGIN:" "$(dirname "$keys")"
fi

say "this host is set up"
