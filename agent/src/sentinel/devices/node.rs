//! What routes, addresses and neighbours the node has, read once: what the search for conflicts
//! needs to know.

use std::collections::BTreeMap;
use std::net::IpAddr;

use agent_common::service::Family;
use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::netlink::{Netlink, failed, neighbour_of};
use super::pair::is_marked;
use super::{DeviceError, Role, Settings};

/// A route of any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub destination: IpNet,
    /// What it does.
    pub kind: RouteType,
    /// Routing table.
    pub table: u32,
    /// Index of the device; `None` for several next hops or none.
    pub device: Option<u32>,
    /// Name of the device, where it was asked for.
    pub device_name: String,
    /// There is a next hop behind the device.
    pub gateway: bool,
}

impl Route {
    /// From the kernel's message.
    pub(super) fn of(message: &RouteMessage) -> Option<Self> {
        let any = match message.header.address_family {
            rtnetlink::packet_route::AddressFamily::Inet => IpAddr::from([0; 4]),
            rtnetlink::packet_route::AddressFamily::Inet6 => IpAddr::from([0; 16]),
            _ => return None,
        };
        let (mut address, mut table) = (any, message.header.table.into());
        let (mut device, mut gateway) = (None, false);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(v4)) => address = (*v4).into(),
                RouteAttribute::Destination(RouteAddress::Inet6(v6)) => address = (*v6).into(),
                RouteAttribute::Table(number) => table = *number,
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Gateway(_)
                | RouteAttribute::Via(_)
                | RouteAttribute::MultiPath(_) => gateway = true,
                _ => {}
            }
        }
        let prefix = message.header.destination_prefix_length;
        Some(Self {
            destination: IpNet::new(address, prefix).ok()?,
            kind: message.header.kind,
            table,
            device,
            device_name: String::new(),
            gateway,
        })
    }

    /// Whether it leads to this address alone.
    pub fn is_exactly(&self, address: IpAddr) -> bool {
        self.destination == IpNet::from(address)
    }
}

/// An address of the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// Name of the device that has it.
    pub device: String,
}

/// Somebody whom the node knows at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The address.
    pub address: IpAddr,
    /// Name of the device.
    pub device: String,
}

/// Routes, addresses and neighbours of the node, without those of the sentinel's own devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Of every table.
    pub routes: Vec<Route>,
    /// Of every device.
    pub addresses: Vec<LocalAddress>,
    /// That have answered, or are set by hand.
    pub neighbours: Vec<Neighbour>,
}

impl NodeState {
    /// Reads it from the kernel.
    ///
    /// # Errors
    /// A refusal of the kernel.
    pub async fn read(settings: &Settings) -> Result<Self, DeviceError> {
        let netlink = Netlink::open()?;
        let mut devices = Devices::read(&netlink).await?;
        for role in Role::ALL {
            if let Some(link) = netlink.link(&settings.name(role)).await?
                && is_marked(&link, role)
            {
                devices.ours.push(link.index);
            }
        }
        let mut state = Self::default();
        for family in Family::ALL {
            state.read_routes(&netlink, &devices, family).await?;
            state.read_neighbours(&netlink, &devices, family).await?;
        }
        state.read_addresses(&netlink, &devices).await?;
        Ok(state)
    }

    async fn read_routes(
        &mut self,
        netlink: &Netlink,
        devices: &Devices,
        family: Family,
    ) -> Result<(), DeviceError> {
        for message in netlink.routes(family).await? {
            let Some(mut route) = Route::of(&message) else {
                continue;
            };
            if route.device.is_some_and(|index| devices.is_ours(index)) {
                continue;
            }
            route.device_name = match route.device {
                Some(index) => devices.name(index),
                None => "no device".to_owned(),
            };
            self.routes.push(route);
        }
        Ok(())
    }

    async fn read_neighbours(
        &mut self,
        netlink: &Netlink,
        devices: &Devices,
        family: Family,
    ) -> Result<(), DeviceError> {
        for message in netlink.neighbours(family, None).await? {
            // Asked for in vain: nobody is there.
            let vain = [
                NeighbourState::None,
                NeighbourState::Incomplete,
                NeighbourState::Failed,
            ];
            let index = message.header.ifindex;
            if vain.contains(&message.header.state) || devices.is_ours(index) {
                continue;
            }
            if let Some((address, _, _)) = neighbour_of(&message) {
                let device = devices.name(index);
                self.neighbours.push(Neighbour { address, device });
            }
        }
        Ok(())
    }

    async fn read_addresses(
        &mut self,
        netlink: &Netlink,
        devices: &Devices,
    ) -> Result<(), DeviceError> {
        let mut answers = netlink.handle.address().get().execute();
        while let Some(message) = answers
            .try_next()
            .await
            .map_err(|error| failed("list addresses", error))?
        {
            let index = message.header.index;
            // On a point-to-point device "address" is the other side's.
            let (mut local, mut other) = (None, None);
            for attribute in &message.attributes {
                match attribute {
                    AddressAttribute::Local(address) => local = Some(*address),
                    AddressAttribute::Address(address) => other = Some(*address),
                    _ => {}
                }
            }
            let device = devices.name(index);
            if let Some(address) = local.or(other) {
                self.addresses.push(LocalAddress { address, device });
            }
        }
        Ok(())
    }
}

/// Names of all devices, and which are ours.
struct Devices {
    names: BTreeMap<u32, String>,
    ours: Vec<u32>,
}

impl Devices {
    async fn read(netlink: &Netlink) -> Result<Self, DeviceError> {
        let mut answers = netlink.handle.link().get().execute();
        let mut names = BTreeMap::new();
        while let Some(message) = answers
            .try_next()
            .await
            .map_err(|error| failed("list devices", error))?
        {
            for attribute in message.attributes {
                if let LinkAttribute::IfName(name) = attribute {
                    names.insert(message.header.index, name);
                }
            }
        }
        Ok(Self {
            names,
            ours: Vec::new(),
        })
    }

    fn is_ours(&self, index: u32) -> bool {
        self.ours.contains(&index)
    }

    fn name(&self, index: u32) -> String {
        let name = self.names.get(&index);
        name.cloned().unwrap_or_else(|| format!("device {index}"))
    }
}
