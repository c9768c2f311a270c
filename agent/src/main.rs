//! The thin binary: arguments, configuration, log, app, exit code.

use std::process::ExitCode;
use std::time::Duration;

use pathproof::args::{CheckArgs, CleanupArgs, Command, RotateArgs, RunArgs};
use pathproof::cli::{self, Exit};
use pathproof::config::{Config, RotateConfig, Surroundings, device_prefix};
use pathproof::dropin::{self, DropInError, wanted::Wanted};
use pathproof::{app, clock, rotate, telemetry};

fn main() -> ExitCode {
    if let Some(words) = dropin::words(std::env::args_os()) {
        return stand_in(words).into();
    }
    let exit = match cli::parse() {
        Err(exit) => exit,
        Ok(args) => match args.command {
            Command::Run(said) => run(&said),
            Command::Status(said) => cli::status::run(&said, wall_clock),
            Command::Why(said) => cli::why::run(&said),
            Command::Record(said) => cli::recording::record(&said),
            Command::Replay(said) => cli::recording::run_replay(&said),
            Command::Check(said) => check(&said),
            Command::Drain(said) => cli::drain::run(&said, clock::mono),
            Command::Fleet(said) => cli::fleet::run(&said, clock::wall()),
            Command::Rotate(said) => rotate_generations(&said),
            Command::Cleanup(said) => cleanup(&said),
            // Its words were taken above.
            Command::KubeProxy(said) => stand_in(Ok(said.words)),
            Command::Version(said) => cli::version(said.output),
            Command::Docs(said) => cli::docs(&said),
        },
    };
    exit.into()
}

fn run(said: &RunArgs) -> Exit {
    let config = match Config::resolve(said, &Surroundings::read()) {
        Ok(config) => config,
        Err(error) => return cli::fail(&error),
    };
    if let Err(error) = telemetry::init(config.log_format, &config.log_filter) {
        return cli::fail(&error);
    }
    run_with(config)
}

fn run_with(config: Config) -> Exit {
    if let Err(error) = config.check() {
        return cli::fail(&error);
    }
    config.log();
    // Before there are threads.
    let confined = app::confine(&config);
    // Two threads: the main loop, and one that answers while it is busy.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    match runtime {
        Err(error) => cli::fail(&error),
        Ok(runtime) => {
            match runtime.block_on(async { tokio::spawn(app::run(config, confined)).await }) {
                Ok(Ok(())) => Exit::Success,
                Ok(Err(error)) if error.is_permission() => {
                    cli::fail(&error);
                    Exit::Permission
                }
                Ok(Err(error)) => cli::fail(&error),
                Err(error) => {
                    cli::fail(&error);
                    Exit::Internal
                }
            }
        }
    }
}

/// What kube-proxy's flags ask for.
fn stand_in(words: Result<Vec<String>, DropInError>) -> Exit {
    let settings = match words.and_then(|words| dropin::read(&words)) {
        Ok(Wanted::Run(settings)) => settings,
        Ok(Wanted::Help) => return cli::print(&dropin::help()),
        Ok(Wanted::Version) => return cli::print(&dropin::version()),
        Ok(Wanted::InitOnly) => return Exit::Success,
        Ok(Wanted::Cleanup) => return remove_rules(),
        Ok(Wanted::WriteConfig(path)) => return cli::fail(&DropInError::WriteConfig { path }),
        Err(error) => return cli::fail(&error),
    };
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let (config, notes) = match dropin::resolve(*settings, &Surroundings::read(), &is_set) {
        Ok(resolved) => resolved,
        Err(error) => return cli::fail(&error),
    };
    if let Err(error) = telemetry::init(config.log_format, &config.log_filter) {
        return cli::fail(&error);
    }
    for note in notes {
        tracing::info!("in place of kube-proxy: {note}");
    }
    run_with(config)
}

/// `--cleanup`: exits as kube-proxy does.
fn remove_rules() -> Exit {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cleaned = dropin::cleanup::cleanup(&path);
    let removed = cleaned.removed.join("; ");
    match removed.is_empty() {
        true => println!("nothing of kube-proxy's was removed"),
        false => println!("removed {removed}"),
    }
    for problem in &cleaned.problems {
        cli::fail(problem);
    }
    match cleaned.problems.is_empty() {
        true => Exit::Success,
        false => Exit::Failure,
    }
}

/// An agent that runs is asked; else this process is one for a few seconds.
fn check(said: &CheckArgs) -> Exit {
    if said.npd {
        return cli::check::npd::run(said, wall_clock);
    }
    if let Some(exit) = cli::check::beside_agent(said) {
        return exit;
    }
    let config = Config::for_check(said, &Surroundings::read());
    let config = match config.and_then(|config| config.check().map(|()| config)) {
        Ok(config) => config,
        Err(error) => return cli::fail(&error),
    };
    let time = Duration::from_secs(said.seconds);
    let runtime = match current_thread() {
        Ok(runtime) => runtime,
        Err(error) => return cli::fail(&error),
    };
    match runtime.block_on(app::check(config, time)) {
        Ok((report, time)) => cli::check::show(said, &report, time),
        Err(error) if error.is_permission() => {
            cli::fail(&error);
            Exit::Permission
        }
        Err(error) => cli::check::fail(&error),
    }
}

fn current_thread() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn rotate_generations(said: &RotateArgs) -> Exit {
    let config = match RotateConfig::resolve(said, &Surroundings::read()) {
        Ok(config) => config,
        Err(error) => return cli::fail(&error),
    };
    if let Err(error) = telemetry::init(config.log_format, &config.log_filter) {
        return cli::fail(&error);
    }
    app::confine_rotator(&config);
    let runtime = match current_thread() {
        Ok(runtime) => runtime,
        Err(error) => return cli::fail(&error),
    };
    match runtime.block_on(rotate::run(config)) {
        Ok(()) => Exit::Success,
        Err(error) => cli::fail(&error),
    }
}

fn cleanup(said: &CleanupArgs) -> Exit {
    let directory = |text: &str| (text != "none").then(|| std::path::PathBuf::from(text));
    let (pins, state) = (directory(&said.pin_dir), directory(&said.state_dir));
    let prefix = match device_prefix(&said.sentinel_devices) {
        Ok(prefix) => prefix,
        Err(error) => return cli::fail(&error),
    };
    let runtime = match current_thread() {
        Ok(runtime) => runtime,
        Err(error) => return cli::fail(&error),
    };
    match runtime.block_on(app::cleanup(pins.as_deref(), state.as_deref(), prefix)) {
        Ok(removed) => {
            println!(
                "removed {} pinned links and maps and {} of the sentinel's interfaces; the \
                 observer is detached",
                removed.pins, removed.devices
            );
            Exit::Success
        }
        Err(error) if error.is_permission() => {
            cli::fail(&error);
            Exit::Permission
        }
        Err(error) => cli::fail(&error),
    }
}

fn wall_clock() -> jiff::Timestamp {
    let now = i128::from(clock::wall().0);
    jiff::Timestamp::from_nanosecond(now).unwrap_or_default()
}
