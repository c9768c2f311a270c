//! Does what a plan says, and takes it back.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::api::ApiServer;
use super::plan::{Action, AgentFault, Fault, Harmless, Tenant, Trouble, World};
use super::tenants::{Tenants, Written};
use super::worlds::Worlds;
use crate::abuse::Burners;
use crate::cluster::Manner;
use crate::detect::Stage;
use crate::little_memory::MemoryGroup;
use crate::manifests::{Manifests, NODE_FILE, SENTINEL_FILE, Sentinel, Service};
use crate::traffic::Flood;
use crate::world::{Agent, Family, Place};

/// What marks a node for deletion.
const MARK: &str = "ToBeDeletedByClusterAutoscaler";
const BAD_FILE: &str = "bad.yaml";
const BAD: &str = "kind: [\n";
pub(super) const EXTRA_POD: &str = "storm";
const EXTRA_SERVICE: &str = "extra";
/// SYNs a second: what conntrack can hold for as long as it keeps them.
const FLOOD: u32 = 5_000;
/// What an agent takes to hold what it works with, on a busy machine.
const BEGINNING: Duration = Duration::from_secs(15);

/// The stage, and what lasts there.
#[derive(Debug)]
pub struct Injector {
    /// Everything that is up.
    pub stage: Stage,
    binary: PathBuf,
    options: Vec<String>,
    /// Disk of the agent's folder for its state, full some time.
    pub(super) state: Option<SmallDisk>,
    /// The API server that the agent reads, where it reads one.
    pub(super) api: Option<ApiServer>,
    successor: Option<Agent>,
    /// A fault of the rules lasts: whoever else writes them waits for its end.
    without_rules: bool,
    /// When the present agent was started; none while it is killed.
    begun: Option<Instant>,
    burners: Option<Burners>,
    flood: Option<Flood>,
    /// Group that the agent is started in, so that memory can be short.
    pub(super) memory: Option<MemoryGroup>,
    pub(super) worlds: Option<Worlds>,
    pub(super) tenants: Option<Tenants>,
    /// The way to the API server is not open.
    troubled: bool,
    /// The proxy is frozen: nobody but a repair brings the rules up to date.
    frozen: bool,
}

impl Injector {
    /// Those that start agents of this program with these options.
    pub fn new(stage: Stage, binary: PathBuf, options: Vec<String>) -> Self {
        Self {
            stage,
            binary,
            options,
            state: None,
            api: None,
            successor: None,
            without_rules: false,
            begun: Some(Instant::now()),
            burners: None,
            flood: None,
            memory: None,
            worlds: None,
            tenants: None,
            troubled: false,
            frozen: false,
        }
    }

