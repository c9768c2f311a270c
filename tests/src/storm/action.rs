//! Performs the actions of a plan and reverts them.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::api::ApiServer;
use super::plan::{Action, AgentFault, Fault, Harmless, Users, World};
use super::run::Settings;
use super::tenants::{self, Tenants};
use super::worlds::Worlds;
use crate::abuse::burn;
use crate::cluster::Manner;
use crate::detect::{self, Load, Stage};
use crate::little_memory::MemoryGroup;
use crate::manifests::{AUTOSCALER_TAINT, Manifests, NODE_FILE, SENTINEL_FILE, Sentinel, Service};
use crate::traffic::Flood;
use crate::wait::until;
use crate::world::{self, Agent, Family, Place, agent_binary};

/// File with an invalid manifest. The rules do not read it, and an API server would refuse it.
const BAD_FILE: &str = "bad.json";
pub(super) const EXTRA_POD: &str = "storm";
const EXTRA_SERVICE: &str = "extra";
/// SYNs a second: as many as conntrack can hold for the lifetime of their entries.
const FLOOD: u32 = 5_000;
/// Time in which an agent allocates its working memory, on a busy machine.
const BEGINNING: Duration = Duration::from_secs(15);
/// Maximum wait for a successor to be ready. Without an API server it is not, and the old agent ends before
/// it: the storm has to go on.
const READY: Duration = Duration::from_secs(10);

/// Reverts an action.
pub(super) type Undo = Box<dyn FnOnce(&mut Injector) -> Result<()>>;

/// The stage and the actions that are in force.
pub(super) struct Injector {
    pub(super) stage: Stage,
    lasting: Vec<(Action, Undo)>,
    /// Command-line options of every agent.
    options: Vec<String>,
    /// Start time of the current agent.
    begun: Instant,
    /// Memory group of all agents. An action makes its memory tight.
    memory: Option<MemoryGroup>,
    /// Disk with the agents' state folder. An action fills it.
    state: SmallDisk,
    api: Option<ApiServer>,
    /// Pods and clients of the worlds and of the tenant.
    worlds: Worlds,
    pub(super) tenants: Tenants,
}

impl Injector {
    /// Starts everything, and waits until every path is proven.
    pub(super) fn build(settings: &Settings, memory: Option<MemoryGroup>) -> Result<Self> {
        // Outside of the world's folder, which is removed together with the world.
        let state = format!("pathproof-storm-{}", std::process::id());
        let state = SmallDisk::mount(std::env::temp_dir().join(state))?;
        let place = state.0.to_string_lossy().into_owned();
        let options = ["--flap-dwell", "0", "--log-filter", "info", "--state-dir"];
        let mut options = [&options.map(str::to_owned)[..], &[place]].concat();
        let mut api = None;
        let load = match settings.users {
            Users::Everybody => Load::Busy,
            Users::Outside => Load::Outside,
            Users::OnePod => Load::OnePod,
        };
        let mut stage = Stage::build(settings.backend, load, |world, manifests| {
            if settings.api {
                let server = api.insert(ApiServer::start(world, manifests)?);
                let kubeconfig = server.kubeconfig.to_string_lossy().into_owned();
                options.extend(["--kubeconfig".to_owned(), kubeconfig]);
            }
            spawn(world, manifests, &options, memory.as_ref())
        })?;
        let worlds = Worlds::prepare(&mut stage)?;
        let tenants = Tenants::prepare(&mut stage, settings.users)?;
        let mut injector = Self {
            stage,
            lasting: Vec::new(),
            options,
            begun: Instant::now(),
            memory,
            state,
            api,
            worlds,
            tenants,
        };
        injector.announce(tenants::SERVICES_FILE)?;
        injector.stage.settle()?;
        Ok(injector)
    }

    pub(super) fn begin(&mut self, action: Action) -> Result<()> {
        let undo = match action {
            Action::Fault(fault) => fault.inject(&mut self.stage).map(on_stage),
            Action::Harmless(harmless) => self.happen(harmless),
            Action::Agent(agent_fault) => self.befall(agent_fault),
            Action::Api(manner) => {
                self.set_way(manner);
                Ok(then(|injector| injector.set_way(Manner::Open)))
            }
            Action::World(world) => self.worlds.begin(world, &self.stage),
            Action::Tenant(tenant) => tenants::begin(tenant, self),
        };
        let undo = undo.with_context(|| format!("begin of {action:?}"))?;
        self.lasting.push((action, undo));
        Ok(())
    }

