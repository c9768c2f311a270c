//! `pathproof fleet` put together: a client for people, what is found by it, and the page.

use std::error::Error;

use crate::args::{FleetAccess, FleetArgs, FleetCommand};
use crate::cli::{self, Exit};
use crate::clock;
use crate::cluster::api::{Desk, desk_client};
use crate::config::FleetConfig;
use crate::fleet::{Cluster, Progress, Reach, Survey};

/// Runs the command.
pub async fn run(said: &FleetArgs, config: &FleetConfig) -> Exit {
    let client = match desk_client(&desk(&said.access)).await {
        Ok(client) => client,
        Err(error) => return cli::fail(&error),
    };
    let reach = Reach {
        namespace: config.namespace.clone(),
        port: config.port,
        timeout: config.timeout,
    };
    let cluster = Cluster::new(client, reach);
    match &said.command {
        None => list(said, &cluster).await,
        Some(FleetCommand::Why(of)) => match cluster.report(&of.node).await {
            Ok(page) => cli::why::show(&page.report, said.access.output),
            Err(error) => fail(&error, error.is_permission()),
        },
        Some(FleetCommand::Status(of)) => match cluster.report(&of.node).await {
            Ok(page) => cli::status::show(&page.body, &page.report, said.access.output, wall),
            Err(error) => fail(&error, error.is_permission()),
        },
    }
}

async fn list(said: &FleetArgs, cluster: &Cluster) -> Exit {
    let survey = Survey {
        selector: said.selector.clone(),
        ask: said.ask.into(),
    };
    let now = clock::wall();
    let found = cluster.survey(&survey, now, tell).await;
    cli::fleet::tell("");
    match found {
        Ok(found) => {
            let list = cli::fleet::Fleet::of(&found.nodes, found.notes, now);
            let view = cli::fleet::view(cli::fleet::program(), said.sick, now);
            cli::fleet::show(&list, said.access.output, &view)
        }
        Err(error) => fail(&error, error.is_permission()),
    }
}

fn fail(error: &(dyn Error + 'static), is_permission: bool) -> Exit {
    match cli::fail(error) {
        Exit::Failure if is_permission => Exit::Permission,
        exit => exit,
    }
}

fn wall() -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(i128::from(clock::wall().0)).unwrap_or_default()
}

fn tell(progress: Progress) {
    cli::fleet::tell(&match progress {
        Progress::Nodes(read) => format!("{read} nodes read"),
        Progress::Agents(done, of) => format!("{done} of {of} agents asked"),
    });
}

fn desk(said: &FleetAccess) -> Desk {
    Desk {
        kubeconfig: said.kubeconfig.clone(),
        context: said.context.clone(),
        cluster: said.cluster.clone(),
        user: said.user.clone(),
        server: said.server.clone(),
        act_as: said.act_as.clone(),
        act_as_groups: said.act_as_groups.clone(),
    }
}