    /// Makes it happen.
    pub fn begin(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Fault(fault) => self.break_it(fault),
            Action::Harmless(harmless) => self.happen(harmless),
            Action::Agent(agent_fault) => self.befall(agent_fault),
            Action::Api(trouble) => {
                self.troubled = true;
                self.way(trouble.manner())
            }
            Action::Tenant(tenant) => self.let_tenant(tenant),
            Action::World(World::ProxyFrozen) => {
                self.frozen = true;
                Ok(())
            }
            Action::World(world) => self.world(|worlds, stage| worlds.begin(world, stage)),
        }
        .with_context(|| format!("begin of {action}"))
    }

    /// Takes it back.
    pub fn end(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Fault(fault) => self.mend(fault),
            Action::Harmless(harmless) => self.take_back(harmless),
            Action::Agent(agent_fault) => self.relieve(agent_fault),
            Action::Api(_) => {
                self.troubled = false;
                self.way(Manner::Open)
            }
            Action::Tenant(tenant) => self.stop_tenant(tenant),
            Action::World(World::ProxyFrozen) => {
                self.frozen = false;
                self.follow()
            }
            Action::World(world) => self.world(|worlds, stage| worlds.end(world, stage)),
        }
        .with_context(|| format!("end of {action}"))
    }

    /// An agent that ends by itself ends the storm.
    pub fn check(&mut self) -> Result<()> {
        if self.begun.is_none() {
            return Ok(());
        }
        if let Some(status) = self.stage.agent.exited()? {
            bail!("the agent ended with {status}:\n{}", self.stage.agent.log());
        }
        Ok(())
    }

    fn break_it(&mut self, fault: Fault) -> Result<()> {
        self.without_rules |= is_of_rules(fault);
        fault.inject(&mut self.stage)
    }

    fn mend(&mut self, fault: Fault) -> Result<()> {
        if !is_of_rules(fault) {
            return fault.mend(&mut self.stage);
        }
        self.without_rules = false;
        // A repair restarts the proxy, even a frozen one, and a start reads everything.
        self.install()
    }

    fn happen(&mut self, harmless: Harmless) -> Result<()> {
        let stage = &mut self.stage;
        match harmless {
            Harmless::BackendKilled => stage.kill_backend(),
            Harmless::RangeDropped => stage.drop_range()?,
            Harmless::EndpointMoved => self.move_endpoint("api-1", "web-2")?,
            Harmless::ServiceAdded => {
                let pods = [stage.world.pod("web-2")];
                let service = Service::new(EXTRA_SERVICE, 5, pods).node_port(30085);
                stage.manifests.add(service)?;
                self.announce(&Manifests::service_file(EXTRA_SERVICE))?;
                self.follow()?;
            }
            Harmless::PodAdded => {
                stage.world.add_pod(EXTRA_POD, Place::Local)?;
            }
            Harmless::SentinelDeleted => {
                self.withdraw(SENTINEL_FILE)?;
                self.stage.manifests.remove_sentinel()?;
            }
            // An agent that was just killed may not have made it yet.
            Harmless::DeviceDeleted => drop(stage.world.node.ip("link del pathproof-c0")),
            Harmless::BadManifest => stage.manifests.write_file(BAD_FILE, BAD)?,
            Harmless::NodeMarked => {
                stage.manifests.taint(MARK)?;
                self.announce(NODE_FILE)?;
            }
            Harmless::SynFlood => {
                let node = stage.world.node_address(Family::V4);
                let target = SocketAddr::new(node, 30081);
                self.flood = Some(Flood::start(&stage.world, target, FLOOD)?);
            }
            Harmless::ProcessorsTaken => self.burners = Some(Burners::start()),
            Harmless::DiskFull => self.disk()?.fill(),
            Harmless::MemoryTight => match &self.memory {
                // The threads of one that begins need more.
                Some(group) if self.begun.is_some_and(|at| at.elapsed() > BEGINNING) => {
                    group.tighten(stage.agent.pid())?
                }
                _ => {}
            },
        }
        Ok(())
    }

    fn take_back(&mut self, harmless: Harmless) -> Result<()> {
        let stage = &mut self.stage;
        match harmless {
            Harmless::BackendKilled => stage.revive_backend()?,
            Harmless::RangeDropped => stage.unfilter("range")?,
            Harmless::EndpointMoved => self.move_endpoint("web-2", "api-1")?,
            Harmless::ServiceAdded => {
                self.withdraw(&Manifests::service_file(EXTRA_SERVICE))?;
                self.stage.manifests.remove(EXTRA_SERVICE)?;
                self.follow()?;
            }
            Harmless::PodAdded => stage.world.remove_pod(EXTRA_POD)?,
            Harmless::SentinelDeleted => {
                stage.manifests.put_sentinel(&Sentinel::default())?;
                self.announce(SENTINEL_FILE)?;
                self.follow()?;
            }
            Harmless::DeviceDeleted => {}
            Harmless::BadManifest => fs::remove_file(stage.manifests.dir().join(BAD_FILE))?,
            Harmless::NodeMarked => {
                stage.manifests.untaint()?;
                self.announce(NODE_FILE)?;
            }
            Harmless::SynFlood => self.flood = None,
            Harmless::ProcessorsTaken => self.burners = None,
            Harmless::DiskFull => self.disk()?.clear()?,
            Harmless::MemoryTight => self.memory.as_ref().map_or(Ok(()), MemoryGroup::loosen)?,
        }
        Ok(())
    }

    fn world(&mut self, act: impl FnOnce(&mut Worlds, &Stage) -> Result<()>) -> Result<()> {
        let worlds = self.worlds.as_mut().context("what worlds need")?;
        act(worlds, &self.stage)
    }

    fn let_tenant(&mut self, tenant: Tenant) -> Result<()> {
        let tenants = self.tenants.as_mut().context("a tenant")?;
        let Some(written) = tenants.begin(tenant, &self.stage)? else {
            return Ok(());
        };
        self.announce(written.file)?;
        // A claim of what is dialled is known by the watches alone, as a real proxy knows it.
        if written.ruled && !(self.troubled && tenant == Tenant::ClaimsProbed) {
            self.follow()?;
        }
        let tenants = self.tenants.as_mut().context("a tenant")?;
        if tenants.go_on(tenant, &self.stage)? {
            self.announce(written.file)?;
            self.follow()?;
        }
        Ok(())
    }

    fn stop_tenant(&mut self, tenant: Tenant) -> Result<()> {
        let tenants = self.tenants.as_mut().context("a tenant")?;
        let Some(Written { file, ruled }) = tenants.end(tenant, &self.stage)? else {
            return Ok(());
        };
        self.withdraw(file)?;
        fs::remove_file(self.stage.manifests.dir().join(file))?;
        if ruled {
            self.follow()?;
        }
        Ok(())
    }

    fn disk(&self) -> Result<&SmallDisk> {
        self.state.as_ref().context("a small disk")
    }

    fn befall(&mut self, agent_fault: AgentFault) -> Result<()> {
        match agent_fault {
            AgentFault::Stopped => {
                self.stage.agent.signal(libc::SIGSTOP);
            }
            AgentFault::Killed => {
                self.begun = None;
                self.stage.agent.signal(libc::SIGKILL);
            }
            AgentFault::Replaced => {
                self.successor = Some(self.spawn()?);
                self.begun = Some(Instant::now());
            }
        }
        Ok(())
    }

    fn relieve(&mut self, agent_fault: AgentFault) -> Result<()> {
        match agent_fault {
            AgentFault::Stopped => {
                self.stage.agent.signal(libc::SIGCONT);
                Ok(())
            }
            AgentFault::Killed => {
                let new = self.spawn()?;
                self.begun = Some(Instant::now());
                std::mem::replace(&mut self.stage.agent, new).kill()
            }
            AgentFault::Replaced => {
                let new = self.successor.take().context("a successor")?;
                let old = std::mem::replace(&mut self.stage.agent, new);
                // Two agents are in the group now. One that waits for a page cannot end, and nobody
                // would give it one while it is waited for here.
                self.memory.as_ref().map_or(Ok(()), MemoryGroup::loosen)?;
                old.terminate().map(drop)
            }
        }
    }

    fn spawn(&self) -> Result<Agent> {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let manifests = self.stage.manifests.dir();
        let world = &self.stage.world;
        let spawn = || world.spawn_agent(&self.binary, manifests, &options);
        let Some(group) = &self.memory else {
            return spawn();
        };
        // A new pod has memory of its own. In a tight group even we, who start it, may be refused what
        // the kernel needs to open a file.
        group.loosen()?;
        group.inside(spawn)?
    }

    fn move_endpoint(&mut self, from: &str, to: &str) -> Result<()> {
        let stage = &mut self.stage;
        let to = stage.world.pod(to);
        stage.manifests.swap_endpoint("api", from, to)?;
        self.announce(&Manifests::service_file("api"))?;
        self.follow()
    }

    fn announce(&self, file: &str) -> Result<()> {
        self.api.as_ref().map_or(Ok(()), |api| api.announce(file))
    }

    fn withdraw(&self, file: &str) -> Result<()> {
        self.api.as_ref().map_or(Ok(()), |api| api.withdraw(file))
    }

    fn way(&self, manner: Manner) -> Result<()> {
        let api = self.api.as_ref().context("an API server")?;
        api.set(manner);
        Ok(())
    }

    /// The proxy follows the manifests, unless it is frozen; while its rules are broken it is what
    /// broke.
    fn follow(&self) -> Result<()> {
        if self.without_rules || self.frozen {
            return Ok(());
        }
        self.install()
    }

    fn install(&self) -> Result<()> {
        // It reads what the API server holds, where no such file can be.
        let file = self.stage.manifests.dir().join(BAD_FILE);
        let bad = file.exists();
        if bad {
            fs::remove_file(&file)?;
        }
        self.stage.rules.install()?;
        match bad {
            true => self.stage.manifests.write_file(BAD_FILE, BAD),
            false => Ok(()),
        }
    }
}

/// Whether the rules themselves are gone.
fn is_of_rules(fault: Fault) -> bool {
    matches!(fault, Fault::ChainFlushed | Fault::TableGone)
}

impl Trouble {
    fn manner(self) -> Manner {
        match self {
            Self::Closed => Manner::Closed,
            Self::Silent => Manner::Silent,
            Self::Hung => Manner::Hung,
            Self::Slow => Manner::Slow(Duration::from_millis(500)),
        }
    }
}

/// A file system of a few pages for the agent's state. Unmounted when dropped.
#[derive(Debug)]
pub(super) struct SmallDisk {
    place: PathBuf,
}

impl SmallDisk {
    pub(super) fn mount(place: PathBuf) -> Result<Self> {
        fs::create_dir_all(&place)?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "storm"]);
        let status = command.arg(&place).status().context("run mount")?;
        if !status.success() {
            bail!("no tmpfs at {}: {status}", place.display());
        }
        Ok(Self { place })
    }

    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Until nothing goes in any more.
    fn fill(&self) {
        let _ = fs::write(self.place.join("filler"), vec![0; 1 << 20]);
    }

    fn clear(&self) -> Result<()> {
        fs::remove_file(self.place.join("filler")).context("make room")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the agent may be about to end.
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}
