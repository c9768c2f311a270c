//! The thin binary: arguments, configuration, log, app, exit code.

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use pathproof::cluster::api::client::ClientError;
use pathproof::config::{Config, ConfigError, RotateConfig, RunArgs, Surroundings, Switch};
use pathproof::echo::EchoArgs;
use pathproof::http::bind::BindError;
use pathproof::lifecycle::LogFormat;
use pathproof::lifecycle::starting::Starting;
use pathproof::{REVISION, app, clock, confine, lifecycle, rotate};
use pathproof_cli::args::Plugin;
use pathproof_cli::{self as cli, Exit};
use pathproof_kube_proxy_compat::{self as kube_proxy_compat, Action, DropInError};
use pathproof_program::args::{Args, CheckArgs, CleanupArgs, Command, variables};
use pathproof_shared::causes::causes;
use pathproof_wire::abi::ABI_VERSION;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinError;

type Outcome = Result<Exit, app::AppError>;

fn main() -> ExitCode {
    if let Some(words) = kube_proxy_compat::words(std::env::args_os()) {
        return exit(stand_in(&words)).into();
    }
    let args = match parse() {
        Ok(args) => args,
        Err(exit) => return exit.into(),
    };
    let exit = match args.command {
        Command::Run(args) => exit(run(&args)),
        Command::Status(args) => cli::status::run(&args, clock::now),
        Command::Why(args) => cli::why::run(&args),
        Command::Record(args) => cli::recording::record(&args),
        Command::Replay(args) => cli::recording::run_replay(&args),
        Command::Report(args) => cli::report::run(&args),
        Command::Check(args) => check(&args),
        Command::Drain(args) => cli::drain::run(&args, clock::mono),
        Command::Fleet(args) => cli::fleet::run(&args, clock::wall()),
        Command::Preflight(args) => cli::preflight::run(&args),
        Command::Rotate(args) => exit(rotate_generations(*args)),
        Command::Echo(args) => exit(echo(args)),
        Command::Cleanup(args) => exit(cleanup(args)),
        // `kube_proxy_compat::words` has already handled this command above.
        Command::KubeProxy(args) => exit(stand_in(&args.words)),
        Command::Version => version(),
    };
    exit.into()
}

/// Parses the command line.
///
/// # Errors
/// The exit code, once all output is written: success for help and version, [`Exit::Configuration`]
/// for words that cannot be parsed.
fn parse() -> Result<Args, Exit> {
    let called = std::env::args_os().next();
    let parsed = if called.is_some_and(|name| cli::fleet::is_plugin(&name)) {
        Plugin::try_parse().map(|plugin| Args {
            command: Command::Fleet(Box::new(plugin.fleet)),
        })
    } else {
        Args::try_parse()
    };
    parsed.map_err(|error| cli::refused(&error))
}

/// `pathproof version`.
fn version() -> Exit {
    cli::print(&format!(
        "pathproof {} (revision {REVISION}, layouts shared with the kernel: {ABI_VERSION})\n",
        env!("CARGO_PKG_VERSION")
    ))
}

/// Reports a failure, and returns the exit code.
fn exit(outcome: Outcome) -> Exit {
    outcome.unwrap_or_else(|error| match cli::fail(&*error) {
        _ if app::is_permission(&*error) => Exit::Permission,
        // The main loop panicked.
        _ if error.is::<JoinError>() => Exit::Internal,
        Exit::Failure if is_configuration(&*error) => Exit::Configuration,
        exit => exit,
    })
}

/// Whether another setting would help.
fn is_configuration(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|error| {
        // A failed credential plugin is no error of configuration: the network may not be up yet.
        let client = error.downcast_ref::<ClientError>();
        let is_wrong = |error| !matches!(error, &ClientError::Credentials(_));
        // An address or port that is not available needs another setting; a temporary shortage does not.
        let is_taken = |error: &BindError| {
            use io::ErrorKind::{AddrInUse, AddrNotAvailable};
            matches!(error.source.kind(), AddrInUse | AddrNotAvailable)
        };
        let bind = error.downcast_ref::<BindError>();
        error.is::<ConfigError>() || client.is_some_and(is_wrong) || bind.is_some_and(is_taken)
    })
}

fn run(args: &RunArgs) -> Outcome {
    check_variables()?;
    run_with(Config::resolve(args, &Surroundings::read())?, Vec::new())
}

fn check_variables() -> Result<(), ConfigError> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    variables::misspelt(names).map_or(Ok(()), |name| Err(ConfigError::Variable(name)))
}

fn run_with(config: Config, notes: Vec<String>) -> Outcome {
    lifecycle::start_log(config.process.log_format, &config.process.log_filter);
    for note in notes {
        tracing::info!("in place of kube-proxy: {note}");
    }
    config.check()?;
    config.log();
    // Mark the start now, because the following steps may take long on a busy node.
    let starting = Starting::begin(config.kept.state_dir.as_deref());
    // Drop privileges before other threads exist, so that every thread starts without them.
    let confined = confine::confine(&config);
    // One thread runs the main loop, and the other parses objects meanwhile.
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ended =
        runtime.block_on(async { tokio::spawn(app::run(config, confined, starting)).await });
    // Do not wait for a route dump that the kernel is slow to answer.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended??;
    Ok(Exit::Success)
}

