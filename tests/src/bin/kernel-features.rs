//! Tries each feature of the kernel that pathproof uses, by the agent's own code, and prints a line
//! for each: `feature TAB yes or no TAB why not`. What it says becomes docs/kernels.md.

use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use agent_common::packet::Link;
use agent_common::steer::{HEALTHZ, SteerRule, steer_flag};
use anyhow::{Context as _, Result, anyhow, ensure};
use aya::Ebpf;
use node_tests::observer::{Sandbox, in_sandbox};
use node_tests::skip;
use pathproof::causes::chain;
use pathproof::clock;
use pathproof::datapath::Observer;
use pathproof::datapath::attach::{Attacher, Mechanism, Mode};
use pathproof::datapath::devices::Device;
use pathproof::datapath::load;
use pathproof::datapath::pins::Pins;
use pathproof::datapath::steer::Steer;

/// A port that nothing else uses in a namespace of its own.
const PORT: u16 = 10256;

fn main() -> Result<()> {
    ensure!(skip::is_root(), "run as root");
    in_sandbox(|sandbox| {
        let mut objects = Objects::default();
        for (name, act) in FEATURES {
            match act(&mut objects, &sandbox) {
                Ok(()) => println!("{name}\tyes\t"),
                Err(error) => println!("{name}\tno\t{}", format!("{error:#}").replace('\n', " ")),
            }
        }
    })
}

/// What was loaded: the verifier's work is done once, since a machine with an emulated processor
/// takes seconds for it.
#[derive(Default)]
struct Objects {
    ebpf: Option<Ebpf>,
    observer: Option<Observer>,
}

type Try = fn(&mut Objects, &Sandbox) -> Result<()>;

/// What is tried, in the order of the page.
const FEATURES: [(&str, Try); 9] = [
    ("the verifier accepts the observer", |objects, _| {
        let loaded = load::load(None).map_err(|error| anyhow!(chain(&error)))?;
        objects.ebpf = Some(loaded);
        Ok(())
    }),
    ("the verifier accepts the sentinel", |objects, _| {
        load::load_sentinel(objects.ebpf()?).map_err(|error| anyhow!(chain(&error)))
    }),
    ("TCX links", |objects, sandbox| {
        objects.attaches(sandbox, Mode::Tcx, Mechanism::Tcx)
    }),
    ("clsact filters", |objects, sandbox| {
        objects.attaches(sandbox, Mode::Clsact, Mechanism::Clsact)
    }),
    ("being first at a hook, with confirmation", first),
    ("port steering (sk_lookup)", steered),
    (
        "maps read and emptied many elements at a time",
        |objects, _| {
            objects.observer()?.sample(clock::mono())?;
            Ok(())
        },
    ),
    ("pins in bpffs", |_, _| pinned()),
    ("IPVS", |_, _| {
        ensure!(!skip::without_ipvs("this feature"), "not in this kernel");
        Ok(())
    }),
];

impl Objects {
    fn ebpf(&mut self) -> Result<&mut Ebpf> {
        self.ebpf.as_mut().context("it was not loaded")
    }

    /// The agent's own handle of everything.
    fn observer(&mut self) -> Result<&mut Observer> {
        if self.observer.is_none() {
            let loaded = Observer::load(Mode::Auto, None);
            let (observer, _) = loaded.map_err(|error| anyhow!(chain(&error)))?;
            self.observer = Some(observer);
        }
        self.observer.as_mut().context("it was not loaded")
    }

    fn attaches(&mut self, sandbox: &Sandbox, mode: Mode, wanted: Mechanism) -> Result<()> {
        let mut attacher = Attacher::new(mode, None);
        attacher.follow(self.ebpf()?, &[device(sandbox)]);
        let attachment = attacher.attachments().next().context("nothing followed")?;
        let (found, problem) = (attachment.mechanism(), attachment.problem.clone());
        attacher.release();
        ensure!(found == Some(wanted), "{}", problem.unwrap_or_default());
        Ok(())
    }
}

/// A device of the sandbox, as the agent lists it.
fn device(sandbox: &Sandbox) -> Device {
    Device {
        index: sandbox.client,
        name: "client".to_owned(),
        link: Link::Ethernet,
        uplink: false,
        leads_elsewhere: false,
    }
}

fn first(objects: &mut Objects, sandbox: &Sandbox) -> Result<()> {
    let observer = objects.observer()?;
    observer.follow(&[device(sandbox)]);
    observer.check(clock::mono());
    let attachment = observer.attachments().next().context("nothing followed")?;
    let first = attachment.first;
    ensure!(first == [Some(true); 2], "ingress and egress: {first:?}");
    Ok(())
}

fn steered(objects: &mut Objects, _: &Sandbox) -> Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let rule = SteerRule {
        port: u32::from(PORT),
        flags: steer_flag::EVERYWHERE,
        ..SteerRule::default()
    };
    let steer = Steer {
        index: HEALTHZ,
        rule,
        listener: listener.as_raw_fd(),
    };
    objects.observer()?.steer(PORT, &[steer], None, None)?;
    Ok(())
}

fn pinned() -> Result<()> {
    let folder = format!("/sys/fs/bpf/pathproof-features-{}", std::process::id());
    let folder = Path::new(&folder);
    let opened = Pins::open(folder).map(drop);
    let _ = Pins::remove_all(folder);
    Ok(opened?)
}