    pub(super) fn end(&mut self, action: Action) -> Result<()> {
        let place = self.lasting.iter().position(|(one, _)| *one == action);
        let (_, undo) = self.lasting.remove(place.context("what was begun")?);
        undo(self).with_context(|| format!("end of {action:?}"))
    }

    /// Returns an error, which ends the storm, if the agent exited by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        let is_killed = self.lasts(|action| action == Action::Agent(AgentFault::Killed));
        if !is_killed && let Some(status) = self.stage.agent.exited()? {
            bail!("the agent ended with {status}:\n{}", self.stage.agent.log());
        }
        Ok(())
    }

    pub(super) fn lasts(&self, is_such: impl Fn(Action) -> bool) -> bool {
        self.lasting.iter().any(|(action, _)| is_such(*action))
    }

    fn set_way(&self, manner: Manner) {
        if let Some(api) = &self.api {
            api.way.set(manner);
        }
    }

    fn happen(&mut self, harmless: Harmless) -> Result<Undo> {
        let stage = &mut self.stage;
        Ok(match harmless {
            Harmless::BackendKilled => on_stage(detect::kill_backend(stage)?),
            Harmless::RangeDropped => on_stage(detect::drop_range(stage)?),
            Harmless::EndpointMoved => {
                self.move_endpoint("api-1", "web-2")?;
                Box::new(|injector| injector.move_endpoint("web-2", "api-1"))
            }
            Harmless::ServiceAdded => {
                let pods = [stage.world.pod("web-2")];
                let service = Service::new(EXTRA_SERVICE, 5, pods).node_port(30085);
                stage.manifests.add(service)?;
                let file = Manifests::service_file(EXTRA_SERVICE);
                self.publish(&file)?;
                Box::new(move |injector| {
                    injector.withdraw(&file)?;
                    injector.stage.manifests.remove(EXTRA_SERVICE)?;
                    injector.follow()
                })
            }
            Harmless::PodAdded => {
                stage.world.add_pod(EXTRA_POD, Place::Local)?;
                Box::new(|injector| injector.stage.world.remove_pod(EXTRA_POD))
            }
            Harmless::SentinelDeleted => {
                self.withdraw(SENTINEL_FILE)?;
                self.stage.manifests.remove_sentinel()?;
                Box::new(|injector| {
                    let manifests = &injector.stage.manifests;
                    manifests.put_sentinel(&Sentinel::default())?;
                    injector.publish(SENTINEL_FILE)
                })
            }
            Harmless::DeviceDeleted => {
                // An agent that was just killed may not have created the device yet.
                let _ = stage.world.node.ip("link del pathproof-c0");
                then(|_| {})
            }
            Harmless::BadManifest => {
                stage.manifests.write_file(BAD_FILE, "kind: [\n")?;
                let file = stage.manifests.dir().join(BAD_FILE);
                Box::new(|_| Ok(fs::remove_file(file)?))
            }
            Harmless::NodeMarked => {
                stage.manifests.taint(AUTOSCALER_TAINT)?;
                self.announce(NODE_FILE)?;
                Box::new(|injector| {
                    injector.stage.manifests.untaint()?;
                    injector.announce(NODE_FILE)
                })
            }
            Harmless::SynFlood => {
                let target = SocketAddr::new(stage.world.node_address(Family::V4), 30081);
                let flood = Flood::start(&stage.world, target, FLOOD)?;
                then(|_| drop(flood))
            }
            Harmless::ProcessorsTaken => {
                let burner = burn();
                then(|_| drop(burner))
            }
            Harmless::DiskFull => {
                // Write until the disk is full.
                let filler = self.state.0.join("filler");
                let _ = fs::write(&filler, vec![0; 1 << 20]);
                Box::new(|_| fs::remove_file(filler).context("make room"))
            }
            Harmless::MemoryTight => {
                // Do not tighten while an agent starts, because its threads then need more memory.
                let is_killed = |action| action == Action::Agent(AgentFault::Killed);
                let begins = self.begun.elapsed() <= BEGINNING || self.lasts(is_killed);
                if let (Some(group), false) = (&self.memory, begins) {
                    group.tighten(self.stage.agent.pid())?;
                }
                Box::new(|injector| injector.loosen())
            }
        })
    }

    fn befall(&mut self, agent_fault: AgentFault) -> Result<Undo> {
        Ok(match agent_fault {
            AgentFault::Stopped => {
                self.stage.agent.signal(libc::SIGSTOP);
                then(|injector| {
                    injector.stage.agent.signal(libc::SIGCONT);
                })
            }
            AgentFault::Killed => {
                self.stage.agent.signal(libc::SIGKILL);
                Box::new(|injector| {
                    let new = injector.spawn()?;
                    std::mem::replace(&mut injector.stage.agent, new).kill()
                })
            }
            AgentFault::Replaced => {
                let before = self.stage.agent.started();
                let new = self.spawn()?;
                Box::new(move |injector| {
                    let old = std::mem::replace(&mut injector.stage.agent, new);
                    // Lift the limit before the waits: both agents are in the group now, and a process that
                    // waits for a page can neither begin nor exit.
                    injector.loosen()?;
                    let new = &injector.stage.agent;
                    let _ = until(READY, || is_ready(new, before.as_deref()).then_some(()));
                    old.terminate().map(drop)
                })
            }
        })
    }

    fn spawn(&mut self) -> Result<Agent> {
        self.begun = Instant::now();
        let (world, manifests) = (&self.stage.world, &self.stage.manifests);
        spawn(world, manifests, &self.options, self.memory.as_ref())
    }

    fn loosen(&self) -> Result<()> {
        self.memory.as_ref().map_or(Ok(()), MemoryGroup::loosen)
    }

    fn move_endpoint(&mut self, from: &str, to: &str) -> Result<()> {
        self.stage.swap_endpoint("api", from, to);
        self.publish(&Manifests::service_file("api"))
    }

    /// Applies a manifest to the API server, and makes the rules follow it.
    pub(super) fn publish(&self, file: &str) -> Result<()> {
        self.announce(file)?;
        self.follow()
    }

    pub(super) fn announce(&self, file: &str) -> Result<()> {
        self.api.as_ref().map_or(Ok(()), |api| api.announce(file))
    }

    pub(super) fn withdraw(&self, file: &str) -> Result<()> {
        self.api.as_ref().map_or(Ok(()), |api| api.withdraw(file))
    }

    /// Makes the rules follow the manifests, unless the proxy is frozen or its rules are broken. No update is
    /// lost by this: a repair restarts the proxy, even a frozen one, and it then writes all rules.
    pub(super) fn follow(&self) -> Result<()> {
        let broken = [
            Action::Fault(Fault::ChainFlushed),
            Action::Fault(Fault::TableGone),
            Action::World(World::ProxyFrozen),
        ];
        if self.lasts(|action| broken.contains(&action)) {
            return Ok(());
        }
        self.stage.rules.install()
    }
}