/// Runs the pod probe on one thread, because it is idle nearly all the time and runs on every node.
fn echo(args: EchoArgs) -> Outcome {
    lifecycle::start_log(LogFormat::Text, lifecycle::DEFAULT_FILTER);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(pathproof::echo::run(args));
    // Do not wait for a name lookup in progress.
    runtime.shutdown_background();
    ended?;
    Ok(Exit::Success)
}

/// Performs the action that kube-proxy's flags select.
fn stand_in(words: &[String]) -> Outcome {
    let settings = match kube_proxy_compat::read(words)? {
        Action::Run(settings) => settings,
        Action::Help => return Ok(cli::print(&kube_proxy_compat::help())),
        Action::Version => return Ok(cli::print(&kube_proxy_compat::version())),
        Action::InitOnly => return Ok(Exit::Success),
        Action::Cleanup => return Err(DropInError::Cleanup.into()),
        Action::WriteConfig(path) => return Err(DropInError::WriteConfig(path).into()),
    };
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let (config, mut notes) =
        kube_proxy_compat::resolve(&settings, &Surroundings::read(), &is_set)?;
    // An unknown variable is only noted: the agent must run, because no other process here answers health
    // checks.
    notes.extend(check_variables().err().map(|error| error.to_string()));
    run_with(config, notes)
}

/// Queries a running agent; without one, this process probes for a few seconds.
fn check(args: &CheckArgs) -> Exit {
    let checked =
        cli::check::beside_agent(&args.admin.address, args.output).map_err(app::AppError::from);
    let checked = checked.and_then(|exit| exit.map_or_else(|| check_here(args), Ok));
    checked.unwrap_or_else(|error| match exit(Err(error)) {
        // A check that fails itself must not exit with `Failure`, which means that the datapath is broken.
        Exit::Failure => Exit::Unknown,
        exit => exit,
    })
}

fn check_here(args: &CheckArgs) -> Outcome {
    let config = Config::of(&args.cluster, Some(&args.sentinel), &Surroundings::read())?;
    config.check()?;
    let time = Duration::from_secs(args.seconds);
    let (report, time) = current_thread()?.block_on(app::check(config, time))?;
    Ok(cli::check::show(args.output, &report, time))
}

fn current_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn rotate_generations(mut config: RotateConfig) -> Outcome {
    let host = Surroundings::read().hostname.unwrap_or_default();
    host.trim().clone_into(&mut config.host);
    let process = &config.process;
    lifecycle::start_log(process.log_format, &process.log_filter);
    if process.hardening == Switch::On {
        confine::confine_rotator(&config.api);
    }
    current_thread()?.block_on(rotate::run(config))?;
    Ok(Exit::Success)
}

fn cleanup(args: CleanupArgs) -> Outcome {
    let removal = app::cleanup(&args.kept, args.sentinel_devices);
    let removed = current_thread()?.block_on(removal)?;
    println!(
        "removed {} pinned links and maps, {} tc filters and {} sentinel interfaces; the observer \
         is detached",
        removed.pins, removed.filters, removed.devices
    );
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use pathproof_shared::causes::chain;
    use rstest::rstest;

    use super::*;

    fn bind(kind: io::ErrorKind) -> BindError {
        let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
        BindError {
            option: "--x",
            address: address.into(),
            source: kind.into(),
        }
    }

    #[rstest]
    #[case(bind(io::ErrorKind::AddrInUse), Exit::Configuration)]
    #[case(bind(io::ErrorKind::AddrNotAvailable), Exit::Configuration)]
    #[case(bind(io::ErrorKind::PermissionDenied), Exit::Permission)]
    #[case(bind(io::ErrorKind::OutOfMemory), Exit::Failure)]
    #[case(ConfigError::NoClusterView, Exit::Configuration)]
    #[case(ClientError::Url("".parse::<hyper::Uri>().unwrap_err()), Exit::Configuration)]
    #[case(io::Error::from(io::ErrorKind::PermissionDenied), Exit::Permission)]
    #[case(io::Error::from_raw_os_error(libc::EPERM), Exit::Permission)]
    #[case(io::Error::from(io::ErrorKind::NotFound), Exit::Failure)]
    fn codes(#[case] error: impl Error + Send + Sync + 'static, #[case] expected: Exit) {
        assert_eq!(exit(Err(error.into())), expected);
    }

    #[test]
    fn a_folder_that_may_not_be_read_is_a_permission() {
        let error = ConfigError::Unreadable {
            option: "--manifests",
            path: "/secret".into(),
            source: io::Error::from_raw_os_error(libc::EACCES),
        };
        let said = chain(&error);
        assert_eq!(exit(Err(error.into())), Exit::Permission);
        assert!(
            said.contains("--manifests") && said.contains("Permission denied"),
            "{said}"
        );
    }
}
