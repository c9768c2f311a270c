//! The veth pairs themselves: whose they are, and making and removing them.

use std::io;

use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{LinkUnspec, LinkVeth};

use super::ensure::FAR_MTU;
use super::netlink::{Link, Netlink, errno, failed};
use super::{ALIAS, DeviceError, Role, Settings};

/// Removes our devices, and with them their routes and neighbours; gives how many devices went.
/// Devices of others that bear our names stay.
///
/// # Errors
/// No right to, or a refusal of the kernel.
pub async fn remove(settings: &Settings) -> Result<usize, DeviceError> {
    let netlink = Netlink::open()?;
    let mut removed = 0;
    for role in Role::ALL {
        // The other end went with the first one.
        let Some(link) = netlink.link(&settings.name(role)).await? else {
            continue;
        };
        if !is_marked(&link, role) {
            continue;
        }
        let peer = netlink.link(&settings.name(role.peer())).await?;
        match netlink.handle.link().del(link.index).execute().await {
            Ok(()) => {}
            Err(error) if errno(&error) == Some(libc::ENODEV) => continue,
            Err(error) => return Err(failed(format!("remove {}", link.name), error)),
        }
        removed += 1 + usize::from(peer.is_some_and(|peer| link.peer == Some(peer.index)));
    }
    Ok(removed)
}

/// Whether a device of one of our names was made by us: a veth with the hardware address of the
/// rule, or with our alias.
pub(super) fn is_marked(link: &Link, role: Role) -> bool {
    link.veth && (link.mac == role.mac().0 || link.alias.as_deref() == Some(ALIAS))
}

/// The pair of a near end, if it is there and ours.
pub(super) async fn own_pair(
    netlink: &Netlink,
    settings: &Settings,
    near: Role,
) -> Result<Option<(Link, Link)>, DeviceError> {
    let far = near.peer();
    let (near_name, far_name) = (settings.name(near), settings.name(far));
    let ends = (
        netlink.link(&near_name).await?,
        netlink.link(&far_name).await?,
    );
    let (link, peer, role) = match ends {
        (None, None) => return Ok(None),
        (Some(link), Some(peer)) => {
            let joined = link.peer == Some(peer.index) && peer.peer == Some(link.index);
            let marked = is_marked(&link, near) || is_marked(&peer, far);
            if link.veth && peer.veth && joined && marked {
                return Ok(Some((link, peer)));
            }
            // Told of the one that is more surely not ours.
            if is_marked(&link, near) && !joined {
                (peer, Some(link), far)
            } else {
                (link, Some(peer), near)
            }
        }
        (Some(link), None) => (link, None, near),
        (None, Some(link)) => (link, None, far),
    };
    Err(foreign(settings, &link, peer.as_ref(), role))
}

fn foreign(settings: &Settings, link: &Link, peer: Option<&Link>, role: Role) -> DeviceError {
    let wanted = settings.name(role.peer());
    let why = if !link.veth {
        "is there already and is no veth".to_owned()
    } else if peer.is_none_or(|peer| link.peer != Some(peer.index)) {
        format!("is there already and its other end is not {wanted} in this namespace")
    } else {
        "is there already and has neither the sentinel's hardware address nor its alias".to_owned()
    };
    let remedy = if is_marked(link, role) {
        "it is the sentinel's and damaged: `pathproof cleanup` removes it".to_owned()
    } else {
        format!(
            "remove it (`ip link del {}`) or choose another device prefix",
            link.name
        )
    };
    DeviceError::Foreign {
        name: link.name.clone(),
        why,
        remedy,
    }
}

pub(super) async fn create(
    netlink: &Netlink,
    settings: &Settings,
    near: Role,
) -> Result<(), DeviceError> {
    let far = near.peer();
    let peer: LinkMessage = LinkUnspec::new_with_name(&settings.name(far))
        .address(far.mac().0.to_vec())
        .mtu(FAR_MTU)
        .build();
    let name = settings.name(near);
    let pair = LinkVeth::new(&name, &settings.name(far))
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .address(near.mac().0.to_vec())
        .build();
    match netlink.handle.link().add(pair).execute().await {
        Ok(()) => Ok(()),
        // Another agent was quicker; whose it is, is looked at again.
        Err(error) if errno(&error) == Some(libc::EEXIST) => {
            own_pair(netlink, settings, near).await.map(drop)
        }
        Err(error) => Err(failed(format!("create the veth pair {name}"), error)),
    }
}

pub(super) async fn existing(
    netlink: &Netlink,
    settings: &Settings,
    role: Role,
) -> Result<Link, DeviceError> {
    let name = settings.name(role);
    let link = netlink.link(&name).await?;
    link.ok_or_else(|| {
        let gone = io::Error::from_raw_os_error(libc::ENODEV);
        DeviceError::Refused {
            operation: format!("set up {name}"),
            source: gone,
        }
    })
}
