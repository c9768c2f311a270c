//! Tries each kernel feature that pathproof uses, with the agent's code, and prints a line for each:
//! `feature TAB yes or no TAB why not`. docs/internal/kernels.md is written from this output.

use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use node_tests::observer::{Sandbox, in_sandbox};
use node_tests::skip;
use pathproof::clock;
use pathproof::datapath::attach::{Attacher, Mechanism, Mode};
use pathproof::datapath::devices::Device;
use pathproof::datapath::pins::Pins;
use pathproof::datapath::steer::Steer;
use pathproof::datapath::{Observer, load};
use pathproof_shared::causes::chain;
use pathproof_wire::packet::Link;
use pathproof_wire::steer::{HEALTHZ, SteerRule, steer_flag};

/// A port that is free in the sandbox's namespace.
const PORT: u16 = 10256;

fn main() -> Result<()> {
    ensure!(skip::is_root(), "run as root");
    in_sandbox(|sandbox| features(&sandbox))
}

/// Tries all features in the order of the page docs/internal/kernels.md. The loaded programs are reused,
/// because an emulated processor takes seconds to verify them.
fn features(sandbox: &Sandbox) {
    // The device as the agent would list it.
    let devices = [Device {
        index: sandbox.client,
        name: "client".to_owned(),
        link: Link::Ethernet,
        uplink: false,
        leads_elsewhere: false,
        may_be_a_pods: false,
    }];
    let mut loaded = load::load(None).map_err(|error| anyhow!(chain(&error)));
    report("the verifier accepts the observer", checked(&mut loaded));
    let sentinel = checked(&mut loaded)
        .and_then(|ebpf| load::load_sentinel(ebpf).map_err(|error| anyhow!(chain(&error))));
    report("the verifier accepts the sentinel", sentinel);
    for (name, mode, wanted) in [
        ("TCX links", Mode::Tcx, Mechanism::Tcx),
        ("clsact filters", Mode::Clsact, Mechanism::Clsact),
    ] {
        let attached = checked(&mut loaded).and_then(|ebpf| {
            let mut attacher = Attacher::new(mode, None);
            attacher.follow(ebpf, &devices, clock::mono());
            let attachment = attacher.attachments().next().context("nothing followed")?;
            let (found, problem) = (attachment.mechanism(), attachment.problem.clone());
            attacher.release(false);
            ensure!(found == Some(wanted), "{}", problem.unwrap_or_default());
            Ok(())
        });
        report(name, attached);
    }
    // The agent's complete observer.
    let mut observer = Observer::load(Mode::Auto, None)
        .map(|(observer, _)| observer)
        .map_err(|error| anyhow!(chain(&error)));
    let first = checked(&mut observer).and_then(|observer| {
        observer.follow(&devices, clock::mono());
        observer.check(clock::mono(), || false);
        let attachment = observer.attacher.attachments().next();
        let first = attachment.context("nothing followed")?.first;
        ensure!(first == [Some(true); 2], "ingress and egress: {first:?}");
        Ok(())
    });
    report("being first at a hook, with confirmation", first);
    let steered = checked(&mut observer).and_then(steer);
    report("port steering (sk_lookup)", steered);
    let sampled = checked(&mut observer).and_then(|observer| Ok(observer.sample(clock::mono())?));
    report("maps read and emptied many elements at a time", sampled);
    let folder = format!("/sys/fs/bpf/pathproof-features-{}", std::process::id());
    let folder = Path::new(&folder);
    let pinned = Pins::open(folder).map(drop);
    let _ = Pins::remove_all(folder);
    report("pins in bpffs", pinned.map_err(Into::into));
    let ipvs = skip::ipvs().map_err(|_| anyhow!("not in this kernel"));
    report("IPVS", ipvs);
}

fn report<T>(name: &str, outcome: Result<T>) {
    match outcome {
        Ok(_) => println!("{name}\tyes\t"),
        Err(error) => println!("{name}\tno\t{}", format!("{error:#}").replace('\n', " ")),
    }
}

/// The loaded object, or the reason why it could not be loaded.
fn checked<T>(loaded: &mut Result<T>) -> Result<&mut T> {
    loaded.as_mut().map_err(|error| anyhow!("{error:#}"))
}

fn steer(observer: &mut Observer) -> Result<()> {
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
    observer.steer(PORT, &[steer], None, None)?;
    Ok(())
}
