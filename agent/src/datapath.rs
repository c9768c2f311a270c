//! The kernel side of the agent: it loads and attaches the observer, writes plans into its maps and reads
//! evidence from them. Only this module uses aya. It does only I/O: the core interprets the evidence. It must
//! not name `cluster` or `http`.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::Path;

use attach::{Attacher, Attachment, Mechanism, Mode};
use aya::Ebpf;
use devices::Device;
use drops::Drops;
use load::MapsError;
use pathproof_facts::time::Mono;
use pathproof_plan::MapChange;
use pathproof_wire::service::{EndpointKey, device_flag};
use pathproof_witness::drops::DropWatch;
use pathproof_witness::topology::TopologyFacts;
use pins::{Pins, PinsError};
use probes::{ProbeEnds, ProbeHooks, ProbeHooksError, ProbeMaps};
use program::{Outcome, Programmer};
use sample::{Read, Sampler};
use steer::{Attached, Steer, SteerError, Steering};
use succession::Marks;

pub mod attach;
pub mod btf;
pub mod devices;
pub mod drops;
pub mod listeners;
pub mod load;
pub mod pins;
pub mod probes;
pub mod program;
pub mod sample;
pub mod steer;
pub mod succession;
mod sweep;
mod syscall;
pub mod topology;

/// The loaded observer, with its maps, attachments and pins.
pub struct Observer {
    ebpf: Ebpf,
    pub attacher: Attacher,
    pub programmer: Programmer,
    pub sampler: Sampler,
    drops: Drops,
    /// Endpoints that each sample checks for traffic.
    pub endpoints: Vec<EndpointKey>,
    pins: Option<Pins>,
    mode: Mode,
    /// Reason why the sentinel's programs could not be loaded in advance.
    no_sentinel: Option<String>,
    /// Reason why the steering program could not be loaded in advance.
    no_steering: Option<SteerError>,
}

impl Observer {
    /// Loads the programs, and reuses the maps that a previous agent pinned in `pin_dir`. It
    /// attaches nothing yet; programs that a previous agent attached keep running. The second value
    /// is the reason why nothing can be pinned, if that is the case.
    pub fn load(
        mode: Mode,
        pin_dir: Option<&Path>,
    ) -> Result<(Self, Option<PinsError>), MapsError> {
        let opened = pin_dir.map(Pins::open).transpose();
        let (pins, no_pins) = opened.map_or_else(|error| (None, Some(error)), |pins| (pins, None));
        let mut ebpf = load::load(pins.as_ref())?;
        let observer = Self {
            programmer: Programmer::open(&mut ebpf)?,
            sampler: Sampler::open(&mut ebpf)?,
            drops: Drops::open(&mut ebpf)?,
            endpoints: Vec::new(),
            attacher: Attacher::new(mode, pins.clone()),
            ebpf,
            pins,
            mode,
            no_sentinel: None,
            no_steering: None,
        };
        Ok((observer, no_pins))
    }

    /// Loads the optional programs that the agent may attach later. After this call nothing else is
    /// loaded, so the capabilities for loading can be dropped. [`Observer::open_sentinel`],
    /// [`Observer::steer`] and [`Observer::watch_drops`] report what the kernel refused.
    pub fn load_ahead(&mut self, sentinel: bool, steering: bool) {
        if sentinel {
            let loaded = load::load_sentinel(&mut self.ebpf);
            self.no_sentinel = loaded.err().map(|error| error.to_string());
        }
        if steering {
            self.no_steering = steer::load(&mut self.ebpf).err();
        }
        self.drops.load(&mut self.ebpf);
    }

    /// Whether it reuses a previous agent's maps: then no connection was missed in between.
    pub fn continues(&self) -> bool {
        self.pins.as_ref().is_some_and(|pins| pins.found)
    }

    pub fn follow(&mut self, devices: &[Device], now: Mono) {
        self.claim();
        self.sampler.set_devices(devices);
        self.attacher.follow(&mut self.ebpf, devices, now);
        self.flag_devices();
        self.sweep_other_versions();
    }

    /// Flags each device for the programs: as an uplink, as a pod's interface, or as one with
    /// foreign programs behind the observer.
    fn flag_devices(&mut self) {
        let flags = |attachment: &Attachment| {
            let device = &attachment.device;
            let flag = |flag, set| if set { flag } else { 0 };
            flag(device_flag::UPLINK, device.uplink)
                | flag(device_flag::PODS, device.leads_elsewhere && !device.uplink)
                | flag(device_flag::FOREIGN, attachment.company.is_there)
        };
        let devices = self.attacher.attachments();
        let flagged = devices.map(|attachment| (attachment.device.index, flags(attachment)));
        let flagged = flagged.filter(|(_, flags)| *flags != 0).collect();
        if let Err(error) = self.programmer.set_devices(&flagged) {
            tracing::warn!(%error, "an interface could not be flagged as an uplink, as \
                                     a pod's or as shared with other programs");
        }
    }

    /// Records which programs are pathproof's, before they are attached.
    fn claim(&self) {
        let Some(pins) = &self.pins else { return };
        if let Err(error) = pins.claim(&load::ids(&self.ebpf)) {
            tracing::debug!(%error, "the BPF programs cannot be marked: another agent will not \
                                     recognise them as pathproof's");
        }
    }

