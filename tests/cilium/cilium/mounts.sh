# Makes the mounts of Cilium's agent in a mount namespace of its own, says so, and keeps them.
# $1: folder of the files; $2: the cgroup that stands for the root of all; from $3 on: modules that are
# listed where the kernel has none.
set -eu
folder=$1 cgroup=$2
shift 2
# Cilium writes these for the whole kernel: it gets files instead. Not every kernel has them
# (pkg/datapath/loader/base.go).
for setting in kernel/unprivileged_bpf_disabled kernel/timer_migration; do
  file=$folder/${setting##*/}
  echo 0 > "$file"
  [ ! -e "/proc/sys/$setting" ] || mount --bind "$file" "/proc/sys/$setting"
done
mount --bind "$cgroup" "$folder/run/cgroupv2"
umount --recursive --lazy /sys
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
# Nothing can be added to /proc itself, so a folder of links covers it.
if [ $# != 0 ] && [ ! -e /proc/modules ]; then
  mkdir "$folder/proc"
  mount --rbind /proc "$folder/proc"
  mount -t tmpfs tmpfs /proc
  ln -s "$folder"/proc/[a-z]* /proc/
  for module; do echo "$module 1 0 - Live 0x0"; done > /proc/modules
fi
: > "$folder/made"
exec sleep infinity
