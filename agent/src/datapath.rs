//! The kernel's side of the agent: loads and attaches the observer, writes plans into its maps and
//! reads evidence out of them. All of aya is in here, and nothing else than I/O: what evidence
//! means is `agent-core`'s to say. It must not name `cluster` or `http`.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::Path;

use agent_common::service::{EndpointKey, device_flag};
use aya::Ebpf;

use agent_core::drops::DropWatch;
use agent_core::plan::{Installed, MapChange};
use agent_core::shape::Facts;
use agent_core::time::Mono;
use attach::{Attacher, Attachment, Mechanism, Mode};
use devices::Device;
use drops::Drops;
use load::MapsError;
use pins::{Pins, PinsError};
use probes::{ProbeEnds, ProbeHooks, ProbeHooksError, ProbeMaps};
use program::{Outcome, Programmer};
use sample::{Read, Sampler};
use steer::{Owners, ServicePorts, Steer, SteerError, Steering};
use succession::Marks;

pub mod attach;
mod btf;
pub mod devices;
pub mod drops;
pub mod flows;
pub mod listeners;
pub mod load;
pub mod pins;
pub mod probes;
pub mod program;
pub mod release;
pub mod sample;
pub mod shape;
pub mod steer;
pub mod succession;
mod sweep;
mod syscall;

/// The observer in the kernel, and all that is held of it.
pub struct Observer {
    ebpf: Ebpf,
    attacher: Attacher,
    programmer: Programmer,
    /// Reads the evidence.
    pub sampler: Sampler,
    drops: Drops,
    /// Endpoints of which is read whether they were met.
    endpoints: Vec<EndpointKey>,
    pins: Option<Pins>,
    diagnostics: Option<Box<dyn FnMut() + Send>>,
    mode: Mode,
    /// Reason why the sentinel's programs could not be loaded ahead.
    no_sentinel: Option<String>,
    /// The same of the program that steers.
    no_steering: Option<SteerError>,
}

impl Observer {
    /// Loads the programs, on a former agent's maps where `pin_dir` holds them. Attached to nothing
    /// new yet; what a former agent attached goes on running. The second value tells why nothing
    /// can be pinned, where that is so.
    pub fn load(
        mode: Mode,
        pin_dir: Option<&Path>,
    ) -> Result<(Self, Option<PinsError>), MapsError> {
        let opened = pin_dir.map(Pins::open).transpose();
        let (pins, no_pins) = opened.map_or_else(|error| (None, Some(error)), |pins| (pins, None));
        let mut ebpf = load::load(pins.as_ref())?;
        let observer = Self {
            diagnostics: load::diagnostics(&mut ebpf),
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

    /// Loads what the agent may attach later, where its kind is wanted: after this nothing is loaded
    /// any more, and the rights to do so can be given up. What the kernel refuses is told by
    /// [`Observer::open_sentinel`], [`Observer::steer`] and [`Observer::watch_drops`].
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

    /// Whether it goes on with a former agent's maps: then nothing was missed since.
    pub fn continues(&self) -> bool {
        self.pins.as_ref().is_some_and(Pins::were_found)
    }

    /// Attaches to these devices and to no others.
    pub fn follow(&mut self, devices: &[Device], now: Mono) {
        self.claim();
        let uplinks = devices.iter().filter(|device| device.uplink);
        let uplinks: BTreeSet<u32> = uplinks.map(|device| device.index).collect();
        self.sampler.set_uplinks(uplinks);
        self.sampler.set_devices(devices);
        self.attacher.follow(&mut self.ebpf, devices, now);
        self.flag_devices();
        self.sweep_other_versions();
    }

    /// Tells the programs which devices are uplinks, which are pods', and where programs of others run
    /// behind them.
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
            tracing::warn!(%error, "an interface could not be marked as the agent's own");
        }
    }

    /// Says which programs are ours, before they are attached.
    fn claim(&self) {
        let Some(pins) = &self.pins else { return };
        if let Err(error) = pins.claim(&load::ids(&self.ebpf)) {
            tracing::debug!(%error, "the BPF programs cannot be marked: another agent will not \
                                     recognise them as pathproof's");
        }
    }

    /// Another version's programs watch on until these do, everywhere, and would do so without this agent.
    fn sweep_other_versions(&self) {
        let attached = |of: &Attachment| of.mechanism().is_some() || of.is_left_to_others();
        let mut attachments = self.attacher.attachments().peekable();
        let all = attachments.peek().is_some() && attachments.all(attached);
        let all = all && self.not_pinned().is_none();
        if let Some(pins) = self.pins.as_ref().filter(|_| all) {
            pins.sweep_other_versions();
        }
    }