    /// Removes pins of other versions once this version is attached and pinned on every device.
    /// Until then the other version's programs keep observing, even if this agent ends.
    fn sweep_other_versions(&self) {
        let attached = |attachment: &Attachment| {
            attachment.mechanism().is_some() || attachment.is_left_to_others()
        };
        let mut attachments = self.attacher.attachments().peekable();
        let all = attachments.peek().is_some() && attachments.all(attached);
        let all = all && self.attacher.not_pinned().is_none();
        if let Some(pins) = self.pins.as_ref().filter(|_| all) {
            pins.sweep_other_versions();
        }
    }

    /// Loads the sentinel's programs and attaches them to its devices, behind the observer's. Call
    /// [`Observer::follow`] with the near ends first.
    pub fn open_sentinel(&mut self, ends: &ProbeEnds) -> Result<ProbeHooks, ProbeHooksError> {
        if let Some(why) = &self.no_sentinel {
            return Err(ProbeHooksError::Load(why.clone()));
        }
        ProbeHooks::load(&mut self.ebpf)?;
        self.claim();
        let ours = self.ours();
        ProbeHooks::attach(&mut self.ebpf, ends, self.mode, &ours)
    }

    /// The maps of the sentinel's probes, through separate handles. Only one reader may take events
    /// at a time.
    pub fn probe_maps(&self) -> Result<ProbeMaps, MapsError> {
        ProbeMaps::open(&self.ebpf, self.sampler.connections.fd())
    }

    pub fn topology(&self, seen: &topology::Seen<'_>) -> TopologyFacts {
        // Repeated here, because somebody may have removed the records of pathproof's programs.
        self.claim();
        topology::read(seen, || self.ours())
    }

    /// Ids of the programs of this agent and of others that share its pins.
    fn ours(&self) -> BTreeSet<u32> {
        let mut ours = load::ids(&self.ebpf);
        ours.extend(self.pins.iter().flat_map(Pins::claimed));
        ours
    }

    /// Starts to steer connections to the agent's listeners; call it once. If another process
    /// listens on `port`, that process keeps the node's local connections. `services` is the
    /// listener for Services' health check node ports. An agent recognises its predecessor and its
    /// successor by marks among the pins and below `state_dir`.
    pub fn steer(
        &mut self,
        port: u16,
        steers: &[Steer],
        services: Option<RawFd>,
        state_dir: Option<&Path>,
    ) -> Result<Attached, SteerError> {
        let marks = Marks::new(self.pins.as_ref(), state_dir);
        match self.no_steering.take() {
            Some(error) => Err(error),
            None => Steering::attach(&mut self.ebpf, port, steers, services, marks),
        }
    }

    /// Checks that every hook is still first, and repairs those that are not. If `has_successor` returns true,
    /// the remaining hooks are left to that agent. Also unmarks the ports of removed UDP Services.
    pub fn check(&mut self, now: Mono, has_successor: impl Fn() -> bool) {
        self.attacher.check(&mut self.ebpf, now, has_successor);
        self.flag_devices();
        if let Err(error) = self.programmer.unmark_ports(now) {
            tracing::warn!(%error, "the ports of removed UDP Services could not be unmarked");
        }
        self.sweep_other_versions();
    }

    /// Writes a plan to the maps. See [`Programmer::apply`].
    pub fn apply(&mut self, plan: &[MapChange]) -> Outcome {
        // Reset counters before the maps change: ids are reused, and a Service port must not inherit the
        // counts of another one.
        for change in plan {
            if let MapChange::ResetCounts { service } = change
                && let Err(error) = self.sampler.reset(*service)
            {
                tracing::warn!(%error, service, "the counters of a Service could not be reset");
            }
        }
        self.programmer.apply(plan)
    }

    /// See [`Sampler::sample`].
    pub fn sample(&mut self, now: Mono) -> Result<Read, MapsError> {
        let mut read = self.sampler.sample(now)?;
        read.sample.drops = self.drops.read();
        read.sample.met = self.programmer.met(&self.endpoints);
        Ok(read)
    }

    /// Attaches the program that counts dropped packets by the kernel's reason, or detaches it.
    pub fn watch_drops(&mut self, on: bool) -> DropWatch {
        match self.drops.watch(&mut self.ebpf, on) {
            Ok(()) if on => DropWatch::On,
            Ok(()) => DropWatch::Off,
            Err(error) => DropWatch::Denied(error.to_string()),
        }
    }

    /// Detaches everything that is not pinned and would outlive this process, filters included. If no
    /// `successor` has filters in place, nothing observes after that. The pins record this gap, so that the
    /// next agent does not take the pinned maps for complete.
    pub fn release(&mut self, successor: bool) {
        let filters = |attachment: &Attachment| attachment.mechanism() == Some(Mechanism::Clsact);
        let is_gap = !successor && self.attacher.attachments().any(filters);
        self.attacher.release(successor);
        if let Some(pins) = self.pins.as_ref().filter(|_| is_gap) {
            pins.interrupt();
        }
    }
}
