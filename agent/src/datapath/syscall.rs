//! `bpf(2)` commands that aya lacks: batches of map elements, and lists of the programs at a hook by
//! id. Program descriptors would need CAP_SYS_ADMIN, which the agent does not have (finding 20).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::Pod;
use pathproof_wire::service::FAMILIES;

const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
const BPF_MAP_UPDATE_BATCH: libc::c_int = 26;
const BPF_MAP_DELETE_BATCH: libc::c_int = 27;
/// Attach type of TCX ingress (linux/bpf.h).
pub(super) const BPF_TCX_INGRESS: u32 = 46;
/// Attach type of programs that select the listener of a connection.
const BPF_SK_LOOKUP: u32 = 36;
/// Attach types of programs at a cgroup that run when a socket connects, by family.
pub(super) const BPF_CGROUP_CONNECT: [u32; FAMILIES] = [10, 11];
/// Attach types of cgroup programs that run after a socket was bound, by family.
pub(super) const BPF_CGROUP_POST_BIND: [u32; FAMILIES] = [12, 13];
/// Includes programs of the parent cgroups.
const BPF_F_QUERY_EFFECTIVE: u32 = 1;

/// `union bpf_attr` for the batch commands.
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `union bpf_attr` for BPF_PROG_QUERY.
#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    /// Index of an interface, or descriptor of a namespace.
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<()> {
    let (at, size) = (std::ptr::from_mut(attr), size_of::<T>());
    // SAFETY: `attr` is the arm of `union bpf_attr` that the command reads, of the size given; the
    // kernel checks every pointer in it.
    match unsafe { libc::syscall(libc::SYS_bpf, command, at, size) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Elements per batch. A bucket is never split, so a batch must hold the largest; otherwise the
/// kernel returns ENOSPC.
const BATCH: usize = 2048;

/// Calls `each` with every element of a hash map. Elements that are inserted or deleted in the
/// meantime may be missed or seen twice, as in any iteration of a live map.
pub(super) fn for_each<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    mut each: impl FnMut(K, V),
) -> io::Result<()> {
    let mut keys = Vec::<MaybeUninit<K>>::with_capacity(BATCH);
    let mut values = Vec::<MaybeUninit<V>>::with_capacity(BATCH);
    let mut position: Option<u32> = None;
    loop {
        let mut next = 0u32;
        let mut attr = BatchAttr {
            in_batch: position
                .as_ref()
                .map_or(0, |at| std::ptr::from_ref(at) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: BATCH as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        let result = bpf(BPF_MAP_LOOKUP_BATCH, &mut attr);
        // ENOENT: the last batch, whose `count` elements are valid.
        let last = match result {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(error) => return Err(error),
        };
        let count = (attr.count as usize).min(BATCH);
        for index in 0..count {
            // SAFETY: the kernel wrote `count` keys and values into buffers of BATCH, and `Pod` accepts any
            // bytes.
            unsafe {
                each(keys.as_ptr().add(index).read().assume_init(), {
                    values.as_ptr().add(index).read().assume_init()
                });
            }
        }
        if last {
            return Ok(());
        }
        position = Some(next);
    }
}

/// Inserts or replaces elements. After an error only some of them may be in the map.
pub(super) fn update<K: Pod, V: Pod>(map: BorrowedFd<'_>, elements: &[(K, V)]) -> io::Result<()> {
    let (keys, values): (Vec<K>, Vec<V>) = elements.iter().copied().unzip();
    let mut attr = BatchAttr {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: elements.len() as u32,
        map_fd: map.as_raw_fd() as u32,
        ..BatchAttr::default()
    };
    bpf(BPF_MAP_UPDATE_BATCH, &mut attr)
}

/// Deletes the elements of `keys`, ignoring missing ones.
pub(super) fn delete<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> io::Result<()> {
    let mut done = 0;
    while done < keys.len() {
        let rest = &keys[done..];
        let mut attr = BatchAttr {
            keys: rest.as_ptr() as u64,
            count: rest.len() as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        match bpf(BPF_MAP_DELETE_BATCH, &mut attr) {
            Ok(()) => return Ok(()),
            // The kernel stops at a missing key: skip it and those before it.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                done += attr.count as usize + 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ids of the programs at a TCX hook, first one first. Needs CAP_NET_ADMIN.
pub(super) fn programs_at(device: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    match query(device, attach_type, 0) {
        // Nothing was ever attached there.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        other => other,
    }
}

/// Ids of the `sk_lookup` programs of a network namespace, in the order in which they run. Needs
/// CAP_NET_ADMIN.
pub(super) fn lookup_programs(namespace: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    query(namespace.as_raw_fd() as u32, BPF_SK_LOOKUP, 0)
}

/// Ids of the socket programs of this cgroup and its parents with the attach type. Needs CAP_NET_ADMIN.
pub(super) fn socket_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    query(
        cgroup.as_raw_fd() as u32,
        attach_type,
        BPF_F_QUERY_EFFECTIVE,
    )
}

fn query(target: u32, attach_type: u32, query_flags: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0u32; 64];
    let mut attr = QueryAttr {
        target,
        attach_type,
        query_flags,
        prog_ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..QueryAttr::default()
    };
    bpf(BPF_PROG_QUERY, &mut attr)?;
    ids.truncate(attr.count as usize);
    Ok(ids)
}