    /// Loads the sentinel's programs and attaches them to its devices, behind the observer's: follow
    /// the near ends first.
    pub fn open_sentinel(&mut self, ends: &ProbeEnds) -> Result<ProbeHooks, ProbeHooksError> {
        if let Some(why) = &self.no_sentinel {
            return Err(ProbeHooksError::Load(why.clone()));
        }
        ProbeHooks::load(&mut self.ebpf)?;
        self.claim();
        ProbeHooks::attach(&mut self.ebpf, ends, self.mode)
    }

    /// The maps of the sentinel's probes, by handles of their own. There must be one reader of
    /// events at a time.
    pub fn probe_maps(&self) -> Result<ProbeMaps, MapsError> {
        ProbeMaps::open(&self.ebpf, self.sampler.pending())
    }

    /// Reads the datapath's shape, as it is now.
    pub fn shape(&self, seen: &shape::Seen<'_>) -> Facts {
        // Somebody may have removed them.
        self.claim();
        shape::read(seen, || {
            let mut ours = load::ids(&self.ebpf);
            ours.extend(self.pins.iter().flat_map(Pins::claimed));
            ours
        })
    }

    /// Has connections given to the agent's own listeners, once. `port` is the one whose owner, where
    /// it has one, keeps the node's own connections; `services` is the listener for Services' health
    /// check node ports. Agents that succeed each other know each other by
    /// marks among the pins and below `state_dir`.
    ///
    /// # Errors
    /// The kernel cannot do it.
    pub fn steer(
        &mut self,
        port: u16,
        steers: &[Steer],
        services: Option<RawFd>,
        state_dir: Option<&Path>,
    ) -> Result<(Steering, Owners, ServicePorts), SteerError> {
        let marks = Marks::new(self.pins.as_ref(), state_dir);
        match self.no_steering.take() {
            Some(error) => Err(error),
            None => Steering::attach(&mut self.ebpf, port, steers, services, marks),
        }
    }

    /// Looks whether every hook still stands first, and puts back what does not. Unmarks ports of UDP
    /// Services that went.
    pub fn check(&mut self, now: Mono) {
        self.attacher.check(&mut self.ebpf, now);
        self.flag_devices();
        if let Err(error) = self.programmer.unmark_ports(now) {
            tracing::warn!(%error, "the ports of removed UDP Services could not be unmarked");
        }
        self.sweep_other_versions();
    }

    /// By device, in the order of their indexes.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.attacher.attachments()
    }

    /// Name of a device that is followed.
    pub fn device_name(&self, index: u32) -> Option<&str> {
        self.attacher.name_of(index)
    }

    /// Why a link or map is not pinned any more, though that is wanted.
    pub fn not_pinned(&self) -> Option<String> {
        self.attacher.not_pinned()
    }

    /// Links put back because they were gone or not the first.
    pub fn repairs(&self) -> u64 {
        self.attacher.repairs
    }

    /// Entries that a former agent left in the maps.
    pub fn installed(&self) -> Installed {
        self.programmer.installed()
    }

    /// Applies a plan.
    pub fn apply(&mut self, plan: &[MapChange]) -> Outcome {
        // First: an id's old counts must be gone before a frontend stands under it again.
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
    ///
    /// # Errors
    /// A map could not be read.
    pub fn sample(&mut self, now: Mono) -> Result<Read, MapsError> {
        if let Some(flush) = &mut self.diagnostics {
            flush();
        }
        let mut read = self.sampler.sample(now)?;
        read.sample.drops = self.drops.read();
        read.sample.met = self.programmer.met(&self.endpoints);
        Ok(read)
    }

    /// Reads of these endpoints, with each sample, whether they were met.
    pub fn read_endpoints(&mut self, endpoints: Vec<EndpointKey>) {
        self.endpoints = endpoints;
    }

    /// Attaches the program that counts dropped packets by the kernel's reason, or detaches it.
    pub fn watch_drops(&mut self, on: bool) -> DropWatch {
        match self.drops.watch(&mut self.ebpf, on) {
            Ok(()) if on => DropWatch::On,
            Ok(()) => DropWatch::Off,
            Err(error) => DropWatch::Denied(error.to_string()),
        }
    }

    /// Detaches what would outlive this process unpinned. Filters go too, and unless a `successor` has its
    /// own, nobody observes from then on: the next agent must not conclude from the pinned maps that
    /// somebody did.
    pub fn release(&mut self, successor: bool) {
        let filters = |of: &Attachment| of.mechanism() == Some(Mechanism::Clsact);
        let is_gap = !successor && self.attacher.attachments().any(filters);
        self.attacher.release(successor);
        if let Some(pins) = self.pins.as_ref().filter(|_| is_gap) {
            pins.interrupt();
        }
    }
}
