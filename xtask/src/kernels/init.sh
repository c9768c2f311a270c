#!/bin/sh
# The first process of a machine that tests a kernel. What it runs stands in /tests/jobs. Results go
# to the serial line $results, between marks that machine.rs reads; the console is the kernel's own.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
# Busybox stands behind the real tools in PATH.
/bin/busybox mkdir -p /usr/bin /sbin
/bin/busybox --install -s /bin
[ -e /sbin/modprobe ] || ln -s /bin/busybox /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
# A machine with a disk goes on there, with what is here beside what is on it: what lies in an archive
# takes memory, and a container's root cannot be changed on the first file system of all.
if [ -n "$disk" ]; then
    modprobe -a virtio_pci virtio_blk
    mkdir /disk
    mount -t ext4 "/dev/$disk" /disk
    cp -a /bin /etc /init /lib* /root /sbin /tests /usr /var /disk
    mkdir -p /disk/dev /disk/proc /disk/run /disk/sys /disk/tmp
    disk='' exec switch_root /disk /init
fi
ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin
ln -sfn /proc/self/fd/1 /dev/stdout
ln -sfn /proc/self/fd/2 /dev/stderr
mount -t tmpfs tmpfs /run
# Parts of a checkout below /tmp are in the archive, and would be hidden.
[ -n "$(ls -A /tmp 2>/dev/null)" ] || mount -t tmpfs tmpfs /tmp
mkdir -p /dev/shm /run/netns /run/lock
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
# Worlds are built side by side; of two that ask busybox for a module at once, one is refused it.
modprobe -a veth bridge br_netfilter nf_conntrack nf_nat nf_tables nft_chain_nat nft_ct nft_masq nft_nat \
    nft_compat nft_fib_inet nft_hash nft_limit nft_log nft_numgen nft_redir nft_reject_inet \
    sch_ingress cls_bpf
ip link set lo up
hostname machine
stty -F "/dev/$results" raw
exec </dev/null >"/dev/$results" 2>&1
echo "::started $(uname -r)"

# The way to the API server, by the emulator's own network (QEMU's user networking).
uplink() {
    modprobe -a virtio_pci virtio_net
    ip addr add 10.0.2.15/24 dev eth0
    ip link set eth0 up
    ip route add default via 10.0.2.2
}
job() {
    name=$1
    shift
    echo "::job $name"
    "$@"
    status=$?
    echo
    echo "::ended $name $status"
}
cd /tmp
. /tests/jobs

dmesg | grep -E 'BUG:|WARNING:|Oops|general protection|soft lockup|rcu.*stall' | sed 's/^/::complaint /'
echo "::memory $(awk '/^MemTotal/ { all = $2 } /^MemAvailable/ { print int((all - $2) / 1024) }' /proc/meminfo)"
echo "::finished"
poweroff -f