/// Whether the agent that answers now is not the one that started at `before`, and is ready.
fn is_ready(new: &Agent, before: Option<&str>) -> bool {
    let answers = new.started().is_some_and(|now| Some(&*now) != before);
    let ready = || new.admin("/agent/readyz");
    answers && ready().is_ok_and(|answer| answer.status == 200)
}

pub(super) fn on_stage(undo: detect::Undo) -> Undo {
    Box::new(|injector| undo(&mut injector.stage))
}

/// An undo that cannot fail.
pub(super) fn then(undo: impl FnOnce(&mut Injector) + 'static) -> Undo {
    Box::new(|injector| {
        undo(injector);
        Ok(())
    })
}

fn spawn(
    world: &world::World,
    manifests: &Manifests,
    options: &[String],
    memory: Option<&MemoryGroup>,
) -> Result<Agent> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let binary = agent_binary()?;
    let spawn = || world.spawn_agent(&binary, manifests.dir(), &options);
    let Some(group) = memory else {
        return spawn();
    };
    // Lift the limit first: a new agent needs additional memory, as in a new pod. In a tight group even this
    // process may lack the memory to open a file.
    group.loosen()?;
    group.inside(spawn)?
}

/// A file system of a few pages for the agent's state. It is unmounted and removed when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(place: PathBuf) -> Result<Self> {
        fs::create_dir_all(&place)?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "storm"]);
        let status = command.arg(&place).status().context("run mount")?;
        ensure!(status.success(), "no tmpfs at {place:?}: {status}");
        Ok(Self(place))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmount lazily, because the agent may still be exiting.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}
