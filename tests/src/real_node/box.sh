# First process of a node's own mount, pid, cgroup, uts and ipc namespaces: lets the node see a
# machine of its own, says so, and reaps what is orphaned. When it ends, everything on the node does.
# $1: name of the node; $2: folder of the node; from $3 on: hierarchies of cgroup v1, none where there
# is v2 alone.
set -eu
hostname "$1"
folder=$2
shift 2
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock /run/netns /run/sysctl /run/cgroupv2
mount -t tmpfs -o mode=755 log /var/log
# kubelet's and the plugins' usual folders, which the machine need not have.
mount -t tmpfs -o mode=755 lib /var/lib
mkdir -p /var/lib/kubelet /var/lib/cni "$folder/kubelet"
mount --bind "$folder/kubelet" /var/lib/kubelet
mount -t sysfs sysfs /sys
if [ $# = 0 ]; then
  mount -t cgroup2 cgroup /sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
fi
for controllers; do
  # What is mounted together is looked for by each name.
  place=/sys/fs/cgroup/${controllers#name=}
  mkdir "$place"
  case $controllers in name=*) options=none,$controllers ;; *) options=$controllers ;; esac
  mount -t cgroup -o "$options" cgroup "$place"
  for one in ${controllers//,/ }; do
    one=/sys/fs/cgroup/${one#name=}
    [ -e "$one" ] || ln -s "$place" "$one"
  done
done
# Not below /sys/fs/cgroup: runc would take that for its hybrid mode.
mount -t cgroup2 none /run/cgroupv2 || :
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || :
# kubelet writes these for the whole machine: it gets files instead.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  key=${setting%%=*}
  file=/run/sysctl/${key//\//.}
  echo "${setting##*=}" > "$file"
  mount --bind "$file" "/proc/sys/$key"
done
echo 'nameserver 127.0.0.1' > "$folder/resolv.conf"
mount --bind "$folder/resolv.conf" /etc/resolv.conf
mount --make-rshared /
: > "$folder/up"
# bash reaps whatever ends, also what is not its own.
while :; do
  sleep 3600 &
  wait || :
done
