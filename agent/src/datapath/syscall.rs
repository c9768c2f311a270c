//! `bpf(2)` commands that aya has no call for: many map elements at a time, and which
//! programs stand at a hook without asking for their descriptors (that needs CAP_SYS_ADMIN, which
//! the agent does not have; finding 20).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use agent_common::service::{FAMILIES, Family};
use aya::Pod;

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
const BPF_MAP_UPDATE_BATCH: libc::c_int = 26;
const BPF_MAP_DELETE_BATCH: libc::c_int = 27;
/// Attach type of TCX ingress (linux/bpf.h).
pub(super) const BPF_TCX_INGRESS: u32 = 46;
/// Attach type of TCX egress.
pub(super) const BPF_TCX_EGRESS: u32 = 47;
/// Attach type of programs that pick who listens.
const BPF_SK_LOOKUP: u32 = 36;
/// Attach types of programs at a cgroup that run when a socket connects, by family.
const BPF_CGROUP_CONNECT: [u32; FAMILIES] = [10, 11];
/// And of those that run when one was bound.
const BPF_CGROUP_POST_BIND: [u32; FAMILIES] = [12, 13];
/// Programs of the hierarchy above count too.
const BPF_F_QUERY_EFFECTIVE: u32 = 1;
/// `struct bpf_prog_info`: the name stands here.
const NAME: std::ops::Range<usize> = 64..80;

/// `union bpf_attr`, the arm of the batch commands.
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

/// `union bpf_attr`, the arm of BPF_PROG_QUERY.
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

/// `union bpf_attr`, the arm of BPF_PROG_GET_FD_BY_ID.
#[repr(C)]
#[derive(Default)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// `union bpf_attr`, the arm of BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

/// `union bpf_attr`, the arm of BPF_MAP_CREATE.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

/// `union bpf_attr`, the arm of the commands for one element.
#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A map of one number, for whoever wants to know what may be done with maps.
pub(super) fn scratch_map() -> io::Result<OwnedFd> {
    const BPF_MAP_TYPE_ARRAY: u32 = 2;
    let mut attr = MapAttr {
        kind: BPF_MAP_TYPE_ARRAY,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<u64>() as u32,
        max_entries: 1,
        flags: 0,
    };
    let fd = bpf_number(BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: the kernel just gave this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads the one number of it.
pub(super) fn read_scratch(map: BorrowedFd<'_>) -> io::Result<u64> {
    let (key, mut value) = (0u32, 0u64);
    let mut attr = ElementAttr {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_mut(&mut value) as u64,
        ..ElementAttr::default()
    };
    bpf(BPF_MAP_LOOKUP_ELEM, &mut attr)?;
    Ok(value)
}

fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<()> {
    bpf_number(command, attr).map(drop)
}

/// Commands that answer with a number.
fn bpf_number<T>(command: libc::c_int, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is the arm of `union bpf_attr` that the command reads, of the size given; the
    // kernel checks every pointer in it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

/// Elements that one batch asks for. A bucket is never split, so there must be room for the
/// largest; the kernel says ENOSPC otherwise.
const BATCH: usize = 2048;

/// Calls `each` with every element of a hash map. Elements that are inserted or deleted meanwhile
/// may be missed or met twice, as with any iteration of a live map.
pub(super) fn for_each<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    mut each: impl FnMut(K, V),
) -> io::Result<()> {
    let mut keys = Vec::<MaybeUninit<K>>::with_capacity(BATCH);
    let mut values = Vec::<MaybeUninit<V>>::with_capacity(BATCH);
    let (mut position, mut started) = (0u32, false);
    loop {
        let mut next = 0u32;
        let mut attr = BatchAttr {
            in_batch: if started {
                std::ptr::from_ref(&position) as u64
            } else {
                0
            },
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: BATCH as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        let result = bpf(BPF_MAP_LOOKUP_BATCH, &mut attr);
        // ENOENT: the last batch, `count` elements of it are good.
        let last = match result {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(error) => return Err(error),
        };
        let count = (attr.count as usize).min(BATCH);
        for index in 0..count {
            // SAFETY: the kernel wrote `count` keys and values into buffers of BATCH, and `Pod`
            // takes any bytes.
            unsafe {
                each(keys.as_ptr().add(index).read().assume_init(), {
                    values.as_ptr().add(index).read().assume_init()
                });
            }
        }
        if last {
            return Ok(());
        }
        (position, started) = (next, true);
    }
}

/// Puts elements in, replacing those that stand. On an error some of them are in and some are not.
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

/// Deletes the elements of `keys`; those that are gone already are passed over.
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
            // The kernel stops at a key that is gone: it and those before it are dealt with.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                done += attr.count as usize + 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ids of the programs at a TCX hook, the head first. Needs CAP_NET_ADMIN.
pub(super) fn programs_at(device: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    match query(device, attach_type) {
        // Nothing was ever attached there.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        other => other,
    }
}

/// Ids of the programs that pick who listens in a network namespace, in the order in which they run.
/// Needs CAP_NET_ADMIN.
pub(super) fn lookup_programs(namespace: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    query(namespace.as_raw_fd() as u32, BPF_SK_LOOKUP)
}

/// What a process does with a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// It connects.
    Connect,
    /// It has bound it.
    Bound,
}

/// Ids of the programs that run when a process of this cgroup does so, those of the hierarchy above
/// among them. Needs CAP_NET_ADMIN.
pub(super) fn socket_programs(
    cgroup: BorrowedFd<'_>,
    call: Call,
    family: Family,
) -> io::Result<Vec<u32>> {
    let attach_types = match call {
        Call::Connect => BPF_CGROUP_CONNECT,
        Call::Bound => BPF_CGROUP_POST_BIND,
    };
    query_with(
        cgroup.as_raw_fd() as u32,
        attach_types[family as usize],
        BPF_F_QUERY_EFFECTIVE,
    )
}

/// Name of a program. Needs CAP_SYS_ADMIN, which the agent has only where it is given everything.
pub(super) fn program_name(id: u32) -> io::Result<String> {
    let mut attr = IdAttr {
        id,
        ..IdAttr::default()
    };
    let fd = bpf_number(BPF_PROG_GET_FD_BY_ID, &mut attr)?;
    // SAFETY: the kernel just gave this descriptor to us.
    let program = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = [0u8; NAME.end];
    let mut attr = InfoAttr {
        fd: program.as_raw_fd() as u32,
        length: info.len() as u32,
        info: info.as_mut_ptr() as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    let name = info[NAME]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn query(target: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    query_with(target, attach_type, 0)
}

fn query_with(target: u32, attach_type: u32, query_flags: u32) -> io::Result<Vec<u32>> {
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
